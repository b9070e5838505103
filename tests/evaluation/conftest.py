"""A mirror of the hub's data sets, small and in their schemas, and the folder that is fetched from it."""

import json
from pathlib import Path
from typing import Any

import pytest
from hub import HUB

from tlm_repro.evaluation.benchmarks.demo_items import DEMO_ITEMS

PAGES = [
    {"page": " = Harbour = \n \n The well @-@ known harbour was quiet , and its 1 @,@ 200 boats lay still . \n"},
    {"page": ' = Bread = \n \n " Bread " and salt were on the table ; nobody \'s hand had touched them . \n'},
]


def rows_of(task: str) -> list[dict[str, Any]]:
    """The demo's items of a task: they have the hub's schema."""
    if task == "wikitext":
        return PAGES
    return [json.loads(line) for line in (DEMO_ITEMS / f"{task}.jsonl").read_text(encoding="utf-8").splitlines()]


def write_mirror(root: Path) -> Path:
    """`<root>/<owner>/<name>` for each data set: Parquet files, and a card that says which is which split."""
    import datasets

    datasets.disable_progress_bars()
    cards: dict[str, list[str]] = {}
    for task, (name, config, split) in HUB.items():
        rows = datasets.Dataset.from_list(rows_of(task))
        if task == "boolq":
            rows = rows.cast_column("label", datasets.ClassLabel(names=["False", "True"]))
        card = cards.setdefault(name, [])
        card.append(f"- config_name: {config or 'default'}\n  data_files:")
        for part in ("train", "validation", "test"):
            file = f"{config or 'data'}/{part}.parquet"
            (root / name / file).parent.mkdir(parents=True, exist_ok=True)
            (rows if part == split else rows.select([0])).to_parquet(root / name / file)
            card.append(f"  - split: {part}\n    path: {file}")
    for name, lines in cards.items():
        (root / name / "README.md").write_text("\n".join(["---", "configs:", *lines, "---", ""]))
    return root


@pytest.fixture(scope="session")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mirror(tmp_path_factory.mktemp("mirror"))


@pytest.fixture(scope="session")
def fetched(mirror: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All nine benchmarks, fetched; tests that change the folder copy it."""
    from tlm_repro.evaluation.benchmarks.fetch import fetch

    folder = tmp_path_factory.mktemp("fetched") / "benchmarks"
    fetch(folder, mirror=mirror, report=lambda _: None)
    return folder
