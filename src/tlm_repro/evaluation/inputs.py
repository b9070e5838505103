"""The inputs of an evaluation beside its spec and its model, and the context that a suite gets."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tlm_repro.errors import EvaluationError
from tlm_repro.evaluation.partial import PartialResults

if TYPE_CHECKING:
    from tlm_repro.data.shards import TokenData


@dataclass(frozen=True)
class ItemFiles:
    """Items on this machine: the folder that `tlm-repro fetch-benchmarks` made, and the user's JSONL files by task.

    The folder is read by tasks of source `path`, a file by a task whose spec has items of its own.
    """

    folder: Path | None = None
    own: Mapping[str, Path] = field(default_factory=dict)

    def own_file(self, task: str) -> Path:
        """The user's file for a task. Raises EvaluationError if there is none."""
        if task not in self.own:
            raise EvaluationError(f"the spec has items of its own for '{task}'. Pass --items {task}=<JSONL file>")
        return self.own[task]


NO_FILES = ItemFiles()


@dataclass(frozen=True)
class Inputs:
    """Products that a suite may read, and how it is run. None of it is part of an evaluation's id.

    Attributes:
        data: manifest of a tokenised data set.
        items: benchmark items on this machine.
        samples: manifest of needle-in-a-haystack samples.
        device: PyTorch's name of a device; None: the first free GPU, else the CPU.
    """

    data: Path | None = None
    items: ItemFiles = NO_FILES
    samples: Path | None = None
    batch_size: int = 32  # sequences in one forward pass
    device: str | None = None


@dataclass(frozen=True)
class Context:
    """Opened inputs: the data set, if there is one, and the partial results of a failed attempt."""

    inputs: Inputs
    tokens: "TokenData | None"
    partial: PartialResults

    def held_out(self, purpose: str) -> "TokenData":
        """The data set with the held-out documents. Raises EvaluationError, naming the purpose, if there is none."""
        if self.tokens is None:
            raise EvaluationError(f"{purpose}: pass the manifest.json of a tokenised data set as --data")
        return self.tokens
