"""The windows of the token stream in a step's global batch: a pure function of (data, seed, step)."""

from typing import Protocol

import numpy as np

from tlm_repro.errors import ConfigError, DataError

ROUNDS = 8


class Tokens(Protocol):
    """A token stream with random access; `shards.TokenArray` is the one on disk."""

    def __len__(self) -> int: ...

    def window(self, start: int, length: int) -> np.ndarray: ...


def mix(values: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014), a bijection on uint64 that mixes every bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def permute(positions: np.ndarray, size: int, *, seed: int, epoch: int) -> np.ndarray:
    """The images of `positions` (each in 0…size−1) under the permutation of range(size) given by (seed, epoch).

    A Feistel network permutes the numbers below a power of four. A number that lands at `size` or above goes through it
    again until it falls below (cycle walking, at most four passes on average). Memory doesn't grow with `size`.
    """
    half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << half) - np.uint64(1)
    keys = np.random.SeedSequence([seed, epoch]).generate_state(ROUNDS, np.uint64)
    values = positions.astype(np.uint64)
    outside = np.ones(len(values), dtype=bool)
    while outside.any():
        left, right = values[outside] >> half, values[outside] & mask
        for key in keys:
            left, right = right, left ^ (mix(right + key) & mask)
        values[outside] = (left << half) | right
        outside = values >= size
    return values.astype(np.int64)


class Batches:
    """Shuffled windows of `sequence_length` + 1 tokens. The last token of each is only a target.

    Windows start every `sequence_length` tokens; an incomplete last one is dropped. Sequence i of step s has the global
    number n = s × batch_sequences + i, which is number n mod `windows` of epoch n div `windows`. Each epoch visits
    every window once, in its own order. Nothing depends on the number of processes, and there is no state to save.

    Raises:
        DataError: the stream is shorter than one window.
    """

    def __init__(self, tokens: Tokens, *, sequence_length: int, batch_sequences: int, seed: int) -> None:
        self.tokens = tokens
        self.sequence_length = sequence_length
        self.batch_sequences = batch_sequences
        self.seed = seed
        self.windows = (len(tokens) - 1) // sequence_length
        if self.windows < 1:
            raise DataError(
                f"the training split has {len(tokens)} tokens, but one window needs {sequence_length + 1}: "
                "add text, lower validation_fraction or reduce sequence_length"
            )

    def indices(self, step: int) -> np.ndarray:
        """The numbers of the global batch's windows, int64, shape (batch_sequences,)."""
        numbers = np.arange(step * self.batch_sequences, (step + 1) * self.batch_sequences)
        epochs, positions = np.divmod(numbers, self.windows)
        windows = np.empty_like(positions)
        for epoch in np.unique(epochs):
            in_epoch = epochs == epoch
            windows[in_epoch] = permute(positions[in_epoch], self.windows, seed=self.seed, epoch=int(epoch))
        return windows

    def batch(self, step: int, *, rank: int = 0, world_size: int = 1) -> np.ndarray:
        """The share of process `rank` in step `step`, int64, shape (batch_sequences / world_size, sequence_length + 1).

        Raises:
            ConfigError: `world_size` doesn't divide the global batch.
        """
        if self.batch_sequences % world_size:
            raise ConfigError(
                f"a batch of {self.batch_sequences} sequences can't be split evenly over {world_size} processes: "
                "choose a number of processes that divides the batch"
            )
        share = self.batch_sequences // world_size
        windows = self.indices(step)[rank * share : (rank + 1) * share]
        length = self.sequence_length
        return np.stack([self.tokens.window(int(index) * length, length + 1) for index in windows])
