"""Benchmarks saved once, on a machine with a network, for evaluation on machines without one."""

import contextlib
import importlib.metadata
import io
import json
import logging
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlm_repro.artifacts.files import check_folder_is_ours, read_json, staging, write_json
from tlm_repro.artifacts.fingerprint import fingerprint
from tlm_repro.artifacts.lock import exclusive
from tlm_repro.artifacts.manifest import write_manifest
from tlm_repro.errors import ArtifactError, ConfigError, EvaluationError
from tlm_repro.evaluation.benchmarks.folder import ITEMS, KIND, MANIFEST, SOURCE, Source, rows_sha256, saved_source
from tlm_repro.evaluation.benchmarks.items import cause, described, hub_source, redirected, stock_tasks
from tlm_repro.evaluation.benchmarks.tasks import BENCHMARKS, DEMO_ITEMS, benchmark, local_source

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class Wanted:
    """The items of one task: `revision` is null for a mirror, a folder that holds `owner/name` for each data set."""

    task: str
    dataset: str
    config: str | None
    split: str
    revision: str | None
    mirror: Path | None

    @property
    def name(self) -> str:
        return described(self.dataset, self.config, self.split)

    def matches(self, source: Source) -> bool:
        """Whether it is what was saved; the commit that a branch stood for may be given in its place."""
        same = (source.dataset, source.config, source.split) == (self.dataset, self.config, self.split)
        return same and (self.revision == source.revision or (self.revision or "") == source.commit)


def fetch(
    folder: Path,
    tasks: Iterable[str] = (),
    *,
    revisions: Mapping[str, str] | None = None,
    mirror: Path | None = None,
    report: Callable[[str], None] = print,
) -> Path:
    """Saves the items that lm-eval's stock tasks score; returns the path of the folder's manifest.

    What an earlier call saved is kept if it is whole, also where that call died midway; the manifest comes last.

    Args:
        tasks: lm-eval's names; none: all of `BENCHMARKS`.
        revisions: branch, tag or commit of a task's data set; `main` where none is given.
        mirror: a folder that holds the data sets as the hub does, `<mirror>/<owner>/<name>`, taken instead of it.
        report: takes a line for each task.

    Raises:
        ConfigError: a revision of a task that isn't fetched, or of a mirror.
        EvaluationError: an unknown task, a data set that can't be had or has another schema than its task expects, or
            a folder that holds other revisions.
    """
    start, names = time.perf_counter(), list(dict.fromkeys(tasks)) or list(BENCHMARKS)
    wanted = plan(names, revisions or {}, mirror)
    check_only_benchmarks(folder)
    with exclusive(folder):
        found = {task: source for task in BENCHMARKS if (source := saved_source(folder, task))}
        for want in wanted:
            refuse_other(folder, want, found.get(want.task))
        for want in wanted:
            if want.task in found:
                report(f"{want.task}: {found[want.task].rows:,} items, here already")
                continue
            source = found[want.task] = fetch_task(folder, want, sorted(found))
            report(f"{want.task}: {source.rows:,} items of {want.name} {place(source.commit or want.revision)}")
        kept = {task: found[task].model_dump() for task in BENCHMARKS if task in found}
        return write_manifest(
            folder,
            kind=KIND,
            id=f"benchmarks-{fingerprint({task: source['sha256'] for task, source in kept.items()})}",
            spec={"tasks": {task: {"revision": source["revision"]} for task, source in kept.items()}},
            summary={"tasks": kept},
            files=[folder / task / name for task in kept for name in (ITEMS, SOURCE)],
            device="cpu",
            wall_time_s=time.perf_counter() - start,
        )


def plan(tasks: list[str], revisions: Mapping[str, str], mirror: Path | None) -> list[Wanted]:
    """What to fetch, from the stock tasks' own YAML."""
    for task in (*tasks, *revisions):
        benchmark(task)
    if stray := [task for task in revisions if task not in tasks]:
        raise ConfigError(f"--revision {stray[0]}: this task isn't fetched: add --task {stray[0]}, or leave it out")
    if mirror and revisions:
        raise ConfigError("--revision with --mirror: a mirror holds one revision: leave one of them out")
    if mirror and not mirror.is_dir():
        raise ConfigError(f"--mirror {mirror}: no such folder: pass one that holds <owner>/<name> for each data set")
    index = stock_tasks(tasks).task_index
    return [
        Wanted(
            task=task,
            **hub_source(index[task].cfg),
            revision=None if mirror else revisions.get(task, "main"),
            mirror=mirror,
        )
        for task in tasks
    ]


def check_only_benchmarks(folder: Path) -> None:
    """Raises ArtifactError where the folder holds other things, a run for example: its manifest would be lost."""
    try:
        manifest = read_json(folder / MANIFEST)
    except ArtifactError:  # none, or a damaged one, which is written anew
        manifest = {}
    if isinstance(manifest, dict) and manifest.get("kind") == KIND:
        return
    check_folder_is_ours(folder, [*BENCHMARKS, *(() if manifest else (MANIFEST,))])


