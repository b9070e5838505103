"""Items from a fetched folder, the hub or the demo: requests as the stock tasks make them, and nothing unchecked."""

import hashlib
import json
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hub import HUB

from tlm_repro.artifacts.fingerprint import fingerprint
from tlm_repro.data.readers.base import Document
from tlm_repro.errors import EvaluationError
from tlm_repro.evaluation.benchmarks.demo_items import DEMO_ITEMS
from tlm_repro.evaluation.benchmarks.folder import items_fingerprint, read_sources, rows_sha256
from tlm_repro.evaluation.benchmarks.items import load_tasks, provenance
from tlm_repro.evaluation.benchmarks.lm_eval_tasks import lm_eval_task, task_manager
from tlm_repro.evaluation.inputs import ItemFiles
from tlm_repro.spec.benchmarks import PAPER_TASKS
from tlm_repro.spec.evaluation import ZeroShotSpec


def path_spec(folder: Path, *tasks: str) -> ZeroShotSpec:
    names = tasks or PAPER_TASKS
    items = items_fingerprint(read_sources(folder, names))
    return ZeroShotSpec(source="path", tasks=names, max_length=64, items=items)


def requests(task: Any) -> list[tuple[Any, ...]]:
    task.build_all_requests(rank=0, world_size=1)
    return [instance.args for instance in task.instances]


@pytest.fixture
def own_copy(fetched: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(fetched, tmp_path / "copy"))


def test_stock_tasks_score_the_splits_of_these_data_sets() -> None:
    assert {task: tuple(lm_eval_task(task).source.values()) for task in PAPER_TASKS} == HUB
    assert {task: lm_eval_task(task).test for task in HUB} == {
        task: split == "test" for task, (*_, split) in HUB.items()
    }


