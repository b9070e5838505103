"""A folder of fetched benchmarks: the items that lm-eval's tasks score, in the hub's own schema.

`<task>/items.parquet` holds the rows of the one split that is scored, `<task>/source.json` says where they came from,
and `manifest.json`, written last, lists both. The workflow reads it when it parses, so no tensor library is imported.
"""

import hashlib
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from tlm_repro.artifacts.fingerprint import canonical_json, fingerprint
from tlm_repro.errors import ArtifactError, EvaluationError
from tlm_repro.records.manifests import BenchmarksManifest, Source
from tlm_repro.spec.evaluation import ZeroShotSpec

KIND: Literal["benchmarks"] = "benchmarks"
ITEMS, SOURCE, MANIFEST = "items.parquet", "source.json", "manifest.json"


def rows_sha256(path: Path) -> str:
    """The sha256 of a Parquet file's rows as canonical JSON, one line per row.

    Parquet files of the same rows differ between versions of the library that writes them. This hash doesn't, so two
    clusters that fetch the same items give their evaluations the same ids.
    """
    import pyarrow.parquet

    digest = hashlib.sha256()
    for row in pyarrow.parquet.read_table(path).to_pylist():
        digest.update(canonical_json(row).encode() + b"\n")
    return digest.hexdigest()


def remedy(folder: Path, tasks: Iterable[str] = ()) -> str:
    """What to do where items are missing, as a part of a message."""
    options = "".join(f" --task {task}" for task in tasks)
    return f"run `tlm-repro fetch-benchmarks --out {shlex.quote(str(folder))}{options}` where there is a network"


def read_sources(
    folder: Path, tasks: Iterable[str], *, verify: Literal["size", "sha256"] = "size"
) -> dict[str, Source]:
    """Where the items of these tasks came from. Checks the folder's files against its manifest first.

    Raises:
        EvaluationError: no folder of fetched benchmarks, a task that isn't in it, or a file that differs from its
            manifest, by size or by sha256 too; the message names `fetch-benchmarks`.
    """
    if not (folder / MANIFEST).is_file():
        seen = "has no manifest.json" if folder.is_dir() else "is a file" if folder.exists() else "doesn't exist"
        raise EvaluationError(f"{folder}, the folder of the fetched benchmarks, {seen}: {remedy(folder)}")
    try:
        saved = BenchmarksManifest.read(folder / MANIFEST, verify=verify).summary.tasks
    except ArtifactError as error:
        seen = re.split(r"[:.] [Dd]elete ", str(error))[0]
        raise EvaluationError(f"{seen}: {remedy(folder)} to replace what is missing or damaged") from None
    missing = [task for task in tasks if task not in saved]
    if missing:
        raise EvaluationError(
            f"{folder} holds no items of {', '.join(missing)}, only of {', '.join(saved)}: {remedy(folder, missing)}"
        )
    return {task: saved[task] for task in tasks}


def items_fingerprint(sources: dict[str, Source]) -> str:
    """The hash of the tasks' items that a spec holds. It changes when any row does."""
    return fingerprint({task: source.sha256 for task, source in sources.items()}, length=16)


def required_folder(folder: Path | None) -> Path:
    """The folder that a spec of source `path` needs. Raises EvaluationError if none was passed."""
    if folder is None:
        raise EvaluationError("the spec's source is path: pass --benchmarks, the folder that fetch-benchmarks made")
    return folder


def verified_sources(spec: ZeroShotSpec, folder: Path) -> dict[str, Source]:
    """Where the items that the spec names came from. Checks files and rows against the manifest and the spec first.

    Raises:
        EvaluationError: a folder that `read_sources` refuses, or one that holds other items.
    """
    sources = read_sources(folder, spec.source_tasks, verify="sha256")
    for task, source in sources.items():
        if rows_sha256(folder / task / ITEMS) != source.sha256:
            raise EvaluationError(
                f"{folder / task / ITEMS} holds other rows than {folder / MANIFEST} says: {remedy(folder)}"
            )
    if (items := items_fingerprint(sources)) != spec.items:
        raise EvaluationError(
            f"{folder} holds items {items} for these tasks, the spec asks for {spec.items}: pass the folder that the "
            "spec was made with, or make the spec anew"
        )
    return sources


def saved_source(folder: Path, task: str) -> Source | None:
    """Where the items came from that an earlier fetch saved of a task; None if there are none or they are damaged."""
    try:
        source = Source.read(folder / task / SOURCE)
        return source if rows_sha256(folder / task / ITEMS) == source.sha256 else None
    except (ArtifactError, OSError, ValueError):  # pyarrow's own errors are ValueErrors
        return None


def as_details(sources: dict[str, Source]) -> dict[str, dict[str, Any]]:
    """The sources as an evaluation file states them."""
    facts = {"dataset", "config", "split", "revision", "commit", "rows", "sha256"}
    return {task: source.model_dump(include=facts) for task, source in sources.items()}
