"""The progress of runs in the workflow's folders: manifests, metrics, checkpoints, attempts, logs.

Everything here only reads, also while a run is training: an incomplete line or file is ignored. Only the end of a long
file is read. Doesn't import torch.
"""

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

from tlm_repro.artifacts.files import read_json
from tlm_repro.errors import ArtifactError
from tlm_repro.records.attempt import ATTEMPT, Attempt
from tlm_repro.records.manifests import DataManifest, DataSummary, ModelManifest
from tlm_repro.records.metrics import METRICS, MetricsRow, parse_rows
from tlm_repro.spec.data import DataSpec

BLOCK = 2**18  # bytes read at a time from the end of a file
SEARCHED = 2**23  # bytes at the end of a file that are searched for a validation loss
SPEED_ROWS = 100
ERROR = "tlm-repro: error: "
TRACEBACK = "Traceback (most recent call last):"
LAUNCHER = "torch.distributed.elastic"  # its traceback says only that a rank failed


@dataclass(frozen=True)
class LastRows:
    """The last rows of `metrics.jsonl`. `tokens_per_second` is the median of the last steps; `written`, a Unix time."""

    step: int
    loss: float | None
    validation_loss: float | None
    tokens_per_second: float | None
    written: float


@dataclass(frozen=True)
class SavedCheckpoint:
    """The newest checkpoint. `written` is a Unix time."""

    step: int
    written: float


@dataclass(frozen=True)
class LogEnd:
    """The end of an attempt's log: its error, and whether it waits for another process. `written` is a Unix time."""

    error: str | None
    waiting: bool
    written: float


def finished_manifest(results: Path, run: str) -> ModelManifest | None:
    """The manifest of a trained run, or None if it isn't finished. Its files aren't checked."""
    path = results / "models" / run / "manifest.json"
    with contextlib.suppress(ArtifactError):
        return ModelManifest.from_values(read_json(path), path)
    return None


def data_summary(data: DataSpec, results: Path) -> DataSummary | None:
    """The summary in the manifest of a tokenised data set, or None if it isn't finished. Its files aren't checked."""
    path = results / "data" / data.name / "manifest.json"
    with contextlib.suppress(ArtifactError):
        return DataManifest.from_values(read_json(path), path).summary
    return None


def last_rows(checkpoints: Path) -> LastRows | None:
    """The newest metrics of a run, or None if there are none."""
    path = checkpoints / METRICS
    try:
        written = path.stat().st_mtime
        tail = parse_rows(tail_bytes(path, BLOCK).splitlines())
    except OSError:
        return None
    if not tail:
        return None
    speeds = sorted(row.tokens_per_second for row in tail[-SPEED_ROWS:] if row.tokens_per_second is not None)
    return LastRows(
        step=tail[-1].step,
        loss=tail[-1].loss,
        validation_loss=_last_validation(path, tail),
        tokens_per_second=speeds[len(speeds) // 2] if speeds else None,
        written=written,
    )


def tail_bytes(path: Path, size: int) -> bytes:
    """The last `size` bytes of a file, from the first complete line."""
    with path.open("rb") as file:
        length = file.seek(0, 2)
        file.seek(max(0, length - size))
        text = file.read(size)
    return text if length <= size else text.partition(b"\n")[2]


def _last_validation(path: Path, tail: list[MetricsRow]) -> float | None:
    """The newest validation loss. Few rows have one, so lines before `tail` are searched before they are parsed."""
    for row in reversed(tail):
        if row.validation_loss is not None:
            return row.validation_loss
    lines = [line for line in tail_bytes(path, SEARCHED).splitlines() if b'"validation_loss"' in line]
    rows = [row for row in parse_rows(lines[-2:]) if row.validation_loss is not None]
    return rows[-1].validation_loss if rows else None


def newest_checkpoint(checkpoints: Path) -> SavedCheckpoint | None:
    """The newest complete checkpoint, by its name. Its content isn't checked."""
    folders = [path for path in checkpoints.glob("step-*") if re.fullmatch(r"step-\d{8,}", path.name)]
    for path in sorted(folders, reverse=True):
        with contextlib.suppress(OSError):  # deleted in the meantime
            return SavedCheckpoint(int(path.name.removeprefix("step-")), (path / "state.json").stat().st_mtime)
    return None


def last_attempt(checkpoints: Path) -> Attempt | None:
    """The last attempt at a run, or None if none is recorded."""
    with contextlib.suppress(ArtifactError):
        return Attempt.read(checkpoints / ATTEMPT)
    return None


def read_log(path: Path) -> LogEnd | None:
    """The end of a log, or None without a log. Lines before the last progress line are ignored."""
    try:
        written = path.stat().st_mtime
        lines = tail_bytes(path, BLOCK).decode("utf-8", errors="replace").splitlines()
    except OSError:
        return None
    plain = [re.sub(r"^\[rank\d+\]:\s?", "", line) for line in lines]
    progress = max((index for index, line in enumerate(plain) if re.match(r"step \d+/\d+, loss ", line)), default=-1)
    recent = plain[progress + 1 :]
    last = next((line for line in reversed(recent) if line.strip()), "")
    return LogEnd(error=last_error(recent), waiting=last.startswith("waiting for another process"), written=written)


def last_error(lines: list[str]) -> str | None:
    """The last error message of this package, else the last line of a traceback, else None."""
    messages = [line.removeprefix(ERROR) for line in lines if line.startswith(ERROR)]
    if messages:
        return messages[-1]
    starts = [index for index, line in enumerate(lines) if line.strip() == TRACEBACK]
    raised = [next((line for line in lines[start + 1 :] if line and not line[0].isspace()), "") for start in starts]
    causes = [line for line in raised if line and not line.startswith(LAUNCHER)] or [line for line in raised if line]
    return causes[-1] if causes else None
