"""A validation loss by blocks of its text: what evaluations keep and what tables compare two runs by. Without torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tlm_repro.statistics.intervals import ratio_stderr

if TYPE_CHECKING:
    import numpy as np

# Few and long: beyond 30, more of them hardly narrow an interval (Schmeiser 1982, Operations Research 30, 556–568).
MOST = 32
DECIMALS = 7


@dataclass(frozen=True)
class Blocks:
    """Mean losses (nats/token) of contiguous blocks of windows, in the order of the text that they cover exactly.

    The text is the start of the validation split of data set `data`, in windows of `sequence_length` predicted tokens.
    Windows of one document have correlated losses, so blocks, which are longer, are the sampling unit. On 2,048 windows
    of the demo's held-out text (14 speeches, six models of two sizes) a loss has 2.6 to 2.9 times the standard error
    that windows would give it, and the difference of two runs 1.2 to 1.7 times.
    """

    windows: tuple[int, ...]
    loss: tuple[float, ...]
    sequence_length: int
    data: str | None = None

    def __post_init__(self) -> None:
        if len(self.windows) != len(self.loss) or min(self.windows, default=0) < 1:
            raise ValueError(
                f"blocks with {len(self.windows)} numbers of windows and {len(self.loss)} losses: one of each a block "
                "is expected, with at least one window"
            )

    @classmethod
    def of(cls, losses: "Sequence[float] | np.ndarray", sequence_length: int) -> "Blocks":
        """At most `MOST` blocks of the losses of windows; their sizes differ by at most one window."""
        import numpy as np

        parts = np.array_split(np.asarray(losses), min(MOST, len(losses)))
        windows, means = tuple(len(part) for part in parts), tuple(float(part.mean()) for part in parts)
        return cls(windows, means, sequence_length)

    @property
    def mean(self) -> float:
        """The loss of all windows."""
        return math.fsum(self._sums) / sum(self.windows)

    @property
    def stderr(self) -> float | None:
        """Standard error of the mean, blocks being independent and weighted by their windows; None for a single one."""
        return ratio_stderr(self._sums, self.windows)

    def minus(self, other: "Blocks") -> "Blocks | None":
        """The differences block by block; None where the two aren't of the same blocks of the same text."""
        if self._layout != other._layout:
            return None
        return replace(self, loss=tuple(one - two for one, two in zip(self.loss, other.loss, strict=True)))

    def columns(self) -> dict[str, Any]:
        """As an evaluation file holds them: losses to `DECIMALS`, far below any standard error."""
        losses = [round(loss, DECIMALS) for loss in self.loss]
        text = {"data": self.data, "sequence_length": self.sequence_length}
        return {**text, "windows": list(self.windows), "loss": losses}

    @property
    def _layout(self) -> tuple[Any, ...]:
        return self.data, self.sequence_length, self.windows

    @property
    def _sums(self) -> list[float]:
        return [windows * loss for windows, loss in zip(self.windows, self.loss, strict=True)]
