"""Output of a run while it trains: one JSON line per step in a file, and a progress bar or lines on stderr."""

import os
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tqdm import tqdm

from tlm_repro.artifacts.files import write_text
from tlm_repro.records.metrics import MetricsRow, read_rows


def scalars(row: MetricsRow) -> dict[str, float]:
    """What trackers draw of a row, by step."""
    values = row.content()
    return {
        name: value for name, value in values.items() if name not in ("step", "tokens", "skipped") and value is not None
    }


class MetricsFile:
    """`metrics.jsonl`, opened at a checkpoint. Later rows are cut off, so that each step has one row."""

    def __init__(self, path: Path, step: int) -> None:
        rows = read_rows(path, step)
        if len(rows) < step:
            print(f"warning: {path} has rows for {len(rows)} of the {step} steps trained so far", file=sys.stderr)
        write_text(path, "".join(row.line() for row in rows))
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def append(self, row: MetricsRow) -> None:
        self._file.write(row.line())

    def sync(self) -> None:
        """Syncs to the disk, before the checkpoint that relies on these rows is written."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class Progress:
    """A tqdm bar on a terminal, else a line every `seconds` on stderr. Silent if `shown` is false."""

    def __init__(self, *, step: int, steps: int, seconds: float, shown: bool) -> None:
        self._start = self._printed_at = time.monotonic()
        self._first, self._steps, self._seconds, self._shown = step, steps, seconds, shown
        self._bar = tqdm(total=steps, initial=step, unit="step") if shown and sys.stderr.isatty() else None

    def update(self, row: MetricsRow) -> None:
        speed = f"{row.tokens_per_second:,.0f} tokens/s" + (f", MFU {row.mfu:.1%}" if row.mfu is not None else "")
        loss = f"loss {row.loss:.4f} nats" if row.loss is not None else "batch skipped"
        if self._bar is not None:
            self._bar.set_postfix_str(f"{loss}, {speed}", refresh=False)
            self._bar.update()
            return
        now, step = time.monotonic(), row.step
        if self._shown and (now - self._printed_at >= self._seconds or step == self._steps):
            left = (now - self._start) / (step - self._first) * (self._steps - step)
            eta = timedelta(seconds=round(left))
            print(
                f"step {step}/{self._steps}, {loss}, {speed}, ETA {eta}",
                file=sys.stderr,
                flush=True,
            )
            self._printed_at = now

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


class Recorder:
    """The metrics file, the progress and the trackers of one process. Only the main process has a file."""

    def __init__(
        self, path: Path, *, step: int, steps: int, seconds: float, main: bool, trackers: Sequence[Any] = ()
    ) -> None:
        self._file = MetricsFile(path, step) if main else None
        self._progress = Progress(step=step, steps=steps, seconds=seconds, shown=main)
        self._trackers = trackers

    def add(self, row: MetricsRow) -> None:
        if self._file is not None:
            self._file.append(row)
        self._progress.update(row)
        for tracker in self._trackers:
            tracker.log(scalars(row), step=row.step)

    def sync(self) -> None:
        if self._file is not None:
            self._file.sync()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._progress.close()
        for tracker in self._trackers:
            tracker.finish()
        if self._file is not None:
            self._file.close()
