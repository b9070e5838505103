"""What an evaluation is given beside its spec and its model, and what a suite is handed of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tlm_repro.errors import EvaluationError
from tlm_repro.evaluation.partial import Kept

if TYPE_CHECKING:
    from tlm_repro.data.shards import TokenData


@dataclass(frozen=True)
class Inputs:
    """Products that a suite may read, and how it runs: none of it is part of an evaluation's id.

    `data` is the manifest of a tokenised data set, `benchmarks` that of fetched benchmark items, `samples` that of
    needle-in-a-haystack samples. `device` is as PyTorch names it; None: the first GPU if there is one, else the CPU.
    """

    data: Path | None = None
    benchmarks: Path | None = None
    samples: Path | None = None
    batch_size: int = 32  # sequences in one forward pass
    device: str | None = None


@dataclass(frozen=True)
class Context:
    """Inputs, opened. `tokens` is None where no data set was given; `kept` holds what a failed attempt left."""

    inputs: Inputs
    tokens: "TokenData | None"
    kept: Kept

    def held_out(self, purpose: str) -> "TokenData":
        """The data set with the held-out documents. Raises EvaluationError, with its purpose, where none was given."""
        if self.tokens is None:
            raise EvaluationError(f"{purpose}: pass the manifest.json of a tokenised data set as --data")
        return self.tokens
