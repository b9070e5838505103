"""Fetches benchmarks once, on a machine with a network, for evaluation on machines without one."""

import contextlib
import importlib.metadata
import io
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlm_repro.artifacts.files import check_folder_is_ours, read_json, staging, write_json
from tlm_repro.artifacts.fingerprint import fingerprint
from tlm_repro.artifacts.lock import exclusive
from tlm_repro.errors import ArtifactError, ConfigError, EvaluationError
from tlm_repro.evaluation.benchmarks.demo_items import DEMO_ITEMS
from tlm_repro.evaluation.benchmarks.folder import ITEMS, KIND, MANIFEST, SOURCE, rows_sha256, saved_source
from tlm_repro.evaluation.benchmarks.items import cause, described
from tlm_repro.evaluation.benchmarks.lm_eval_tasks import LmEvalTask, lm_eval_task
from tlm_repro.records.manifests import BenchmarksManifest, Source
from tlm_repro.spec.benchmarks import PAPER_TASKS

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class Request:
    """A task whose items to fetch, at a revision of the hub's data set or (`revision` is None) from a mirror."""

    task: LmEvalTask
    revision: str | None
    mirror: Path | None

    @property
    def name(self) -> str:
        return described(**self.task.source)

    def matches(self, source: Source) -> bool:
        """Whether the saved items are those asked for, by the same revision or by the commit that it stood for."""
        same = source.model_dump(include={"dataset", "config", "split"}) == self.task.source
        return same and (self.revision == source.revision or (self.revision or "") == source.commit)


def fetch(
    folder: Path,
    tasks: Iterable[str] = (),
    *,
    revisions: Mapping[str, str] | None = None,
    mirror: Path | None = None,
    report: Callable[[str], None] = print,
) -> Path:
    """Saves the items that lm-eval's tasks score and returns the path of the folder's manifest.

    Items that an earlier call saved whole are kept, even if that call was interrupted. The manifest is written last.

    Args:
        tasks: lm-eval's names; none: the paper's.
        revisions: branch, tag or commit of a task's data set; `main` where none is given.
        mirror: a folder that holds the data sets as the hub does, `<mirror>/<owner>/<name>`, taken instead of it.
        report: takes a line for each task.

    Raises:
        ConfigError: a revision of a task that isn't fetched, or of a mirror.
        EvaluationError: an unknown task, a data set that can't be loaded or has another schema than its task expects,
            or a folder that holds other revisions.
    """
    start, names = time.perf_counter(), list(dict.fromkeys(tasks)) or list(PAPER_TASKS)
    requests = plan(names, revisions or {}, mirror)
    check_only_benchmarks(folder, names)
    with exclusive(folder):
        saved = saved_sources(folder)
        for request in requests:
            check_same_items(folder, request, saved.get(request.task.name))
        for request in requests:
            task = request.task.name
            if task in saved:
                report(f"{task}: {saved[task].rows:,} items, here already")
                continue
            source = saved[task] = fetch_task(folder, request, sorted(saved))
            report(f"{task}: {source.rows:,} items of {request.name} {place(source.commit or request.revision)}")
        sources = {task: saved[task].model_dump() for task in table_order(saved)}
        return BenchmarksManifest.write_product(
            folder,
            id=f"benchmarks-{fingerprint({task: source['sha256'] for task, source in sources.items()})}",
            spec={"tasks": {task: {"revision": source["revision"]} for task, source in sources.items()}},
            summary={"tasks": sources},
            files=[folder / task / name for task in sources for name in (ITEMS, SOURCE)],
            device="cpu",
            wall_time_s=time.perf_counter() - start,
        )


def saved_sources(folder: Path) -> dict[str, Source]:
    """Task → where the items came from that earlier calls saved whole."""
    tasks = [path.parent.name for path in folder.glob(f"*/{SOURCE}")]
    return {task: source for task in tasks if (source := saved_source(folder, task))}


def table_order(tasks: Iterable[str]) -> list[str]:
    """The paper's tasks in the order of Table 2, then the others by name."""
    return sorted(tasks, key=lambda task: (PAPER_TASKS.index(task) if task in PAPER_TASKS else len(PAPER_TASKS), task))


def plan(tasks: list[str], revisions: Mapping[str, str], mirror: Path | None) -> list[Request]:
    """What to fetch, from the tasks' own YAML."""
    if stray := [task for task in revisions if task not in tasks]:
        raise ConfigError(f"--revision {stray[0]}: this task isn't fetched: add --task {stray[0]}, or leave it out")
    if mirror and revisions:
        raise ConfigError("--revision with --mirror: a mirror holds one revision: leave one of them out")
    if mirror and not mirror.is_dir():
        raise ConfigError(f"--mirror {mirror}: no such folder: pass one that holds <owner>/<name> for each data set")
    return [Request(lm_eval_task(task), None if mirror else revisions.get(task, "main"), mirror) for task in tasks]


