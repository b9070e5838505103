"""The kinds of learning-rate schedule: the keys of each, and the rate as a pure function of the step.

The rate has no state, so no checkpoint holds any of it. A further kind is a class here and its name in `LearningRate`.
"""

import math
from abc import abstractmethod
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tlm_repro.spec.base import Number, Spec

FinalRatio = Annotated[Number, Field(ge=0, le=1, description="Last learning rate ÷ peak. [ours]")]


class WarmedUp(Spec):
    """What all kinds share: a linear warm-up to the peak."""

    kind: str
    peak: Number = Field(gt=0, description="Largest learning rate. [paper: 4e-4]")
    warmup_ratio: Number = Field(default=0.01, ge=0, le=1, description="Share of the steps with linear warm-up. [ours]")

    def warmup_steps(self, steps: int) -> int:
        return round(self.warmup_ratio * steps)

    def in_whole_steps(self, steps: int) -> Self:
        """The same schedule for a run of `steps`, with the ratio that its number of warm-up steps has exactly."""
        return self.model_copy(update={"warmup_ratio": self.warmup_steps(steps) / steps})

    def rate(self, step: int, steps: int) -> float:
        """The rate of update `step`, counted from 1 to `steps`.

        Linear from peak / warm-up steps at step 1 to the peak at the last step of the warm-up.

        Raises:
            ValueError: `step` isn't in 1…steps.
        """
        if not 1 <= step <= steps:
            raise ValueError(f"step {step} is outside 1…{steps}")
        warmup = self.warmup_steps(steps)
        return self.peak * step / warmup if step <= warmup else self.after_warmup(step, steps, warmup)

    @abstractmethod
    def after_warmup(self, step: int, steps: int, warmup: int) -> float:
        """The rate of update `step` in warmup + 1…steps."""


class Cosine(WarmedUp):
    """Half a cosine from the peak to `final_ratio` of it (paper section 5: cosine annealing)."""

    kind: Literal["cosine"] = "cosine"
    final_ratio: FinalRatio = 0.1

    def after_warmup(self, step: int, steps: int, warmup: int) -> float:
        progress = (step - warmup) / (steps - warmup)
        return self.peak * (self.final_ratio + (1 - self.final_ratio) * (1 + math.cos(math.pi * progress)) / 2)


class WarmupStableDecay(WarmedUp):
    """The peak, then a decay to `final_ratio` of it over the last steps (arXiv 2404.06395).

    The decay is 1 − √x, x from 0 to 1, which arXiv 2405.18392 found better than a linear one.
    """

    kind: Literal["wsd"] = "wsd"
    final_ratio: FinalRatio = 0.0
    decay_ratio: Number = Field(
        default=0.2, gt=0, le=1, description="Share of the steps, at the end, in which it decays. [ours]"
    )

    @model_validator(mode="after")
    def _fits_into_the_run(self) -> Self:
        if self.warmup_ratio + self.decay_ratio > 1:
            raise ValueError(
                f"warmup_ratio {self.warmup_ratio} + decay_ratio {self.decay_ratio} is more than 1: lower one of them"
            )
        return self

    def after_warmup(self, step: int, steps: int, warmup: int) -> float:
        decay = min(round(self.decay_ratio * steps), steps - warmup)
        passed = step - (steps - decay)
        if passed <= 0:
            return self.peak
        return self.peak * (self.final_ratio + (1 - self.final_ratio) * (1 - math.sqrt(passed / decay)))


LearningRate = Annotated[Cosine | WarmupStableDecay, Field(discriminator="kind")]