def refuse_other(folder: Path, want: Wanted, found: Source | None) -> None:
    """Raises EvaluationError where the folder holds something else under the task's name."""
    if found is None and (folder / want.task).exists() and not (folder / want.task / SOURCE).is_file():
        raise EvaluationError(f"{folder / want.task} isn't of this command's making: choose another --out")
    if found is None or want.matches(found):
        return
    seen = f"{described(found.dataset, found.config, found.split)} {place(found.revision)}"
    raise EvaluationError(
        f"{folder / want.task} holds {seen}, this call asks for {want.name} {place(want.revision)}: a folder has one "
        "revision of each data set; choose another --out, or ask for that one"
    )


def place(revision: str | None) -> str:
    return f"at {revision}" if revision else "from a mirror"


def fetch_task(folder: Path, want: Wanted, finished: list[str]) -> Source:
    """Saves one task's items: the folder `<task>` appears when they are whole and its task can read them."""
    with tempfile.TemporaryDirectory(prefix="tlm-fetch-") as cache:
        try:
            rows, commit = mirror_rows(want, Path(cache)) if want.mirror else hub_rows(want)
        except Exception as error:  # `datasets` and the hub's client raise dozens of unrelated types
            remedy = (
                f"{want.mirror / want.dataset} must be a folder that `datasets.load_dataset` loads"
                if want.mirror
                else "run this where there is a network (HF_HUB_OFFLINE=1 forbids one), or pass --mirror"
            )
            kept = f"; {', '.join(finished)} are kept and the same command takes the rest" if finished else ""
            raise EvaluationError(
                f"the data set {want.name} of task '{want.task}' can't be had ({cause(error)}): {remedy}{kept}"
            ) from error
        with staging(folder, want.task) as temporary:
            rows.to_parquet(temporary / ITEMS)
            source = Source(
                dataset=want.dataset,
                config=want.config,
                split=want.split,
                revision=want.revision,
                commit=commit,
                rows=len(rows),
                sha256=rows_sha256(temporary / ITEMS),
                task_version=stock_tasks([want.task]).task_index[want.task].cfg["metadata"]["version"],
                lm_eval=importlib.metadata.version("lm-eval"),
            )
            check_schema(want, temporary / ITEMS, Path(cache))
            write_json(temporary / SOURCE, source.model_dump())
    return source


def hub_rows(want: Wanted) -> tuple[Any, str | None]:
    """The rows at the commit that the revision stands for now, and that commit."""
    import datasets
    import huggingface_hub

    datasets.disable_progress_bars()
    commit = huggingface_hub.HfApi().dataset_info(want.dataset, revision=want.revision).sha
    revision = commit or want.revision
    return datasets.load_dataset(want.dataset, want.config, split=want.split, revision=revision), commit


def mirror_rows(want: Wanted, cache: Path) -> tuple[Any, None]:
    import datasets

    datasets.disable_progress_bars()
    place = (want.mirror or Path()) / want.dataset
    if not place.is_dir():
        raise FileNotFoundError("no such folder")
    return datasets.load_dataset(str(place), want.config, split=want.split, cache_dir=str(cache)), None


def check_schema(want: Wanted, items: Path, cache: Path) -> None:
    """Raises EvaluationError where a field is empty, or the stock task's own functions can't make requests of a row.

    A field that no row has would stand in prompts as the word "None". What fields there are, the demo's items say.
    """
    import pyarrow.parquet

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # a progress bar for a few items
            task = redirected([local_source(want.task, items, cache / "check")])[want.task]
            task.build_all_requests(rank=0, world_size=1)
        check_fields(want.task, pyarrow.parquet.read_table(items))
    except Exception as error:  # Jinja's, and whatever functions of lm-eval's tasks raise on unknown rows
        raise EvaluationError(
            f"the data set {want.name} isn't in the schema that lm-eval's task '{want.task}' reads "
            f"({cause(error)}): take the hub's own, at a revision that fits lm-eval "
            f"{importlib.metadata.version('lm-eval')}"
        ) from error


def check_fields(task: str, rows: "pyarrow.Table") -> None:
    """Raises ValueError, naming the field, where rows lack one that the task's schema has."""
    for field in ["page"] if task == "wikitext" else demo_fields(task):
        empty = rows[field].null_count if field in rows.column_names else rows.num_rows
        if empty:
            raise ValueError(f"{empty:,} of {rows.num_rows:,} rows have no '{field}'")


def demo_fields(task: str) -> list[str]:
    with (DEMO_ITEMS / f"{task}.jsonl").open(encoding="utf-8") as file:
        return list(json.loads(file.readline()))
