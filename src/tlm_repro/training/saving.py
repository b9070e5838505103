"""Writes checkpoints in the background. Training waits only while tensors are copied to the host's memory."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from tlm_repro.training.checkpoint import Checkpoints, Snapshot


class Saver:
    """Writes one snapshot at a time in a thread. The next `finish` raises its error.

    `slowest` is the longest time, in seconds, that it took to write, rename and sync a snapshot.
    """

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints
        self.slowest = 0.0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[Path] | None = None

    def begin(self, snapshot: Snapshot) -> None:
        """The previous snapshot must be finished: two at once would take twice the memory and end in any order."""
        if self._pending is not None:
            raise RuntimeError("a snapshot is still being written: call finish first")
        self._pending = self._thread.submit(self._write, snapshot)

    def finish(self) -> None:
        """Waits for the snapshot in flight. Raises CheckpointError if it can't be written."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    @property
    def failed(self) -> bool:
        """Whether `finish` would raise at once."""
        return self._pending is not None and self._pending.done() and self._pending.exception() is not None

    def _write(self, snapshot: Snapshot) -> Path:
        start = time.monotonic()
        path = self.checkpoints.write(snapshot)
        self.slowest = max(self.slowest, time.monotonic() - start)
        return path

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        # The snapshot in flight is always finished. Its error is raised only if training ended without one.
        self._thread.shutdown()
        if _error is None:
            self.finish()
