"""A fetch keeps what is finished, mends what is damaged, refuses to mix revisions, and says why it fails."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tlm_repro.artifacts.manifest import read_manifest
from tlm_repro.errors import ArtifactError, ConfigError, EvaluationError
from tlm_repro.evaluation.benchmarks.demo_items import DEMO_ITEMS
from tlm_repro.evaluation.benchmarks.fetch import fetch
from tlm_repro.spec.benchmarks import PAPER_TASKS

FIRST, SECOND = "a" * 40, "b" * 40


def items_of(folder: Path, task: str) -> list[dict[str, Any]]:
    import pandas

    return json.loads(pandas.read_parquet(folder / task / "items.parquet").to_json(orient="records"))


def fetch_quietly(folder: Path, *tasks: str, **options: Any) -> list[str]:
    lines: list[str] = []
    assert fetch(folder, tasks, report=lines.append, **options) == folder / "manifest.json"
    return lines


@pytest.fixture
def hub(mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None, str | None]]:
    """A hub whose `main` is the first commit; lists what is downloaded as (data set, configuration, revision)."""
    import datasets
    import huggingface_hub

    downloaded: list[tuple[str, str | None, str | None]] = []
    load, commits = datasets.load_dataset, {"main": FIRST, FIRST: FIRST, "v2": SECOND, SECOND: SECOND}

    def load_dataset(path: str, name: str | None = None, *, revision: str | None = None, **options: Any) -> Any:
        if (mirror / path).is_dir():
            downloaded.append((path, name, revision))
            return load(str(mirror / path), name, cache_dir=str(tmp_path / "cache"), **options)
        return load(path, name, **options)

    def dataset_info(_: Any, name: str, *, revision: str) -> SimpleNamespace:  # noqa: ARG001
        return SimpleNamespace(sha=commits[revision])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", dataset_info)
    return downloaded


def test_the_scored_split_is_saved_whole(fetched: Path) -> None:
    manifest = read_manifest(fetched / "manifest.json", kind="benchmarks", verify="sha256")
    assert set(manifest.files) == {
        f"{task}/{name}" for task in PAPER_TASKS for name in ("items.parquet", "source.json")
    }
    for task in PAPER_TASKS:
        source = manifest.summary["tasks"][task]
        assert source["rows"] == len(items_of(fetched, task))
        assert source["lm_eval"] == manifest.versions["lm-eval"]
        if task != "wikitext":
            lines = (DEMO_ITEMS / f"{task}.jsonl").read_text(encoding="utf-8").splitlines()
            assert items_of(fetched, task) == [json.loads(line) for line in lines]


def test_a_second_call_takes_only_what_is_missing(mirror: Path, tmp_path: Path) -> None:
    folder = tmp_path / "items"
    assert fetch_quietly(folder, "piqa", mirror=mirror) == ["piqa: 32 items of baber/piqa (validation) from a mirror"]
    before = (folder / "piqa" / "items.parquet").stat()
    lines = fetch_quietly(folder, "piqa", "social_iqa", mirror=mirror)
    assert lines[0] == "piqa: 32 items, here already"
    assert (folder / "piqa" / "items.parquet").stat() == before
    assert set(read_manifest(folder / "manifest.json").summary["tasks"]) == {"piqa", "social_iqa"}
    fetch_quietly(folder, "piqa", mirror=mirror)
    assert set(read_manifest(folder / "manifest.json").summary["tasks"]) == {"piqa", "social_iqa"}


def test_a_fetch_that_dies_midway_keeps_the_finished_tasks(mirror: Path, tmp_path: Path) -> None:
    partial, folder = Path(shutil.copytree(mirror / "baber", tmp_path / "mirror" / "baber")), tmp_path / "items"
    with pytest.raises(
        EvaluationError, match=r"lighteval/siqa \(validation\).*no such folder.*piqa are kept"
    ) as failed:
        fetch(folder, ("piqa", "social_iqa"), mirror=partial.parent, report=lambda _: None)
    assert len(str(failed.value).splitlines()) == 1
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "piqa"], "no manifest, nothing half-written"
    assert fetch_quietly(folder, "piqa", "social_iqa", mirror=mirror)[0] == "piqa: 32 items, here already"
    assert set(read_manifest(folder / "manifest.json").summary["tasks"]) == {"piqa", "social_iqa"}


def test_a_damaged_task_is_taken_anew(mirror: Path, tmp_path: Path) -> None:
    folder = tmp_path / "items"
    fetch_quietly(folder, "piqa", mirror=mirror)
    before = json.loads((folder / "manifest.json").read_text())["files"]
    (folder / "piqa" / "items.parquet").write_bytes(b"PAR1")
    assert "32 items of baber/piqa" in fetch_quietly(folder, "piqa", mirror=mirror)[0]
    assert read_manifest(folder / "manifest.json", verify="sha256").files == before


def test_the_commit_is_resolved_recorded_and_downloaded(hub: list[Any], tmp_path: Path) -> None:
    [line, _] = fetch_quietly(tmp_path / "items", "piqa", "arc_easy", revisions={"piqa": "v2"})
    assert hub == [("baber/piqa", None, SECOND), ("allenai/ai2_arc", "ARC-Easy", FIRST)]
    assert line == f"piqa: 32 items of baber/piqa (validation) at {SECOND}"
    tasks = read_manifest(tmp_path / "items" / "manifest.json").summary["tasks"]
    assert (tasks["piqa"]["revision"], tasks["piqa"]["commit"]) == ("v2", SECOND)
    assert (tasks["arc_easy"]["revision"], tasks["arc_easy"]["commit"]) == ("main", FIRST)


def test_revisions_are_not_mixed(hub: list[Any], mirror: Path, tmp_path: Path) -> None:
    folder = tmp_path / "items"
    fetch_quietly(folder, "piqa", revisions={"piqa": "v2"})
    before = (folder / "manifest.json").read_bytes()
    with pytest.raises(EvaluationError, match=r"holds baber/piqa \(validation\) at v2, this call asks for .* at main"):
        fetch(folder, ("social_iqa", "piqa"))
    with pytest.raises(EvaluationError, match=r"at v2, this call asks for .* from a mirror"):
        fetch(folder, ("piqa",), mirror=mirror)
    assert (folder / "manifest.json").read_bytes() == before
    assert len(hub) == 1
    # The commit that v2 was then says the same.
    assert fetch_quietly(folder, "piqa", revisions={"piqa": SECOND}) == ["piqa: 32 items, here already"]


def test_a_folder_of_someone_else_s_is_left_alone(mirror: Path, tmp_path: Path) -> None:
    (tmp_path / "piqa").mkdir()
    (tmp_path / "piqa" / "notes.txt").write_text("mine")
    with pytest.raises(EvaluationError, match=r"piqa isn't of this command's making: choose another --out"):
        fetch(tmp_path, ("piqa",), mirror=mirror)
    assert (tmp_path / "piqa" / "notes.txt").read_text() == "mine"


def test_another_schema_is_refused_before_it_is_saved(mirror: Path, tmp_path: Path) -> None:
    place = tmp_path / "mirror" / "baber" / "piqa"
    shutil.copytree(mirror / "Rowan" / "hellaswag", place)
    with pytest.raises(EvaluationError, match=r"baber/piqa \(validation\) isn't in the schema .*'piqa'"):
        fetch(tmp_path / "items", ("piqa",), mirror=tmp_path / "mirror", report=lambda _: None)
    assert [path.name for path in (tmp_path / "items").iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("tasks", "options", "message"),
    [
        (("piqa",), {"revisions": {"boolq": "x"}}, "--revision boolq: this task isn't fetched"),
        (("piqa",), {"revisions": {"piqa": "x"}, "mirror": Path()}, "a mirror holds one revision"),
        (("piqa",), {"mirror": Path("none")}, "--mirror none: no such folder"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    tasks: tuple[str, ...], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        fetch(tmp_path / "items", tasks, **options)
    assert not (tmp_path / "items").exists()


def command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "tlm_repro", "fetch-benchmarks", *arguments]
    return subprocess.run(line, capture_output=True, text=True, cwd=cwd)


def test_the_command_says_what_it_wrote(mirror: Path, tmp_path: Path) -> None:
    done = command("--out", "items", "--task", "piqa", "--mirror", str(mirror), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "wrote items/manifest.json"
    assert done.stderr == ""


def test_without_a_network_the_command_fails_in_one_line(tmp_path: Path) -> None:
    """Tests forbid the hub (HF_HUB_OFFLINE), as a compute node without internet does."""
    done = command("--out", "items", "--task", "piqa", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("tlm-repro: error: the data set baber/piqa (validation) of task 'piqa' can't be loaded (")
    assert "HF_HUB_OFFLINE" in line
    assert "--mirror" in line


def test_a_revision_needs_its_task(tmp_path: Path) -> None:
    done = command("--out", "items", "--revision", "piqa", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "tlm-repro: error: --revision piqa: give TASK=REV, such as piqa=main\n"


def changed_mirror(mirror: Path, folder: Path, file: str, change: Any) -> Path:
    import datasets

    shutil.copytree(mirror, folder)
    rows = datasets.Dataset.from_parquet(str(folder / file), cache_dir=str(folder.parent / "cache")).to_list()
    change(rows)
    datasets.Dataset.from_list(rows).to_parquet(folder / file)
    return folder


def empty_goals(rows: list[dict[str, Any]]) -> None:
    rows[20]["goal"] = None


def strange_answer(rows: list[dict[str, Any]]) -> None:
    rows[20]["answer"] = "7"


@pytest.mark.parametrize(
    ("task", "file", "change", "message"),
    [
        ("piqa", "baber/piqa/data/validation.parquet", empty_goals, "1 of 32 rows have no 'goal'"),
        ("winogrande", "allenai/winogrande/winogrande_xl/validation.parquet", strange_answer, "KeyError: '7'"),
    ],
)
def test_one_row_that_its_task_can_t_read_is_found(mirror: Path, tmp_path: Path, task, file, change, message) -> None:
    other = changed_mirror(mirror, tmp_path / "mirror", file, change)
    with pytest.raises(EvaluationError, match=message):
        fetch(tmp_path / "out", [task], mirror=other, report=lambda _: None)
    assert not (tmp_path / "out" / task).exists()


def test_a_folder_with_other_things_is_left_alone(mirror: Path, tmp_path: Path) -> None:
    for name, text in (("config.json", "{}"), ("manifest.json", '{"kind": "model"}')):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / name).write_text(text)
        with pytest.raises(ArtifactError, match=f"holds '{name}', which this command didn't write"):
            fetch(folder, ["piqa"], mirror=mirror, report=lambda _: None)
        assert [path.name for path in folder.iterdir()] == [name]
        assert (folder / name).read_text() == text