def test_fetched_items_give_the_requests_of_the_stock_tasks(
    fetched: Path, mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stock tasks whole, as their YAML has them, on the mirror's rows; and ours on the fetched files."""
    import datasets
    import lm_eval.api.task

    ours = load_tasks(path_spec(fetched), files=ItemFiles(fetched), folder=tmp_path)
    asked = []

    def from_mirror(path: str, name: str | None) -> Any:
        asked.append((path, name))
        return datasets.load_dataset(str(mirror / path), name, cache_dir=str(tmp_path / "stock"))

    with monkeypatch.context() as patch:
        patch.setattr(lm_eval.api.task, "datasets", SimpleNamespace(load_dataset=from_mirror, __version__="5.0.0"))
        stock = task_manager(PAPER_TASKS).load(list(PAPER_TASKS))["tasks"]
    assert sorted(asked, key=str) == sorted(((name, config) for name, config, _ in HUB.values()), key=str)
    origin = {"dataset_path", "dataset_name", "dataset_kwargs", "training_split", "validation_split", "test_split"}
    for task in PAPER_TASKS:
        theirs = requests(stock[task])
        assert len(theirs) >= len(list(stock[task].eval_docs)) > 1
        assert requests(ours[task]) == theirs, task
        targets = [[found.doc_to_target(doc) for doc in found.eval_docs] for found in (ours[task], stock[task])]
        assert targets[0] == targets[1]
        mine, original = ours[task].dump_config(), stock[task].dump_config()
        assert {key: mine.get(key) for key in original.keys() - origin} == {
            key: original[key] for key in original.keys() - origin
        }
        assert ours[task].aggregation().keys() == stock[task].aggregation().keys()


def test_prompts_are_those_of_the_benchmarks(fetched: Path, tmp_path: Path) -> None:
    tasks = load_tasks(path_spec(fetched), files=ItemFiles(fetched), folder=tmp_path)
    harbour = " = Harbour =\n\nThe well-known harbour was quiet, and its 1,200 boats lay still.\n"
    assert requests(tasks["wikitext"])[0] == (harbour,)
    rows = {task: json.loads((DEMO_ITEMS / f"{task}.jsonl").read_text().splitlines()[0]) for task in ("boolq", "piqa")}
    question = f"{rows['boolq']['passage']}\nQuestion: {rows['boolq']['question']}?\nAnswer:"
    assert requests(tasks["boolq"])[:2] == [(question, " no"), (question, " yes")]
    goal = f"Question: {rows['piqa']['goal']}\nAnswer:"
    assert requests(tasks["piqa"])[:2] == [(goal, f" {rows['piqa'][key]}") for key in ("sol1", "sol2")]


def test_rows_are_hashed_and_not_the_file(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    rows = [{"b": "ä", "a": {"x": [1, 2]}}, {"b": "", "a": {"x": []}}]
    table = pyarrow.Table.from_pylist(rows)
    pyarrow.parquet.write_table(table, tmp_path / "one.parquet", compression="none")
    pyarrow.parquet.write_table(table, tmp_path / "two.parquet", row_group_size=1)
    by_hand = '{"a":{"x":[1,2]},"b":"ä"}\n{"a":{"x":[]},"b":""}\n'
    for name in ("one.parquet", "two.parquet"):
        assert rows_sha256(tmp_path / name) == hashlib.sha256(by_hand.encode()).hexdigest()


def test_provenance_says_where_items_came_from(fetched: Path) -> None:
    found = provenance(path_spec(fetched, "piqa", "arc_easy"), ItemFiles(fetched))
    assert found["source"] == "path"
    assert found["items_version"] is None
    assert found["task_versions"] == {"piqa": 1.0, "arc_easy": 1.0}
    sha256 = json.loads((fetched / "manifest.json").read_text())["summary"]["tasks"]["piqa"]["sha256"]
    assert found["data"]["piqa"] == {
        "dataset": "baber/piqa",
        "config": None,
        "split": "validation",
        "revision": None,
        "commit": None,
        "rows": 32,
        "sha256": sha256,
    }
    spec = ZeroShotSpec(source="hub", tasks=("piqa", "boolq"), max_length=64, revisions={"piqa": "abc"})
    data = provenance(spec)["data"]
    assert data["piqa"] == {"dataset": "baber/piqa", "config": None, "split": "validation", "revision": "abc"}
    assert (data["boolq"]["config"], data["boolq"]["revision"]) == ("boolq", "main")


def test_hub_tasks_are_loaded_at_their_revisions(tmp_path: Path, mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    import lm_eval.api.task

    asked = {}

    def from_mirror(path: str, name: str | None, revision: str | None = None) -> Any:
        asked[path] = revision
        return datasets.load_dataset(str(mirror / path), name, cache_dir=str(tmp_path))

    monkeypatch.setattr(lm_eval.api.task, "datasets", SimpleNamespace(load_dataset=from_mirror, __version__="5.0.0"))
    spec = ZeroShotSpec(source="hub", tasks=("piqa", "boolq"), max_length=64, revisions={"piqa": "abc"})
    tasks = load_tasks(spec, folder=tmp_path)
    assert asked == {"baber/piqa": "abc", "aps/super_glue": None}
    assert set(tasks) == {"piqa", "boolq"}


def assert_refused(spec: ZeroShotSpec, folder: Path | None, message: str, tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match=message) as refused:
        load_tasks(spec, files=ItemFiles(folder), folder=tmp_path)
    assert len(str(refused.value).splitlines()) == 1


def test_a_folder_must_be_given_and_exist(fetched: Path, tmp_path: Path) -> None:
    spec = path_spec(fetched, "piqa")
    assert_refused(spec, None, "--benchmarks", tmp_path)
    assert_refused(spec, tmp_path / "none", "doesn't exist: run `tlm-repro fetch-benchmarks --out .*none`", tmp_path)
    assert_refused(spec, tmp_path, "has no manifest.json.*fetch-benchmarks", tmp_path)


def test_changed_files_are_refused(own_copy: Path, tmp_path: Path) -> None:
    spec, file = path_spec(own_copy, "piqa"), own_copy / "piqa" / "items.parquet"
    whole = file.read_bytes()
    file.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    assert_refused(
        spec, own_copy, "piqa/items.parquet doesn't match the sha256 in its manifest.*fetch-benchmarks", tmp_path
    )
    file.write_bytes(whole + b"x")
    assert_refused(spec, own_copy, r"piqa/items.parquet has \d+ bytes.*fetch-benchmarks", tmp_path)
    file.unlink()
    assert_refused(spec, own_copy, r"piqa/items.parquet is missing.*fetch-benchmarks", tmp_path)


def write_consistent(path: Path, manifest: dict[str, Any]) -> None:
    """Writes a manifest of fetched benchmarks whose id and spec are those of its summary."""
    tasks = manifest["summary"]["tasks"]
    manifest["id"] = f"benchmarks-{fingerprint({task: source['sha256'] for task, source in tasks.items()})}"
    manifest["spec"] = {"tasks": {task: {"revision": source["revision"]} for task, source in tasks.items()}}
    path.write_text(json.dumps(manifest))


def test_other_rows_than_the_manifest_says_are_refused(own_copy: Path, tmp_path: Path) -> None:
    spec, path = path_spec(own_copy, "piqa"), own_copy / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["summary"]["tasks"]["piqa"]["sha256"] = "0" * 64
    write_consistent(path, manifest)
    assert_refused(spec, own_copy, "holds other rows than", tmp_path)
    del manifest["summary"]["tasks"]["piqa"]["rows"]
    path.write_text(json.dumps(manifest))
    assert_refused(spec, own_copy, "rows: the key is missing.*fetch-benchmarks", tmp_path)


def test_a_task_that_was_not_fetched_is_refused(own_copy: Path, tmp_path: Path) -> None:
    spec, path = path_spec(own_copy, "piqa", "boolq"), own_copy / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["summary"]["tasks"]["boolq"]
    write_consistent(path, manifest)
    assert_refused(spec, own_copy, "no items of boolq, only of .*fetch-benchmarks --out .* --task boolq", tmp_path)


def test_items_must_be_those_of_the_spec(fetched: Path, tmp_path: Path) -> None:
    spec = path_spec(fetched, "piqa").model_copy(update={"items": "0" * 16})
    assert_refused(spec, fetched, r"holds items [0-9a-f]{16} for these tasks, the spec asks for 0{16}", tmp_path)


def test_items_of_another_data_set_than_the_stock_task_s_are_refused(own_copy: Path, tmp_path: Path) -> None:
    spec, path = path_spec(own_copy, "piqa"), own_copy / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["summary"]["tasks"]["piqa"]["dataset"] = "ybisk/piqa"
    path.write_text(json.dumps(manifest))
    assert_refused(spec, own_copy, r"ybisk/piqa \(validation\).*scores baber/piqa \(validation\)", tmp_path)


def test_the_demo_s_tasks_and_fetched_ones_load_without_a_socket(
    fetched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **_: Any) -> None:
        raise AssertionError(f"a socket was opened: {arguments}")

    demo = ZeroShotSpec(source="demo", tasks=PAPER_TASKS, max_length=64)
    with monkeypatch.context() as patch:
        patch.setattr(socket, "socket", refuse)
        patch.setattr(socket, "create_connection", refuse)
        pages = [Document("a", "The harbour was quiet.")]
        found = load_tasks(demo, held_out=pages, folder=tmp_path)
        assert {task: len(list(found[task].eval_docs)) for task in found} == {
            task: 1 if task == "wikitext" else 32 for task in PAPER_TASKS
        }
        found = load_tasks(path_spec(fetched), files=ItemFiles(fetched), folder=tmp_path)
        assert {task: len(list(found[task].eval_docs)) for task in found} == {
            task: 2 if task == "wikitext" else 32 for task in PAPER_TASKS
        }
