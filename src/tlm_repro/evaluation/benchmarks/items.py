"""Where the items of a benchmark come from: lm-eval's tasks over demo items, a fetched folder, the hub or own files."""

import importlib.metadata
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlm_repro.artifacts.checksums import sha256_file
from tlm_repro.errors import EvaluationError
from tlm_repro.evaluation.benchmarks.demo_items import DEMO_ITEMS, ITEMS_VERSION, demo_pages
from tlm_repro.evaluation.benchmarks.folder import ITEMS, as_details, required_folder, verified_sources
from tlm_repro.evaluation.benchmarks.lm_eval_tasks import LmEvalTask, lm_eval_task
from tlm_repro.evaluation.inputs import NO_FILES, ItemFiles
from tlm_repro.spec.evaluation import ZeroShotSpec

if TYPE_CHECKING:
    from tlm_repro.data.readers.base import Document


def load_tasks(
    spec: ZeroShotSpec, *, held_out: Iterable["Document"] = (), files: ItemFiles = NO_FILES, folder: Path
) -> dict[str, Any]:
    """All tasks of a spec by name, as `load_task` gives them. Raises EvaluationError as it and `check_items` do."""
    check_items(spec, files)
    return {task: load_task(spec, task, held_out=held_out, files=files, folder=folder) for task in spec.all_tasks}


def load_task(spec: ZeroShotSpec, task: str, *, held_out: Iterable["Document"], files: ItemFiles, folder: Path) -> Any:
    """lm-eval's task object, with the prompts, metrics and aggregation of the stock task.

    Args:
        held_out: documents that stand for WikiText's pages when the source is the demo's; not read otherwise.
        files: the items on this machine; `check_items` checks them.
        folder: takes temporary files; it must exist for as long as the task is used.

    Raises:
        EvaluationError: no held-out document, or a data set that can't be loaded.
    """
    import datasets

    datasets.disable_progress_bars()
    items = item_file(spec, task, held_out, files, folder)
    known = lm_eval_task(task)
    if items is None:
        return hub_task(known, spec.revisions.get(task))
    keys = known.from_file(items, folder / "cache")
    return own_task(known, items, keys) if task in spec.own_items else known.load(keys)


def own_task(known: LmEvalTask, items: Path, keys: dict[str, Any]) -> Any:
    """lm-eval's task object over a user's own file. Raises EvaluationError where its rows don't fit the task."""
    try:
        return known.load(keys)
    except Exception as error:  # of `datasets`, Jinja's, and whatever functions of lm-eval's tasks raise
        raise EvaluationError(
            f"--items {known.name}={items}: lm-eval's task can't read it ({cause(error)}). It must hold one JSON "
            f"object a line, in the schema of {described(**known.source)}"
        ) from error


def item_file(
    spec: ZeroShotSpec, task: str, held_out: Iterable["Document"], files: ItemFiles, folder: Path
) -> Path | None:
    """The local file of a task's items; None for a task of the hub. WikiText's demo pages are written to `folder`."""
    if task in spec.own_items:
        return files.own_file(task)
    if spec.source == "path":
        return required_folder(files.folder) / task / ITEMS
    if spec.source == "hub":
        return None
    if task == "wikitext":
        write_pages(folder / "wikitext.jsonl", held_out)
        return folder / "wikitext.jsonl"
    return DEMO_ITEMS / f"{task}.jsonl"


