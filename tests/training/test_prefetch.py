import threading

import numpy as np
import pytest
import torch

from tlm_repro.errors import DataError
from tlm_repro.training.prefetch import Prefetch

CPU = torch.device("cpu")


def test_gives_the_same_batches_in_any_order() -> None:
    prefetch = Prefetch(lambda step: np.full((2, 3), step), steps=6, device=CPU)
    for step in (0, 1, 2, 5, 3, 3, 4):
        assert torch.equal(prefetch.take(step), torch.full((2, 3), step))
    prefetch.close()


def test_the_next_one_is_read_in_the_meantime_and_none_after_the_last() -> None:
    read, second = [], threading.Event()

    def batch(step: int) -> np.ndarray:
        read.append((step, threading.current_thread() is threading.main_thread()))
        if step == 1:
            second.set()
        return np.array([step])

    prefetch = Prefetch(batch, steps=2, device=CPU)
    prefetch.take(0)
    assert second.wait(timeout=10)  # nobody has asked for it
    prefetch.take(1)
    prefetch.close()
    assert read == [(0, True), (1, False)]


def test_an_error_comes_with_the_batch_that_it_belongs_to() -> None:
    def batch(step: int) -> np.ndarray:
        if step == 1:
            raise DataError("shard 7 is gone")
        return np.array([step])

    prefetch = Prefetch(batch, steps=3, device=CPU)
    assert prefetch.take(0).tolist() == [0]
    with pytest.raises(DataError, match="shard 7 is gone"):
        prefetch.take(1)
    prefetch.close()
