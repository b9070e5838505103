"""A loss by blocks of its text: what is kept gives the loss back, and the error of its mean holds."""

import json
import math

import numpy as np
import pytest
from scipy import stats

from tlm_repro.statistics.blocks import MOST, Blocks


@pytest.mark.parametrize("windows", [1, 2, MOST - 1, MOST, MOST + 1, 256, 2441])
def test_every_window_counts_once(windows):
    losses = np.random.default_rng(windows).normal(3, 0.3, windows)
    found = Blocks.of(losses, 128)
    assert sum(found.windows) == windows
    assert len(found.windows) == min(windows, MOST)
    assert max(found.windows) - min(found.windows) <= 1
    assert found.mean == pytest.approx(losses.mean(), abs=1e-14)
    ends = np.cumsum(found.windows)
    for start, end, loss in zip([0, *ends], ends, found.loss, strict=False):
        assert loss == pytest.approx(losses[start:end].mean())


def test_what_a_file_holds_gives_the_loss_back():
    losses = np.random.default_rng(0).normal(3, 0.3, 2441)
    content = json.loads(json.dumps(Blocks.of(losses, 4096).columns()))
    assert Blocks(**content).mean == pytest.approx(losses.mean(), abs=1e-7)
    assert len(json.dumps(content)) < 1000


def test_standard_error_is_scipys_for_blocks_of_one_size():
    losses = np.random.default_rng(0).normal(3, 0.3, 4 * MOST)
    assert Blocks.of(losses, 8).stderr == pytest.approx(stats.sem(losses.reshape(MOST, 4).mean(axis=1)))
    assert Blocks.of(losses[:1], 8).stderr is None


def test_larger_blocks_weigh_more():
    """By hand: mean 10/5; residuals times windows −2, 0, 2, so √(3/2 × 8) / 5."""
    found = Blocks((2, 2, 1), (1.0, 2.0, 4.0), 8)
    assert found.mean == 2
    assert found.stderr == pytest.approx(math.sqrt(12) / 5)


@pytest.mark.parametrize(
    "change", [{"data": "other"}, {"sequence_length": 16}, {"windows": (1, 2)}, {"windows": (1,), "loss": (3.0,)}]
)
def test_other_text_or_other_blocks_of_it_are_not_compared(change):
    fields = {"windows": (2, 1), "loss": (3.0, 3.5), "sequence_length": 8, "data": "a text"}
    one = Blocks(**fields)
    assert one.minus(Blocks(**fields)).loss == (0, 0)
    assert one.minus(Blocks(**fields | change)) is None


@pytest.mark.parametrize(("windows", "loss"), [((), ()), ((1, 1), (2.0,)), ((1, 0), (2.0, 2.0))])
def test_blocks_without_a_loss_or_a_window_are_refused(windows, loss):
    with pytest.raises(ValueError, match="one of each a block"):
        Blocks(windows, loss, 8)
