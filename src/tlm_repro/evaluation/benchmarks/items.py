"""Where the items of a benchmark come from: stock tasks of lm-eval over demo items, a fetched folder or the hub."""

import importlib.metadata
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlm_repro.errors import EvaluationError
from tlm_repro.evaluation.benchmarks.folder import ITEMS, as_details, given, verified_sources
from tlm_repro.evaluation.benchmarks.tasks import DEMO_ITEMS, ITEMS_VERSION, benchmark, demo_pages, local_source
from tlm_repro.spec.evaluation import ZeroShotSpec

if TYPE_CHECKING:
    from tlm_repro.data.readers.base import Document


def load_tasks(
    spec: ZeroShotSpec, *, held_out: Iterable["Document"], benchmarks: Path | None, folder: Path
) -> dict[str, Any]:
    """lm-eval task objects by name, with the prompts, metrics and aggregation of the stock tasks.

    Args:
        held_out: documents that stand for WikiText's pages when the source is the demo's; not read otherwise.
        benchmarks: the folder that `tlm-repro fetch-benchmarks` made when the source is `path`; not read otherwise.
        folder: takes temporary files; it must exist for as long as the tasks are used.

    Raises:
        EvaluationError: another version of the demo items, no held-out document, a folder that lacks a task or isn't
            what the spec was made with, or a data set that can't be had.
    """
    import datasets

    check_items(spec, benchmarks)
    datasets.disable_progress_bars()
    if spec.source == "demo":
        return demo_tasks(spec, held_out, folder)
    if spec.source == "path":
        items = given(benchmarks)
        return redirected([local_source(task, items / task / ITEMS, folder / "cache") for task in spec.tasks])
    return hub_tasks(spec)


def check_items(spec: ZeroShotSpec, benchmarks: Path | None) -> None:
    """Raises EvaluationError where the items on this machine aren't those that the spec asks for; takes a second."""
    if spec.source == "demo" and spec.items_version != ITEMS_VERSION:
        raise EvaluationError(
            f"the spec asks for version {spec.items_version} of the demo items, this package has {ITEMS_VERSION}: "
            "make the spec anew, or install the package that made it"
        )
    if spec.source != "path":
        return
    folder = given(benchmarks)
    sources, index = verified_sources(spec, folder), stock_tasks(spec.tasks).task_index
    for task, source in sources.items():
        expected, found = hub_source(index[task].cfg), source.model_dump(include={"dataset", "config", "split"})
        if found != expected:
            raise EvaluationError(
                f"{folder / task} holds {described(**found)}, but lm-eval's task '{task}' scores "
                f"{described(**expected)}: fetch the benchmarks into another folder with this version of lm-eval"
            )


def provenance(spec: ZeroShotSpec, *, benchmarks: Path | None) -> dict[str, Any]:
    """What a reader needs to know of the items behind a score; `data` has an entry a task, but for the demo's items.

    Args:
        benchmarks: as `load_tasks` takes it.

    Raises:
        EvaluationError: as `load_tasks`, for a folder.
    """
    index = stock_tasks(spec.tasks).task_index
    data: dict[str, dict[str, Any]] = {}
    if spec.source == "hub":
        data = {
            task: {**hub_source(index[task].cfg), "revision": spec.revisions.get(task, "main")} for task in spec.tasks
        }
    elif spec.source == "path":
        data = as_details(verified_sources(spec, given(benchmarks)))
    return {
        "lm_eval": importlib.metadata.version("lm-eval"),
        "task_versions": {task: index[task].cfg["metadata"]["version"] for task in spec.tasks},
        "source": spec.source,
        "items_version": spec.items_version if spec.source == "demo" else None,
        "data": data,
    }


def stock_tasks(tasks: Iterable[str]) -> Any:
    """lm-eval's task manager over the folders of these tasks only: indexing all of its tasks takes 8 s."""
    import lm_eval.tasks

    root = Path(lm_eval.tasks.__file__).parent
    folders = sorted({root / benchmark(task).folder for task in tasks})
    return lm_eval.tasks.TaskManager(include_path=folders, include_defaults=False)


def hub_source(stock: dict[str, Any]) -> dict[str, Any]:
    """The data set, its configuration and the split that a stock task scores, from its YAML."""
    return {
        "dataset": stock["dataset_path"],
        "config": stock["dataset_name"],
        "split": stock.get("test_split") or stock["validation_split"],
    }


def redirected(members: list[dict[str, Any]]) -> dict[str, Any]:
    """Stock tasks with some of their keys changed, as a group: only inside one does lm-eval merge the two."""
    return stock_tasks([member["task"] for member in members]).load([{"group": "data", "task": members}])["tasks"]


def demo_tasks(spec: ZeroShotSpec, held_out: Iterable["Document"], folder: Path) -> dict[str, Any]:
    members = []
    for task in spec.tasks:
        items = DEMO_ITEMS / f"{task}.jsonl"
        if task == "wikitext":
            items = folder / items.name
            write_pages(items, held_out)
        members.append(local_source(task, items, folder / "cache"))
    return redirected(members)


def hub_tasks(spec: ZeroShotSpec) -> dict[str, Any]:
    tasks: dict[str, Any] = {}
    for task in spec.tasks:
        pin = {"dataset_kwargs": {"revision": spec.revisions[task]}} if task in spec.revisions else {}
        try:
            tasks |= redirected([{"task": task, **pin}])
        except Exception as error:  # whatever `datasets` and its HTTP client raise without a network or a cached copy
            if isinstance(error, ConnectionError):
                stay_offline()
            dataset = stock_tasks([task]).task_index[task].cfg["dataset_path"]
            raise EvaluationError(
                f"task '{task}' needs the Hugging Face data set '{dataset}', which can't be loaded "
                f"({cause(error)}): with a network unset HF_HUB_OFFLINE; without one fetch the benchmarks beforehand "
                "(`tlm-repro fetch-benchmarks`, source path), or take the demo's items"
            ) from error
    return tasks


def stay_offline() -> None:
    """What isn't in the cache then fails at once: without a network each further data set would be half a minute."""
    import datasets
    import huggingface_hub

    datasets.config.HF_HUB_OFFLINE = True
    huggingface_hub.constants.HF_HUB_OFFLINE = True


def described(dataset: str, config: str | None, split: str) -> str:
    return f"{dataset} ({config}, {split})" if config else f"{dataset} ({split})"


def cause(error: Exception) -> str:
    """One line of an error of a library that raises dozens of unrelated types."""
    if type(error).__name__ == "DatasetGenerationError" and isinstance(error.__cause__, Exception):
        error = error.__cause__  # it says only that there was one
    reason = next(iter(str(error).strip().splitlines()), "no reason given")
    return f"{type(error).__name__}: {reason}"


def write_pages(path: Path, held_out: Iterable["Document"]) -> None:
    lines = [json.dumps(page, ensure_ascii=False) for page in demo_pages(held_out)]
    if not lines:
        raise EvaluationError("no held-out document for word perplexity: raise the data's validation_fraction")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
