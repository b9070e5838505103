"""How a run is executed. None of it can change a result beyond the order of float sums, so no id hashes any of it.

A key of the configuration is one field of `Hardware` (for a scale) or of `Supervision` (for all runs); an option of the
command alone is one of `Execution`. The configuration, its reference, the command and the trainer read them here.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from tlm_repro.spec.base import Integer, Number, Section


class Hardware(Section):
    """How a scale is run."""

    processes: Integer = Field(default=1, ge=1, description="Processes (one a GPU) that share the global batch.")
    nodes: Integer = Field(default=1, ge=1, description="SLURM nodes that the processes are spread over evenly.")
    micro_batch_sequences: Integer | None = Field(
        default=None,
        ge=1,
        description="Sequences in one forward pass of one process; null: its whole share of the batch.",
    )
    compile: bool = Field(
        default=False, description="Run each layer through torch.compile: for GPUs. It takes minutes at the start."
    )
    activation_checkpointing: bool = Field(
        default=False,
        description="Keep only each layer's input and compute the layer again in the backward pass: less memory, up "
        "to a third more work.",
    )

    @field_validator("nodes")
    @classmethod
    def _share_processes_evenly(cls, nodes: int, info: ValidationInfo) -> int:
        processes = info.data.get("processes", nodes)
        if processes % nodes:
            raise ValueError(f"{processes} processes can't be spread evenly over {nodes} nodes. Change one of them")
        return nodes

    @property
    def processes_per_node(self) -> int:
        return self.processes // self.nodes


class Supervision(Section):
    """How training is watched and saved. Nothing here can change a weight, so nothing here is part of a run's id."""

    checkpoint_seconds: Integer = Field(
        default=600, ge=0, description="Time between checkpoints: what a killed job can lose. 0: one after each step."
    )
    stop_before_seconds: Integer = Field(
        default=120,
        ge=0,
        description="In a SLURM job: save and stop so long before its time limit, or three times the slowest save if "
        "that is longer.",
    )
    validations: Integer = Field(
        default=10, ge=1, le=10_000, description="Validation losses, evenly spaced, the last at the end."
    )
    validation_tokens: Integer = Field(
        default=262_144, ge=1, description="Held-out tokens for each of them, from the start of the split."
    )
    trackers: tuple[Literal["tensorboard", "wandb"], ...] = Field(
        default=("tensorboard",),
        description="Where curves go beside `metrics.jsonl`: logs/tensorboard, W&B (`pip install wandb`), or [].",
    )


class Execution(Hardware, Supervision):
    """All of it for one run, as `tlm-repro pretrain --execution` takes it."""

    log_seconds: Number = Field(default=10.0, ge=0, description="Time between progress lines in a log file.")
    keep_checkpoints: bool = Field(default=False, description="Keep the last checkpoint of a finished run.")
    tracking: Path = Field(default=Path("logs"), description="Folder of the trackers' files.")