def check_only_benchmarks(folder: Path, tasks: Iterable[str]) -> None:
    """Raises ArtifactError if the folder holds anything else, such as a run: its manifest would be overwritten."""
    try:
        manifest = read_json(folder / MANIFEST)
    except ArtifactError:  # absent or damaged: it is written again
        manifest = {}
    if isinstance(manifest, dict) and manifest.get("kind") == KIND:
        return
    saved = [path.parent.name for path in folder.glob(f"*/{SOURCE}")]
    check_folder_is_ours(folder, [*tasks, *saved, *(() if manifest else (MANIFEST,))])


def check_same_items(folder: Path, request: Request, source: Source | None) -> None:
    """Raises EvaluationError if the folder holds something else under the task's name."""
    path = folder / request.task.name
    if source is None and path.exists() and not (path / SOURCE).is_file():
        raise EvaluationError(f"{path} isn't of this command's making: choose another --out")
    if source is None or request.matches(source):
        return
    seen = f"{described(source.dataset, source.config, source.split)} {place(source.revision)}"
    raise EvaluationError(
        f"{path} holds {seen}, this call asks for {request.name} {place(request.revision)}: a folder has one revision "
        "of each data set; choose another --out, or ask for that one"
    )


def place(revision: str | None) -> str:
    return f"at {revision}" if revision else "from a mirror"


def fetch_task(folder: Path, request: Request, finished: list[str]) -> Source:
    """Saves one task's items. The folder `<task>` appears once they are whole and the task can read them."""
    task = request.task
    with tempfile.TemporaryDirectory(prefix="tlm-fetch-") as cache:
        try:
            rows, commit = mirror_rows(request, Path(cache)) if request.mirror else hub_rows(request)
        except Exception as error:  # `datasets` and the hub's client raise dozens of unrelated types
            remedy = (
                f"{request.mirror / task.dataset} must be a folder that `datasets.load_dataset` loads"
                if request.mirror
                else "run this where there is a network (HF_HUB_OFFLINE=1 forbids one), or pass --mirror"
            )
            rest = f"; {', '.join(finished)} are kept: run the same command again to fetch the rest" if finished else ""
            raise EvaluationError(
                f"the data set {request.name} of task '{task.name}' can't be loaded ({cause(error)}): {remedy}{rest}"
            ) from error
        with staging(folder, task.name) as temporary:
            rows.to_parquet(temporary / ITEMS)
            source = Source(
                **task.source,
                revision=request.revision,
                commit=commit,
                rows=len(rows),
                sha256=rows_sha256(temporary / ITEMS),
                task_version=task.version,
                lm_eval=importlib.metadata.version("lm-eval"),
            )
            check_schema(request, temporary / ITEMS, Path(cache))
            write_json(temporary / SOURCE, source.model_dump())
    return source


def hub_rows(request: Request) -> tuple[Any, str | None]:
    """The rows, and the commit that the revision stands for now."""
    import datasets
    import huggingface_hub

    datasets.disable_progress_bars()
    task = request.task
    commit = huggingface_hub.HfApi().dataset_info(task.dataset, revision=request.revision).sha
    revision = commit or request.revision
    return datasets.load_dataset(task.dataset, task.config, split=task.split, revision=revision, **task.options), commit


def mirror_rows(request: Request, cache: Path) -> tuple[Any, None]:
    import datasets

    datasets.disable_progress_bars()
    task = request.task
    place = (request.mirror or Path()) / task.dataset
    if not place.is_dir():
        raise FileNotFoundError("no such folder")
    rows = datasets.load_dataset(str(place), task.config, split=task.split, cache_dir=str(cache), **task.options)
    return rows, None


def check_schema(request: Request, items: Path, cache: Path) -> None:
    """Raises EvaluationError if a field is empty or the task's own functions can't make requests from a row.

    An empty field would appear in prompts as the word "None". The demo's items show which fields the paper's tasks
    have. Other tasks may have empty fields, which their prompts needn't read.
    """
    import pyarrow.parquet

    task = request.task
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # a progress bar for a few items
            task.load(task.from_file(items, cache / "check")).build_all_requests(rank=0, world_size=1)
        check_fields(task.name, pyarrow.parquet.read_table(items))
    except Exception as error:  # Jinja's, and whatever functions of lm-eval's tasks raise on unknown rows
        raise EvaluationError(
            f"the data set {request.name} isn't in the schema that lm-eval's task '{task.name}' reads "
            f"({cause(error)}): take the hub's own, at a revision that fits lm-eval "
            f"{importlib.metadata.version('lm-eval')}"
        ) from error


def check_fields(task: str, rows: "pyarrow.Table") -> None:
    """Raises ValueError naming a field that the task's schema has and a row doesn't."""
    for field in fields_of(task):
        empty = rows[field].null_count if field in rows.column_names else rows.num_rows
        if empty:
            raise ValueError(f"{empty:,} of {rows.num_rows:,} rows have no '{field}'")


def fields_of(task: str) -> list[str]:
    """The fields that every row of one of the paper's tasks has; none for other tasks."""
    if task == "wikitext":
        return ["page"]
    if task not in PAPER_TASKS:
        return []
    with (DEMO_ITEMS / f"{task}.jsonl").open(encoding="utf-8") as file:
        return list(json.loads(file.readline()))
