"""An evaluation file: one model's scores in one suite."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from tlm_repro.records.base import Record
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


class Metric(Record):
    value: float
    stderr: float | None
    items: int


class ExternalIdentity(Record):
    """A model that was trained elsewhere: a commit of the hub, or the hash of local files."""

    name: str
    source: str
    path: str
    revision: str | None = None
    hash: str | None = None


class Details(Record):
    """What tables and figures take from an evaluation's details; older files have neither."""

    curve: Any = None
    blocks: Blocks | None = None


class Evaluation(Record):
    """`results/evaluations/<run>/<suite>-<fingerprint>.json`, of a run with its facts or of an external model."""

    schema_: Literal[1] = Field(alias="schema")
    kind: Literal["evaluation"]
    suite: str
    run: RunIdentity | None = None
    model: Facts | None = None
    external: ExternalIdentity | None = None
    metrics: dict[str, Metric]
    details: Details = Details()

    @model_validator(mode="after")
    def _of_one_model(self) -> Self:
        if (self.run is None) != (self.model is None) or (self.run is None) == (self.external is None):
            raise ValueError("run and model are expected, or external in their place")
        return self

    @model_validator(mode="after")
    def _blocks_of_this_loss(self) -> Self:
        blocks, loss = self.details.blocks, self.metrics.get("val_loss")
        if blocks and not (loss and abs(blocks.mean - loss.value) < BLOCKS_MISS):
            raise ValueError(f"details.blocks have the mean {blocks.mean}, metrics.val_loss is {loss and loss.value}")
        return self
