"""What an evaluation is given beside its spec and its model, and what a suite is handed of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tlm_repro.errors import EvaluationError
from tlm_repro.evaluation.partial import Kept

if TYPE_CHECKING:
    from tlm_repro.data.shards import TokenData


@dataclass(frozen=True)
class ItemFiles:
    """Items on this machine: the folder that `tlm-repro fetch-benchmarks` made, and own JSONL files by task.

    Only the tasks of source `path` read the folder, and only tasks that have items of their own in the spec a file.
    """

    folder: Path | None = None
    own: Mapping[str, Path] = field(default_factory=dict)

    def own_file(self, task: str) -> Path:
        """Raises EvaluationError where none was given for the task."""
        if task not in self.own:
            raise EvaluationError(f"the spec has items of its own for '{task}'. Pass --items {task}=<JSONL file>")
        return self.own[task]


NO_FILES = ItemFiles()


@dataclass(frozen=True)
class Inputs:
    """Products that a suite may read, and how it runs: none of it is part of an evaluation's id.

    `data` is the manifest of a tokenised data set, `items` the benchmark items on this machine, `samples` the manifest
    of needle-in-a-haystack samples. `device` is as PyTorch names it; None: the first GPU if there is one, else the CPU.
    """

    data: Path | None = None
    items: ItemFiles = NO_FILES
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
