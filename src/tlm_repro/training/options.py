"""What may differ between two attempts at one run."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TrainerOptions:
    """How a run is executed: without another result, but for the order of float sums.

    Attributes:
        micro_batch_sequences: sequences in one forward pass of one process; None: the process's share of the batch.
        checkpoint_seconds: time between checkpoints; one is also written at the end and when a signal comes.
        stop_before_seconds: inside a SLURM job, save and stop so long before its time limit; three times as long as
            the slowest save if that is more.
        validations: how often the validation loss is measured, evenly spaced; 0 or 1: at the end alone.
        validation_tokens: from the start of the held-out split, at most so many for each of these.
        log_seconds: time between progress lines where stderr isn't a terminal.
        keep_checkpoints: keep the last checkpoint when the product is written.
        compile: run the layers through torch.compile.
        activation_checkpointing: keep only the input of each layer and compute the rest again on the way back.
        trackers: where curves go beside `metrics.jsonl`: "tensorboard", "wandb".
        tracking: folder of what trackers write.
    """

    micro_batch_sequences: int | None = None
    checkpoint_seconds: float = 600.0
    stop_before_seconds: float = 120.0
    validations: int = 10
    validation_tokens: int = 262_144
    log_seconds: float = 10.0
    keep_checkpoints: bool = False
    compile: bool = False
    activation_checkpointing: bool = False
    trackers: tuple[str, ...] = ()
    tracking: Path = Path("logs")
