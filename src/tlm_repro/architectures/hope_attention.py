"""Hope-attention (arXiv 2512.24695): attention, with a continuum memory as its feed-forward block.

Shapes: d model width, F feed-forward width, T time.
"""

from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from tlm_repro.architectures.base import Options, split_lengths
from tlm_repro.architectures.transformer import Transformer
from tlm_repro.errors import ConfigError
from tlm_repro.spec.run import ModelSpec

# Widths that are multiples of this keep a GPU's matrix units busy.
WIDTH_UNIT = 8


class HopeOptions(Options):
    """The continuum memory that replaces the MLP in Hope-attention (arXiv 2512.24695).

    Where `periods` or `max_learning_rate` is missing or null, it has the value of `update`'s mode in `DEFAULTS`.
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


class HopeAttention(Transformer):
    title = "Hope-attention"
    options = HopeOptions
    feed_forward = "tlm_repro.models.continuum:ContinuumMemory"

    def feed_forward_parameters(self, model: ModelSpec, width: int) -> int:
        """One SwiGLU's, split over the levels, and the rate maps of those that change within the sequence."""
        options = HopeOptions.of(model)
        level_widths(options, width)  # raises where the width can't be split
        return super().feed_forward_parameters(model, width) + options.fast_levels * 3 * (model.model_width + 1)

    def feed_forward_flops(self, model: ModelSpec, width: int, time: int) -> int:
        """Every level is read as a SwiGLU is. A fast one adds its rates and, for all chunks but the last, its errors,
        weights and momentum.
        """
        options, d = HopeOptions.of(model), model.model_width
        total = 2 * time * super().feed_forward_parameters(model, width)
        parts = level_widths(options, width)
        for part, chunk in list(zip(parts, options.periods, strict=True))[: options.fast_levels]:
            *written, _ = split_lengths(time, chunk)
            total += 10 * 2 * sum(written) * d * part + 2 * time * 3 * d
            total += sum(2 * tokens**2 + 2 * tokens for tokens in split_lengths(time, chunk))
        return total

    def gradient_sums(self, model: ModelSpec, width: int) -> int:
        """Those of levels that take an optimiser step less often than every training step."""
        options = HopeOptions.of(model)
        if options.update != "optimizer":
            return 0
        parts = zip(level_widths(options, width), options.periods, strict=True)
        return super().feed_forward_parameters(model, sum(part for part, period in parts if period > 1))

    def keeps_state(self, model: ModelSpec) -> bool:
        """True where levels change within the sequence."""
        return HopeOptions.of(model).fast_levels > 0