def check_items(spec: ZeroShotSpec, files: ItemFiles) -> None:
    """Checks tasks, metrics and the items on this machine against the spec, in seconds.

    Raises:
        EvaluationError: lm-eval has no such task or metric, or the items aren't those that the spec asks for.
    """
    for entry in spec.additional:
        lm_eval_task(entry.task).score(entry.metric)
    if spec.source == "demo" and spec.items_version != ITEMS_VERSION:
        raise EvaluationError(
            f"the spec asks for version {spec.items_version} of the demo items, this package has {ITEMS_VERSION}: "
            "make the spec anew, or install the package that made it"
        )
    for task, expected in spec.own_items.items():
        check_own_file(task, files.own_file(task), expected)
    if spec.source != "path":
        return
    folder = required_folder(files.folder)
    for task, source in verified_sources(spec, folder).items():
        scored, seen = lm_eval_task(task).source, source.model_dump(include={"dataset", "config", "split"})
        if seen != scored:
            raise EvaluationError(
                f"{folder / task} holds {described(**seen)}, but lm-eval's task '{task}' scores "
                f"{described(**scored)}: fetch the benchmarks into another folder with this version of lm-eval"
            )


def check_own_file(task: str, file: Path, expected: str) -> None:
    """Raises EvaluationError if the file can't be read or isn't the one that the spec was made with."""
    try:
        seen = sha256_file(file)
    except OSError as error:
        raise EvaluationError(
            f"--items {task}={file}: it can't be read ({error.strerror}). Name a JSONL file"
        ) from None
    if seen != expected:
        raise EvaluationError(
            f"--items {task}={file}: its sha256 is {seen}, the spec asks for {expected}. Pass the file that the spec "
            "was made with, or make the spec anew"
        )


def provenance(spec: ZeroShotSpec, files: ItemFiles = NO_FILES) -> dict[str, Any]:
    """Where the items behind the scores come from, for an evaluation file. `data` has no entry for the demo's items.

    Raises:
        EvaluationError: as `check_items`, for a folder.
    """
    data: dict[str, dict[str, Any]] = {task: {"sha256": sha256} for task, sha256 in spec.own_items.items()}
    if spec.source == "hub":
        data |= {
            task: {**lm_eval_task(task).source, "revision": spec.revisions.get(task, "main")}
            for task in spec.source_tasks
        }
    elif spec.source == "path":
        data |= as_details(verified_sources(spec, required_folder(files.folder)))
    return {
        "lm_eval": importlib.metadata.version("lm-eval"),
        "task_versions": {task: lm_eval_task(task).version for task in spec.all_tasks},
        "source": spec.source,
        "items_version": spec.items_version if spec.source == "demo" else None,
        "data": data,
    }


def hub_task(known: LmEvalTask, revision: str | None) -> Any:
    """lm-eval's task object over the hub's data set."""
    try:
        return known.load(known.from_hub(revision))
    except Exception as error:  # whatever `datasets` and its HTTP client raise without a network or a cached copy
        if isinstance(error, ConnectionError):
            stay_offline()
        raise EvaluationError(
            f"task '{known.name}' needs the Hugging Face data set '{known.dataset}', which can't be loaded "
            f"({cause(error)}): with a network unset HF_HUB_OFFLINE; without one fetch the benchmarks beforehand "
            "(`tlm-repro fetch-benchmarks`, source path)"
        ) from error


def stay_offline() -> None:
    """Makes uncached data sets fail at once: without a network each would take half a minute."""
    import datasets
    import huggingface_hub

    datasets.config.HF_HUB_OFFLINE = True
    huggingface_hub.constants.HF_HUB_OFFLINE = True


def described(dataset: str, config: str | None, split: str) -> str:
    return f"{dataset} ({config}, {split})" if config else f"{dataset} ({split})"


def cause(error: Exception) -> str:
    """Type and first line of another library's error."""
    if type(error).__name__ == "DatasetGenerationError" and isinstance(error.__cause__, Exception):
        error = error.__cause__  # it says only that there was one
    reason = next(iter(str(error).strip().splitlines()), "no reason given")
    return f"{type(error).__name__}: {reason}"


def write_pages(path: Path, held_out: Iterable["Document"]) -> None:
    lines = [json.dumps(page, ensure_ascii=False) for page in demo_pages(held_out)]
    if not lines:
        raise EvaluationError("no held-out document for word perplexity: raise the data's validation_fraction")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
