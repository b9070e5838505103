"""An evaluation file: one model's scores in one suite."""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from tlm_repro.records.base import Record
from tlm_repro.spec.base import Spec
from tlm_repro.spec.evaluation import NeedleSpec, ValidationSpec, ZeroShotSpec
from tlm_repro.spec.run import RunLabels
from tlm_repro.statistics.blocks import Blocks

BLOCKS_MISS = 1e-6  # nats; the losses of blocks are rounded


class RunIdentity(RunLabels):
    id: str


class Facts(Record):
    """Exact facts of a trained model; FLOPs of one forward pass of one sequence, and of the whole training."""

    parameters: int
    forward_flops: int
    training_flops: int
    tokens: int
    layers: int
    model_width: int
    intermediate_sizes: tuple[int, ...]


class ExternalIdentity(Record):
    """A model that was trained elsewhere: a commit of the hub, or the hash of local files."""

    name: str
    source: str
    path: str
    revision: str | None = None
    hash: str | None = None


class Metric(Record):
    """A score over `items` items. `stderr` is its standard error with items as the sampling unit; None for one item."""

    value: float
    stderr: float | None
    items: int


class Evaluation(Record):
    """`results/evaluations/<run>/<suite>-<fingerprint>.json`, of a run with its facts or of an external model.

    One subclass a suite types `spec` and `details`.
    """

    schema_: Literal[1] = Field(alias="schema")
    kind: Literal["evaluation"]
    suite: str
    run: RunIdentity | None = None
    model: Facts | None = None
    external: ExternalIdentity | None = None
    spec: Spec
    metrics: dict[str, Metric]
    details: Record
    versions: dict[str, str]
    device: str
    wall_time_s: float

    @classmethod
    def variant(cls, values: Any) -> type[Record]:
        suite = values.get("suite") if isinstance(values, Mapping) else None
        return EVALUATIONS.get(str(suite), AnySuite) if cls is Evaluation else cls

    @model_validator(mode="after")
    def _of_one_model(self) -> Self:
        if (self.run is None) != (self.model is None) or (self.run is None) == (self.external is None):
            raise ValueError("run and model are expected, or external in their place")
        return self


class Points(Record):
    """Losses (nats/token) over training tokens."""

    tokens: tuple[int, ...]
    loss: tuple[float, ...]


class Curve(Points):
    """Training losses, thinned: `step` and `tokens` where each mean of steps ends; the held-out losses on the way."""

    step: tuple[int, ...]
    validation: Points


class TrainingCost(Record):
    """Of all attempts; `device` is that of the last. `device_seconds` counts each attempt's time times its devices."""

    device: str
    wall_time_s: float
    device_seconds: float | None = None


class ValidationDetails(Record):
    """How a held-out loss was measured, and the run's training. Only `windows` and `batch_size` are in all files."""

    windows: int | None = None
    batch_size: int | None = None
    blocks: Blocks | None = None
    curve: Curve | None = None
    training: TrainingCost | None = None


class ValidationEvaluation(Evaluation):
    suite: Literal["validation"]
    spec: ValidationSpec
    details: ValidationDetails

    @model_validator(mode="after")
    def _blocks_of_this_loss(self) -> Self:
        blocks, loss = self.details.blocks, self.metrics.get("val_loss")
        if blocks and not (loss and abs(blocks.mean - loss.value) < BLOCKS_MISS):
            raise ValueError(f"details.blocks have the mean {blocks.mean}, metrics.val_loss is {loss and loss.value}")
        return self


class ZeroShotDetails(Record):
    """Where the items come from and how they were put to the model."""


class ZeroShotEvaluation(Evaluation):
    suite: Literal["zero_shot"]
    spec: ZeroShotSpec
    details: ZeroShotDetails


class Depth(Record):
    """The needles of one depth (0: start of the text, 1: its end): how many were found, of how many."""

    depth: float = Field(ge=0, le=1)
    found: int = Field(ge=0)
    needed: int = Field(ge=1)


class Scaling(Record):
    """How rotary positions beyond the training length were read."""

    kind: str


class NeedleDetails(Record):
    """Needles by depth (metric → depths), and how prompts were made and positions read."""

    needles: dict[str, tuple[Depth, ...]]
    rope_scaling: Scaling | None = None
    generator: str = "own"


class NeedleEvaluation(Evaluation):
    suite: Literal["niah"]
    spec: NeedleSpec
    details: NeedleDetails


class AnySuite(Evaluation):
    """What a file without a known suite is held to: it is refused."""

    suite: Literal["validation", "zero_shot", "niah"]


EVALUATIONS: dict[str, type[Evaluation]] = {
    "validation": ValidationEvaluation,
    "zero_shot": ZeroShotEvaluation,
    "niah": NeedleEvaluation,
}
