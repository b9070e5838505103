"""Benchmarks that a configuration adds to the paper's: what is refused, and what names an evaluation."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from small_study import study

from tlm_repro.config.loading import parse
from tlm_repro.errors import ConfigError
from tlm_repro.spec.evaluation import AdditionalTask, ZeroShotSpec
from tlm_repro.study.grid import Grid, expand

OPENBOOKQA = {"task": "openbookqa", "metric": "acc_norm", "title": "OpenBookQA", "direction": "higher"}


ROOT = Path(__file__).parents[2]


def grid_with(*additional: dict[str, Any], **zero_shot: Any) -> Grid:
    raw = study()
    raw["evaluation"]["zero_shot"] |= {"source": "hub", "additional": list(additional), **zero_shot}
    return expand(parse(raw, "f.yaml"))


def zero_shot(grid: Grid) -> ZeroShotSpec:
    return next(
        suite for suites in grid.suites.values() for suite in suites.values() if isinstance(suite, ZeroShotSpec)
    )


def names(grid: Grid) -> set[str]:
    return {name for suites in grid.suites.values() for name in suites if name.startswith("zero_shot")}


def test_an_additional_benchmark_is_part_of_the_spec_without_its_title_and_direction():
    grid = grid_with(OPENBOOKQA)
    assert zero_shot(grid).canonical()["additional"] == [
        {"column": "openbookqa", "task": "openbookqa", "metric": "acc_norm", "items": None}
    ]
    [entry] = grid.config.evaluation.zero_shot.additional  # type: ignore[union-attr]
    assert entry.benchmark.heading == "OpenBookQA % ↑"
    assert names(grid) == names(grid_with(OPENBOOKQA | {"title": "Open book", "direction": "lower"}))
    others = [names(grid_with(OPENBOOKQA | change)) for change in ({"metric": "acc"}, {"task": "copa"})]
    assert len(set().union(names(grid), *others)) == 3


def test_the_documented_example_can_be_used():
    page = (ROOT / "docs/evaluation.md").read_text().split("## Add a benchmark", 1)[1]
    example = yaml.safe_load(page.split("```yaml", 1)[1].split("```", 1)[0])["evaluation"]["zero_shot"]
    spec = zero_shot(grid_with(*example["additional"], tasks=example["tasks"]))
    assert [task.column for task in spec.additional] == ["openbookqa", "gsm8k", "arxiv_bpb"]
    assert len(spec.tasks) == 9


def test_without_additional_benchmarks_evaluations_keep_their_names():
    assert "additional" not in zero_shot(grid_with()).canonical()


def test_the_contents_of_an_item_file_name_the_evaluation(tmp_path: Path):
    evaluations = {}
    for name, text in (("a", "{}\n"), ("same", "{}\n"), ("other", "{} \n")):
        items = tmp_path / f"{name}.jsonl"
        items.write_text(text)
        evaluations[name] = names(grid_with(OPENBOOKQA | {"items": str(items)}))
    assert evaluations["a"] == evaluations["same"] != evaluations["other"]


def test_columns_default_to_the_task(tmp_path: Path):
    items = tmp_path / "items.jsonl"
    items.write_text("{}\n")
    entry = OPENBOOKQA | {"task": "mmlu-Pro+x", "items": str(items)}
    grid = grid_with(entry, entry | {"column": "mmlu_acc", "metric": "acc", "title": "MMLU"}, source="demo")
    assert [task.column for task in zero_shot(grid).additional] == ["mmlu_pro_x", "mmlu_acc"]
    assert zero_shot(grid).all_tasks[9:] == ("mmlu-Pro+x",)


@pytest.mark.parametrize(
    ("additional", "message"),
    [
        ([OPENBOOKQA | {"column": "piqa"}], r"additional\.0\.column: 'piqa' is the name of another score\. Set column"),
        ([OPENBOOKQA | {"column": "avg"}], r"additional\.0\.column: 'avg' is the name of another score"),
        ([OPENBOOKQA | {"column": "niah_x"}], r"additional\.0\.column: 'niah_x' is the name of another score"),
        ([OPENBOOKQA | {"column": "A b"}], r"additional\.0\.column: 'A b' doesn't fit"),
        ([OPENBOOKQA | {"task": "20_newsgroups"}], r"additional\.0\.column: '20_newsgroups', .* start with a letter"),
        ([OPENBOOKQA, OPENBOOKQA | {"title": "X"}], r"additional\.1\.column: 'openbookqa' is the name of another"),
        ([OPENBOOKQA, OPENBOOKQA | {"column": "b"}], r"additional\.1\.title: 'OpenBookQA' is the title of another"),
        ([OPENBOOKQA | {"title": "PIQA"}], r"additional\.0\.title: 'PIQA' is the title of another column of this"),
        ([OPENBOOKQA | {"direction": "up"}], r"additional\.0\.direction: 'up' doesn't fit: .*'higher' or 'lower'"),
        ([OPENBOOKQA | {"task": "a/b"}], r"additional\.0\.task: 'a/b' doesn't fit"),
        (
            [OPENBOOKQA | {"task": "piqa", "column": "b", "items": "x"}],
            r"additional\.0\.items: 'piqa' is one of the paper's tasks, which share one set of items\. Remove items",
        ),
        (
            [OPENBOOKQA | {"items": "x"}, OPENBOOKQA | {"column": "b", "title": "B"}],
            r"additional\.0\.items: the entries of 'openbookqa' name different item files",
        ),
        ([OPENBOOKQA | {"items": "none.jsonl"}], r"additional\.0\.items: 'none\.jsonl' can't be read \(No such file"),
        ([{"task": "openbookqa"}], r"additional\.0\.metric: this key is missing"),
    ],
)
def test_entries_that_do_not_fit_are_refused(additional: list[dict[str, Any]], message: str):
    with pytest.raises(ConfigError, match=message):
        grid_with(*additional)


def test_the_demo_s_source_has_no_items_for_an_additional_task():
    with pytest.raises(ConfigError, match=r"additional\.0\.items: source demo has no items for 'openbookqa'\. Name a"):
        grid_with(OPENBOOKQA, source="demo")
    grid = grid_with({"task": "piqa", "metric": "acc_norm", "title": "PIQA, n.", "direction": "higher", "column": "b"})
    assert zero_shot(grid).all_tasks[-1] == "boolq"


def test_an_additional_task_can_have_a_revision():
    assert zero_shot(grid_with(OPENBOOKQA, revisions={"openbookqa": "abc"})).revisions == {"openbookqa": "abc"}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"revisions": {"boolq": "x"}}, "revisions has 'boolq', which isn't one of the tasks"),
        ({"additional": [{"column": "piqa", "task": "copa", "metric": "acc"}]}, "the column 'piqa', which another"),
        (
            {"additional": [{"column": "b", "task": "piqa", "metric": "acc_norm", "items": "0"}]},
            "items for 'piqa', whose other scores",
        ),
    ],
)
def test_a_spec_of_one_s_own_is_checked_too(keys: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        ZeroShotSpec.from_values({"source": "hub", "tasks": ["piqa"], "max_length": 8, **keys}, "test")


def test_the_spec_of_one_task_has_all_of_its_metrics():
    extra = (
        AdditionalTask(column="b", task="piqa", metric="acc_norm"),
        AdditionalTask(column="c", task="copa", metric="acc"),
    )
    spec = ZeroShotSpec(source="hub", tasks=("piqa", "boolq"), max_length=8, additional=extra)
    assert (spec.of_task("piqa").tasks, spec.of_task("piqa").additional) == (("piqa",), extra[:1])
    assert (spec.of_task("copa").tasks, spec.of_task("copa").additional) == ((), extra[1:])
