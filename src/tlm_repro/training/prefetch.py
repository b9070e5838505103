"""Reads the next batch from the disk while the current one is trained on."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor


class Prefetch:
    """`take(step)` returns `read(step)` on `device`, and a thread reads step + 1, if that is below `steps`.

    `read` is a pure function, so steps may be taken in any order. Taking them one after the other saves time.
    """

    def __init__(self, read: Callable[[int], np.ndarray], *, steps: int, device: torch.device) -> None:
        self._read, self._steps, self._device = read, steps, device
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        self._next: tuple[int, Future[Tensor]] | None = None

    def take(self, step: int) -> Tensor:
        """Raises what `read` raises for this step."""
        prefetched, self._next = self._next, None
        batch = prefetched[1].result() if prefetched and prefetched[0] == step else self._load(step)
        if step + 1 < self._steps:
            self._next = step + 1, self._thread.submit(self._load, step + 1)
        return batch.to(self._device, non_blocking=True)

    def _load(self, step: int) -> Tensor:
        batch = torch.from_numpy(self._read(step))
        return batch.pin_memory() if self._device.type == "cuda" else batch

    def close(self) -> None:
        """Stops prefetching and waits for the batch in flight."""
        self._thread.shutdown(cancel_futures=True)
        self._next = None
