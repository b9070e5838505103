"""A novelty file: the layer novelty of one model."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from tlm_repro.records.base import (
    FINGERPRINTED,
    Error,
    Mismatch,
    Positive,
    Record,
    RunIdentity,
    Seconds,
    canonical,
    check_equal,
    check_fingerprint,
)
from tlm_repro.spec.base import slug
from tlm_repro.spec.evaluation import NoveltySpec

FEWEST_LAYERS = 3  # for a correlation
CONSTANT = 1e-12  # a spread of ρ below this is rounding error


class Mean(Record):
    """A mean over tokens. Its standard error takes them as independent; neighbours aren't, so it is a lower bound."""

    mean: float
    stderr: Error


Means = tuple[Mean | None, ...]  # one a layer, the first and the last included; None: a layer without an MLP


class Correlation(Record):
    """Pearson's r of ρ with depth over `layers` layers; None where fewer than three are left or ρ is constant."""

    r: float | None = Field(ge=-1, le=1)
    layers: int = Field(ge=0)

    @classmethod
    def of(cls, means: Sequence[Mean | None]) -> "Correlation":
        """That of a model's layers, without the first and the last as in the paper's Section 4."""
        last = len(means) - 1
        inner = [(depth, one.mean) for depth, one in enumerate(means) if one is not None and 0 < depth < last]
        values = [mean for _, mean in inner]
        if len(inner) < FEWEST_LAYERS or max(values) - min(values) < CONSTANT:
            return cls(r=None, layers=len(inner))
        return cls(r=pearson([float(depth) for depth, _ in inner], values), layers=len(inner))


class Correlations(Record):
    block: Correlation
    mlp: Correlation


Bounds = tuple[float, float]


class Intervals(Record):
    """95 % intervals of r with depth, and of r_MLP − r_block, from blocks of tokens resampled for all layers at once.

    A bootstrap over tokens, and not Fisher's interval, which takes layers for a sample of independent ones: they are
    all that the model has, and what is sampled are the tokens. None: too few blocks, or an r that isn't defined.
    """

    block: Bounds | None
    mlp: Bounds | None
    difference: Bounds | None

    def check(self) -> None:
        for name, most in {"block": 1.0, "mlp": 1.0, "difference": math.inf}.items():
            bounds: Bounds | None = getattr(self, name)
            if bounds and not -most <= bounds[0] <= bounds[1] <= most:
                raise Mismatch(name, bounds, "The lower bound comes first; r lies in [−1, 1].")
        if (self.difference is None) != (self.block is None or self.mlp is None):
            raise Mismatch("difference", self.difference, "It is there where both intervals are.")


class MeasuredModel(Record):
    """The model; `run` is None for one that was trained elsewhere."""

    name: str
    run: RunIdentity | None
    layers: Positive
    parameters: Positive

    def check(self) -> None:
        if self.run is not None:
            check_equal("name", self.name, self.run.id, "It is the run's id,")


class Novelty(Record):
    """`results/novelty/<model>-<fingerprint>.json`: ρ of every layer, over `tokens` tokens in windows of `window`.

    `norm_ratio` is ‖MLP‖ / ‖h‖; like `mlp` it is null for a layer without an MLP.
    """

    schema_: Literal[1] = Field(alias="schema")
    kind: Literal["novelty"]
    model: MeasuredModel
    spec: Annotated[NoveltySpec, canonical]
    tokens: Positive
    window: Positive
    block: tuple[Mean, ...]
    mlp: Means
    norm_ratio: Means | None = None  # absent in the first files
    intervals: Intervals | None = None  # absent in the first files
    correlation: Correlations
    versions: dict[str, str]
    device: str
    wall_time_s: Seconds

    def check(self) -> None:
        check_equal("tokens", self.tokens, self.spec.tokens, "The spec has")
        if self.window > self.spec.window:
            raise Mismatch("window", self.window, f"The spec has {self.spec.window}.")
        if (self.model.run is None) != (self.spec.external is not None):
            raise Mismatch("model.run", self.model.run, "A model has a run, or the spec names an external one.")
        if self.spec.external is not None:
            check_equal("model.name", self.model.name, self.spec.external.name, "The spec has")
        self.check_layers()
        for kind, means in {"block": self.block, "mlp": self.mlp}.items():
            self.check_correlation(kind, means)

    def check_layers(self) -> None:
        kinds: dict[str, Means | None] = {"block": self.block, "mlp": self.mlp, "norm_ratio": self.norm_ratio}
        largest = 1 / math.sqrt(self.tokens - 1)  # standard error of values between −1 and 1
        for kind, means in kinds.items():
            if means is None:
                continue
            check_equal(kind, len(means), self.model.layers, "Entries, one a layer:")
            for layer, one in enumerate(means):
                if (one is None) != (kind != "block" and self.mlp[layer] is None):
                    raise Mismatch(f"{kind}.{layer}", one, "mlp and norm_ratio are null for the same layers.")
                if one is None:
                    continue
                if kind == "norm_ratio" and one.mean < 0:
                    raise Mismatch(f"{kind}.{layer}.mean", one.mean, "A ratio of norms isn't negative.")
                if kind != "norm_ratio" and not -1 <= one.mean <= 1:
                    raise Mismatch(f"{kind}.{layer}.mean", one.mean, "A cosine lies in [−1, 1].")
                if kind != "norm_ratio" and one.stderr > largest * (1 + 1e-9):
                    raise Mismatch(f"{kind}.{layer}.stderr", one.stderr, f"Over these tokens it is {largest} at most.")

    def check_correlation(self, kind: str, means: Means) -> None:
        seen: Correlation = getattr(self.correlation, kind)
        own = Correlation.of(means)
        check_equal(f"correlation.{kind}.layers", seen.layers, own.layers, "Layers with a ρ, without first and last:")
        check_equal(f"correlation.{kind}.r", seen.r, own.r, "Pearson's r of the means is")
        interval = getattr(self.intervals, kind) if self.intervals else None
        if interval is not None and own.r is None:
            raise Mismatch(f"intervals.{kind}", interval, "There is no r to have an interval.")

    def check_name(self, path: Path) -> None:
        name = FINGERPRINTED.match(path.name)
        if name:
            own = self.model.run.id if self.model.run else slug(self.model.name)
            check_equal("model.name", own, name["name"], "The file's name has")
        check_fingerprint(path, self.spec)


def pearson(one: Sequence[float], two: Sequence[float]) -> float:
    """Pearson's correlation of two sequences that vary."""
    centres = [math.fsum(values) / len(values) for values in (one, two)]
    left, right = ([value - centre for value in values] for values, centre in zip((one, two), centres, strict=True))
    product = math.fsum(a * b for a, b in zip(left, right, strict=True))
    return max(-1.0, min(1.0, product / (math.hypot(*left) * math.hypot(*right))))
