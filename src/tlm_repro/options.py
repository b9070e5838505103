"""The options of the architectures that have any, and the arithmetic that follows from them. No torch here.

Shapes: D model width, F feed-forward width, T time.
"""

from typing import Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from tlm_repro.errors import ConfigError
from tlm_repro.spec import Spec

# Widths that are multiples of this keep a GPU's matrix units busy.
WIDTH_UNIT = 8


class TitansOptions(Spec):
    """The neural long-term memory of Titans (arXiv 2501.00663) and how attention stands beside it. [ours: numbers]"""

    variant: Literal["mag", "lmm", "mac"] = Field(
        default="mag",
        description="Memory as a gate beside sliding-window attention, alone, or as context of attention in segments.",
    )
    memory_head_dim: int = Field(default=64, ge=1, description="Width of a memory head: divides the model width.")
    depth: Literal[1, 2] = Field(default=2, description="Layers of a head's network: 1 linear, 2 with GELU between.")
    expansion: int = Field(default=4, ge=1, description="Hidden width of a head's network ÷ its width.")
    chunk: int = Field(default=64, ge=1, description="Tokens whose gradients are taken at one state of the memory.")
    max_learning_rate: float = Field(
        default=0.01, gt=0, allow_inf_nan=False, description="Bound of a token's inner learning rate θ."
    )
    window: int = Field(default=1024, ge=1, description="mag: tokens that attention sees, the current one included.")
    gate: Literal["silu", "sigmoid"] = Field(
        default="silu", description="mag, mac: what the memory's reads pass before they multiply attention's output."
    )
    persistent: int = Field(default=16, ge=0, description="mag, mac: learned tokens that attention always sees.")
    segment: int = Field(default=512, ge=1, description="mac: tokens of a segment, a multiple of `chunk`.")

    @model_validator(mode="after")
    def _segments_hold_chunks(self) -> Self:
        if self.variant == "mac" and self.segment % self.chunk:
            raise ValueError(
                f"a segment of {self.segment} tokens doesn't hold whole chunks of {self.chunk}: make it a multiple"
            )
        return self


def memory_heads(model_width: int, head_dim: int) -> int:
    """Heads of a memory over the whole model width. Raises ConfigError when it doesn't divide."""
    if model_width % head_dim:
        raise ConfigError(
            f"memory heads of width {head_dim} don't fill a model width of {model_width}: set memory_head_dim to a "
            "divisor of it"
        )
    return model_width // head_dim


class HopeOptions(Spec):
    """The continuum memory that stands for the MLP of Hope-attention (arXiv 2512.24695).

    `periods` and `max_learning_rate`, left out or null, get the values of `update`'s mode in `DEFAULTS`.
    """

    update: Literal["optimizer", "in_context"] = Field(
        default="optimizer",
        description="What a level's period counts: optimiser steps of training, or tokens within the sequence.",
    )
    periods: tuple[int, ...] = Field(
        default=(), description="One entry a level, fastest first. In context the last is 0: it never changes there."
    )
    max_learning_rate: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="In context alone: bound of a token's learning rate."
    )

    @model_validator(mode="before")
    @classmethod
    def _filled(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        given = {key: value for key, value in values.items() if value is not None}
        return DEFAULTS.get(str(given.get("update", "optimizer")), {}) | given

    @field_validator("periods")
    @classmethod
    def _periods_fit(cls, periods: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        if not periods:
            raise ValueError("no level is left: give one period a level, or leave the key out")
        if info.data.get("update") == "in_context":
            *changing, last = periods
            if last != 0:
                raise ValueError(f"the last level has the period {last}: it must be static in context, so end with 0")
            if any(period < 1 for period in changing) or changing != sorted(changing):
                raise ValueError(
                    "before the last level, periods are tokens, 1 or more, and none is shorter than the one before: "
                    "put the fastest level first"
                )
        elif any(period < 1 for period in periods):
            raise ValueError(f"a period of {min(periods)} optimiser steps: 1 (every step) is the least")
        return periods

    @field_validator("max_learning_rate")
    @classmethod
    def _rate_is_used(cls, rate: float | None, info: ValidationInfo) -> float | None:
        if rate is not None and info.data.get("update") == "optimizer":
            raise ValueError("only levels that change in context have one: leave it out, or set update: in_context")
        return rate

    @property
    def fast_levels(self) -> int:
        """How many levels change within the sequence and so keep a state."""
        return sum(period > 0 for period in self.periods) if self.update == "in_context" else 0


DEFAULTS: dict[str, dict[str, Any]] = {
    "optimizer": {"periods": (1, 2, 4, 8)},
    "in_context": {"periods": (64, 256, 1024, 0), "max_learning_rate": 1e-4},
}


def split_width(width: int, levels: int) -> tuple[int, ...]:
    """`width` in `levels` parts that add up to it, as even as can be, the larger ones first.

    Parts are multiples of 8 where `width` is one and holds 8 for every level. Raises ConfigError when it holds less
    than 1 for each.
    """
    if width < levels:
        raise ConfigError(
            f"an MLP width of {width} can't be split over {levels} levels: widen the narrowest layer or give fewer "
            "periods"
        )
    unit = WIDTH_UNIT if width % WIDTH_UNIT == 0 and width // WIDTH_UNIT >= levels else 1
    share, rest = divmod(width // unit, levels)
    return tuple(unit * (share + (level < rest)) for level in range(levels))


def level_widths(options: HopeOptions, width: int) -> tuple[int, ...]:
    """The widths of the levels of a layer of this width.

    In context a fast level costs more than a static one of its width, so there all are equal: only then do layers
    whose widths add up to the same cost the same. Raises ConfigError where the width can't be split so.
    """
    levels = len(options.periods)
    if options.update == "optimizer":
        return split_width(width, levels)
    if width % levels:
        raise ConfigError(
            f"an MLP width of {width} doesn't divide into {levels} equal levels, as updates in context need for equal "
            "FLOPs: give a number of periods that divides 16"
        )
    return (width // levels,) * levels
