"""What the workflow's folders say of its runs: finished products, rows, checkpoints, the last attempt, its log.

Everything here only reads, and may run while a run is being trained: a line or a file that isn't whole yet is passed
over. Of long files only the end is read. No torch here.
"""

import contextlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tlm_repro.artifacts.files import read_json
from tlm_repro.errors import ArtifactError
from tlm_repro.spec.data import DataSpec
from tlm_repro.training.attempt import ATTEMPT, Attempt
from tlm_repro.training.metrics import METRICS, TIMING

BLOCK = 2**18  # bytes read at a time from the end of a file
SEARCHED = 2**23  # bytes from the end in which a validation loss is looked for
SPEED_ROWS = 100
ERROR = "tlm-repro: error: "
TRACEBACK = "Traceback (most recent call last):"
# A launcher's own traceback says only that a rank failed.
LAUNCHER = "torch.distributed.elastic"


@dataclass(frozen=True)
class Rows:
    """The end of `metrics.jsonl`. `tokens_per_second` is the median of the last steps; `written` a Unix time."""

    step: int
    loss: float | None
    validation_loss: float | None
    tokens_per_second: float | None
    written: float


@dataclass(frozen=True)
class Saved:
    """The newest checkpoint; `written` is a Unix time."""

    step: int
    written: float


@dataclass(frozen=True)
class Log:
    """The end of an attempt's log: how it failed, or whether it waits for another process; `written` a Unix time."""

    error: str | None
    waiting: bool
    written: float


def manifest(folder: Path, id: str) -> dict[str, Any] | None:
    """The plain values of a product's manifest if it is there, readable and of this id; its files aren't looked at."""
    with contextlib.suppress(ArtifactError):
        raw = read_json(folder / "manifest.json")
        if isinstance(raw, dict) and raw.get("id") == id and isinstance(raw.get("summary"), dict):
            return raw
    return None


def finished_manifest(results: Path, run: str) -> dict[str, Any] | None:
    """The manifest of a trained run, None while it isn't finished."""
    return manifest(results / "models" / run, run)


def data_summary(data: DataSpec, results: Path) -> dict[str, Any] | None:
    """What the manifest of a tokenised data set says of it, None while there is none."""
    found = manifest(results / "data" / data.name, data.name)
    return None if found is None else found["summary"]


def last_rows(checkpoints: Path) -> Rows | None:
    """What the newest rows say, None where there is none."""
    path = checkpoints / METRICS
    try:
        written = path.stat().st_mtime
        tail = _parsed(tail_bytes(path, BLOCK))
    except OSError:
        return None
    if not tail:
        return None
    speeds = sorted(row[TIMING] for row in tail[-SPEED_ROWS:] if isinstance(row.get(TIMING), int | float))
    return Rows(
        step=tail[-1]["step"],
        loss=tail[-1].get("loss"),
        validation_loss=_last_validation(path, tail),
        tokens_per_second=speeds[len(speeds) // 2] if speeds else None,
        written=written,
    )


def tail_bytes(path: Path, size: int) -> bytes:
    """The last `size` bytes of a file, from the first line that begins there."""
    with path.open("rb") as file:
        length = file.seek(0, 2)
        file.seek(max(0, length - size))
        text = file.read(size)
    return text if length <= size else text.partition(b"\n")[2]


def _parsed(text: bytes) -> list[dict[str, Any]]:
    rows = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):  # the line that is being written, or that a kill cut short
            row = json.loads(line)
            if isinstance(row, dict) and isinstance(row.get("step"), int):
                rows.append(row)
    return rows


def _last_validation(path: Path, tail: list[dict[str, Any]]) -> float | None:
    """The newest validation loss; it stands in few rows, so further back lines are searched before they are parsed."""
    for row in reversed(tail):
        if row.get("validation_loss") is not None:
            return row["validation_loss"]
    lines = [line for line in tail_bytes(path, SEARCHED).splitlines() if b'"validation_loss"' in line]
    rows = [row for row in _parsed(b"\n".join(lines[-2:])) if row.get("validation_loss") is not None]
    return rows[-1]["validation_loss"] if rows else None


def newest_checkpoint(checkpoints: Path) -> Saved | None:
    """The newest whole checkpoint by its name; whether it is intact shows when it is read."""
    found = [path for path in checkpoints.glob("step-*") if re.fullmatch(r"step-\d{8,}", path.name)]
    for path in sorted(found, reverse=True):
        with contextlib.suppress(OSError):  # dropped in this moment
            return Saved(int(path.name.removeprefix("step-")), (path / "state.json").stat().st_mtime)
    return None


def last_attempt(checkpoints: Path) -> Attempt | None:
    """Who trained last, and on what; None where no attempt was recorded."""
    with contextlib.suppress(ArtifactError):
        return Attempt.from_values(read_json(checkpoints / ATTEMPT))
    return None


def read_log(path: Path) -> Log | None:
    """The end of a log, None where there is none. What comes before the last progress line is past."""
    try:
        written = path.stat().st_mtime
        lines = tail_bytes(path, BLOCK).decode("utf-8", errors="replace").splitlines()
    except OSError:
        return None
    plain = [re.sub(r"^\[rank\d+\]:\s?", "", line) for line in lines]
    past = max((index for index, line in enumerate(plain) if re.match(r"step \d+/\d+, loss ", line)), default=-1)
    recent = plain[past + 1 :]
    last = next((line for line in reversed(recent) if line.strip()), "")
    return Log(error=failure(recent), waiting=last.startswith("waiting for another process"), written=written)


def failure(lines: list[str]) -> str | None:
    """Our own last error line, without its head, else the line that a traceback ends with; None: neither is there."""
    own = [line.removeprefix(ERROR) for line in lines if line.startswith(ERROR)]
    if own:
        return own[-1]
    starts = [index for index, line in enumerate(lines) if line.strip() == TRACEBACK]
    raised = [next((line for line in lines[start + 1 :] if line and not line[0].isspace()), "") for start in starts]
    causes = [line for line in raised if line and not line.startswith(LAUNCHER)] or [line for line in raised if line]
    return causes[-1] if causes else None
