import tracemalloc
from collections import Counter

import numpy as np
import pytest

from tlm_repro.data.batches import ROUNDS, Batches, permute
from tlm_repro.errors import ConfigError, DataError


class Counting:
    """The stream 0, 1, 2 …: a window shows where it was taken."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def window(self, start: int, length: int) -> np.ndarray:
        assert start + length <= self.length
        return np.arange(start, start + length)


def slow_image(position: int, size: int, seed: int, epoch: int) -> int:
    """The permutation in plain integers, one number at a time."""
    word = 2**64 - 1
    half = 1
    while 4**half < size:
        half += 1
    keys = [int(key) for key in np.random.SeedSequence([seed, epoch]).generate_state(ROUNDS, np.uint64)]
    while True:
        left, right = divmod(position, 2**half)
        for key in keys:
            value = (right + key) & word
            value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & word
            value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & word
            left, right = right, left ^ ((value ^ (value >> 31)) % 2**half)
        position = left * 2**half + right
        if position < size:
            return position


@pytest.mark.parametrize("size", [*range(1, 20), 64, 65, 255, 1000, 4097])
def test_permutation_takes_every_value_once(size):
    for epoch in range(3):
        values = permute(np.arange(size), size, seed=7, epoch=epoch)
        assert sorted(values.tolist()) == list(range(size))


@pytest.mark.parametrize("size", [1, 2, 5, 16, 17, 300])
def test_permutation_equals_the_integer_reference(size):
    expected = [slow_image(position, size, 3, 11) for position in range(size)]
    assert permute(np.arange(size), size, seed=3, epoch=11).tolist() == expected


def test_order_of_windows_never_changes_between_releases():
    assert permute(np.arange(10), 10, seed=0, epoch=0).tolist() == [4, 6, 8, 9, 0, 2, 5, 7, 3, 1]
    far = permute(np.array([0, 12_345_678, 23_999_999]), 24_000_000, seed=1, epoch=2)
    assert far.tolist() == [325_216, 6_333_783, 3_084_355]


def test_small_permutations_are_uniform_over_epochs():
    """All 24 orders of four windows, each as often as chance has it: chi-square with 23 degrees, 99.99 % below 57.6."""
    orders = Counter(tuple(permute(np.arange(4), 4, seed=5, epoch=epoch).tolist()) for epoch in range(2400))
    assert len(orders) == 24
    assert sum((count - 100) ** 2 / 100 for count in orders.values()) < 57.6


def test_large_permutation_looks_shuffled():
    size = 50_000
    positions = np.arange(size)
    values = permute(positions, size, seed=1, epoch=0)
    other = permute(positions, size, seed=1, epoch=1)
    assert abs(np.corrcoef(positions, values)[0, 1]) < 4 / size**0.5
    assert abs(np.corrcoef(values, other)[0, 1]) < 4 / size**0.5
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 4 / size**0.5
    assert np.abs(np.diff(values)).mean() == pytest.approx(size / 3, rel=0.02)  # mean distance of two uniform numbers
    assert (values == positions).sum() < 10  # fixed points are Poisson with mean 1


def test_every_window_once_an_epoch_across_batches_that_do_not_divide_it():
    windows, batch = 37, 8
    batches = Batches(Counting(windows * 5 + 1), sequence_length=5, batch_sequences=batch, seed=0)
    assert batches.windows == windows
    rows = np.concatenate([batches.batch(step) for step in range(windows * 3 // batch + 1)])
    starts = rows[:, 0] // 5
    assert (rows == rows[:, :1] + np.arange(6)).all()
    epochs = [starts[epoch * windows : (epoch + 1) * windows].tolist() for epoch in range(3)]
    assert all(sorted(epoch) == list(range(windows)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_a_batch_larger_than_the_data_repeats_each_window_evenly():
    batches = Batches(Counting(3 * 4 + 1), sequence_length=4, batch_sequences=12, seed=0)
    assert Counter((batches.batch(0)[:, 0] // 4).tolist()) == {0: 4, 1: 4, 2: 4}


@pytest.mark.parametrize(("tokens", "windows"), [(11, 1), (20, 1), (21, 2), (30, 2), (31, 3)])
def test_incomplete_last_window_is_dropped(tokens, windows):
    assert Batches(Counting(tokens), sequence_length=10, batch_sequences=1, seed=0).windows == windows


@pytest.mark.parametrize("world_size", [1, 2, 3, 6])
def test_ranks_partition_the_global_batch_in_order(world_size):
    batches = Batches(Counting(1000), sequence_length=7, batch_sequences=6, seed=4)
    shares = [batches.batch(9, rank=rank, world_size=world_size) for rank in range(world_size)]
    np.testing.assert_array_equal(np.concatenate(shares), batches.batch(9))
    assert shares[0].dtype == np.int64
    assert shares[0].shape == (6 // world_size, 8)


def test_batch_depends_on_seed_and_step_alone():
    batches = Batches(Counting(5000), sequence_length=10, batch_sequences=8, seed=1)
    late = batches.batch(40)
    batches.batch(3)
    np.testing.assert_array_equal(batches.batch(40), late)
    np.testing.assert_array_equal(
        Batches(Counting(5000), sequence_length=10, batch_sequences=8, seed=1).batch(40), late
    )
    other = Batches(Counting(5000), sequence_length=10, batch_sequences=8, seed=2).batch(40)
    assert (other != late).any()


def test_memory_does_not_grow_with_the_data():
    """A paper-scale epoch, 24 million windows of 4,096 tokens: a permutation of them would take 190 MB."""
    batches = Batches(Counting(24_000_000 * 4096 + 1), sequence_length=4096, batch_sequences=4, seed=0)
    batches.batch(0)
    tracemalloc.start()
    batches.batch(123_456)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_too_few_tokens_are_refused_with_both_numbers():
    with pytest.raises(DataError, match="has 128 tokens, but one window needs 129"):
        Batches(Counting(128), sequence_length=128, batch_sequences=1, seed=0)


def test_uneven_shares_are_refused():
    batches = Batches(Counting(1000), sequence_length=7, batch_sequences=6, seed=4)
    with pytest.raises(ConfigError, match="a batch of 6 sequences can't be split evenly over 4 processes"):
        batches.batch(0, rank=0, world_size=4)


def test_the_budgets_of_the_paper_are_nested():
    """All scales read one order: the windows of 30B tokens are the first of those of 50B, and so on."""
    tokens = Counting(100_000_000_000)
    batches = Batches(tokens, sequence_length=4096, batch_sequences=128, seed=0)
    smaller = Batches(tokens, sequence_length=4096, batch_sequences=64, seed=0)
    last_steps = {30: 57_220, 50: 95_367, 100: 190_735}
    assert {size: round(size * 10**9 / (128 * 4096)) for size in last_steps} == last_steps
    assert batches.windows == 24_414_062
    for step in (0, 57_219, 95_366):
        expected = permute(np.arange(128 * step, 128 * step + 128), batches.windows, seed=0, epoch=0)
        np.testing.assert_array_equal(batches.indices(step), expected)
        np.testing.assert_array_equal(
            np.concatenate([smaller.indices(2 * step), smaller.indices(2 * step + 1)]), batches.indices(step)
        )
    repeated = 128 * 190_735 - batches.windows
    assert repeated == 18  # of the largest budget, by rounding to whole batches
