"""A novelty file: the layer novelty of one model."""

from typing import Literal

from pydantic import Field

from tlm_repro.records.base import Record
from tlm_repro.records.evaluation import RunIdentity


class Cosine(Record):
    mean: float
    stderr: float | None


class Correlation(Record):
    r: float | None
    layers: int


class Correlations(Record):
    block: Correlation
    mlp: Correlation


class Intervals(Record):
    """95 % intervals of r, and of r_MLP − r_block; None where they couldn't be had."""

    block: tuple[float, float] | None
    mlp: tuple[float, float] | None
    difference: tuple[float, float] | None


class MeasuredModel(Record):
    name: str
    run: RunIdentity | None
    layers: int
    parameters: int


class Novelty(Record):
    """`results/novelty/<model>-<fingerprint>.json`: a mean cosine a layer (null where it has no MLP), r with depth."""

    schema_: Literal[1] = Field(alias="schema")
    kind: Literal["novelty"]
    model: MeasuredModel
    tokens: int
    block: tuple[Cosine | None, ...]
    mlp: tuple[Cosine | None, ...]
    correlation: Correlations
    norm_ratio: tuple[Cosine | None, ...] | None = None  # ‖MLP‖ / ‖h‖; older files have neither this
    intervals: Intervals | None = None  # nor these
