"""Layer widths: a curve in multiples of 16, at exactly the budget of the uniform model (paper, Equation 7)."""

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from tlm_repro.allocation.budget import apportion, nearest
from tlm_repro.allocation.curves import CURVES, Curve
from tlm_repro.errors import ConfigError

STEP = 16  # every width is a multiple of this (paper, text on rounding)
MAX_PARAMETER = 10**6  # far above any use, far below overflow
BAR_CHARACTERS = 40  # of the widest bar in a table


def layer_widths(schedule: str, layers: int, width: int, **parameters: Any) -> tuple[int, ...]:
    """MLP widths of layers 0 … L−1: multiples of 16 that add up to exactly layers × width.

    Each width lies less than 16 from the curve. No other widths with the same sum, ends and order have a smaller summed
    deviation from the curve.

    Args:
        schedule: name of a curve in `CURVES`.
        layers: L.
        width: D, the mean width, which every layer of the uniform model has; a multiple of 16.
        parameters: the curve's parameters that differ from its defaults.

    Raises:
        ConfigError: a name, a parameter or a size is invalid; the message says what is allowed.
    """
    curve, values = resolve(schedule, parameters)
    if not is_whole(layers) or layers < 1:
        raise ConfigError(f"layers is {layers!r}: give a whole number from 1 up")
    if not is_whole(width) or width < 1:
        raise ConfigError(f"width is {width!r}: give a multiple of {STEP} from {STEP} up")
    if width % STEP:
        multiples = [multiple for multiple in (width - width % STEP, width + STEP - width % STEP) if multiple]
        raise ConfigError(f"width {width} is not a multiple of {STEP}: use {' or '.join(map(str, multiples))}")
    multipliers = curve.multipliers(layers, **values)
    mean = width // STEP
    if curve.exact:
        units = exact_units(curve, multipliers, mean)
    elif curve.pinned_ends:
        units = pinned_units(multipliers, mean, values["start"], values["end"])
    else:
        units = relative_units(curve, multipliers, mean)
    return tuple(STEP * unit for unit in units)


def exact_units(curve: Curve, multipliers: Sequence[float], mean: int) -> list[int]:
    """Multiplier × mean for each layer. Raises ConfigError if that isn't whole, because exact curves aren't rounded."""
    for multiplier in multipliers:
        units = multiplier * mean
        if not math.isclose(units, round(units), rel_tol=0, abs_tol=1e-6):
            denominators = [Fraction(value).limit_denominator(1000).denominator for value in multipliers]
            raise ConfigError(
                f"schedule '{curve.name}': multiplier {decimal(multiplier)} × width {mean * STEP} is {units * STEP:g}, "
                f"not a multiple of {STEP}: use a width that is a multiple of {STEP * math.lcm(*denominators)}, "
                f"or other multipliers"
            )
    return [round(multiplier * mean) for multiplier in multipliers]


def pinned_units(multipliers: Sequence[float], mean: int, start: float, end: float) -> list[int]:
    """First and last layer at start × mean and end × mean, rounded to nearest; the other layers share the rest.

    The two ends are symmetric about the mean, so the rounding of one determines the other: a half is rounded up at the
    wide end and down at the narrow end. The curve between them is antisymmetric about mid-depth, so remainders come in
    pairs r and 1 − r, and serving the largest first rounds each layer to nearest. No inner layer exceeds the ends.
    """
    wide = nearest(max(start, end) * mean)
    narrow = 2 * mean - wide
    first, last = (wide, narrow) if start >= end else (narrow, wide)
    inner = multipliers[1:-1]
    return [first, *apportion(inner, len(inner) * mean), last]


def relative_units(curve: Curve, multipliers: Sequence[float], mean: int) -> list[int]:
    """The multipliers, rescaled to the mean and rounded. A layer whose multiplier is 0 gets 0."""
    if not any(multipliers):
        raise ConfigError(
            f"schedule '{curve.name}' gives every layer width 0: raise one of {', '.join(curve.parameters)}"
        )
    return apportion(multipliers, len(multipliers) * mean)


def resolve(schedule: str, parameters: Mapping[str, Any]) -> tuple[Curve, dict[str, Any]]:
    """The curve of that name, and all its parameters with defaults filled in.

    Raises:
        ConfigError: the curve or a parameter is unknown, a value isn't a number of 0 or more, or the two ends don't
            average to 1.
    """
    if schedule not in CURVES:
        raise ConfigError(f"unknown schedule {suggestion(schedule, list(CURVES))}")
    curve = CURVES[schedule]
    for name in parameters:
        if not curve.parameters:
            raise ConfigError(f"schedule '{schedule}' takes no parameters: remove '{name}'")
        if name not in curve.parameters:
            raise ConfigError(f"schedule '{schedule}': unknown parameter {suggestion(name, list(curve.parameters))}")
    values = {
        name: parse_value(f"schedule '{schedule}': {name}", parameters.get(name, default), default)
        for name, default in curve.defaults.items()
    }
    if curve.pinned_ends:
        check_ends(schedule, values["start"], values["end"])
    return curve, values


def check_ends(schedule: str, start: float, end: float) -> None:
    """Raises ConfigError unless start + end = 2, without which the widths can't average to D."""
    if math.isclose(start + end, 2, rel_tol=0, abs_tol=1e-9):
        return
    options = [f"end {2 - start:.6g}"] if start <= 2 else []
    options += [f"start {2 - end:.6g}"] if end <= 2 else []
    remedy = f"use {' or '.join(options)}" if options else "use two ratios that add up to 2"
    raise ConfigError(
        f"schedule '{schedule}': start {decimal(start)} and end {decimal(end)} average to {(start + end) / 2:.6g}, "
        f"but the ratios must average to 1: {remedy}"
    )


def parse_value(what: str, value: Any, default: Any) -> Any:
    """`value` as a float, or as a tuple of as many floats as the default has. Raises ConfigError for anything else."""
    if isinstance(default, tuple):
        if not isinstance(value, list | tuple) or len(value) != len(default):
            raise ConfigError(f"{what} is {value!r}: give {len(default)} numbers, for example {list(default)}")
        return tuple(parse_value(what, item, 1.0) for item in value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_PARAMETER:
        raise ConfigError(f"{what} is {value!r}: give a number from 0 to {MAX_PARAMETER}")
    return float(value) + 0.0  # -0.0 becomes 0.0


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def suggestion(name: str, choices: list[str]) -> str:
    """The end of a message about an unknown name: `'nmae'; did you mean 'name'? Choose one of …`."""
    close = difflib.get_close_matches(str(name).lower().replace("_", "-"), choices, n=1)
    hint = f"; did you mean '{close[0]}'? Choose" if close else ": choose"
    return f"'{name}'{hint} one of {', '.join(choices)}"


def label(schedule: str, **parameters: Any) -> str:
    """The allocation in a run id: `cosine-1.5-0.5`, `sigmoid-1.5-0.5-k8`, `uniform`, `v-shape-bottleneck0.5`.

    A label always has the parameters declared as `labelled`, and others if they differ from their defaults. Equal
    allocations have equal labels, also if a parameter is omitted or written as an integer.

    Raises:
        ConfigError: as `resolve` does.
    """
    curve, values = resolve(schedule, parameters)
    parts = [schedule]
    for name, value in values.items():
        text = "-".join(map(decimal, value)) if isinstance(value, tuple) else decimal(value)
        parameter = curve.parameters[name]
        if parameter.labelled:
            parts.append(text)
        elif value != parameter.default:
            parts.append((parameter.symbol or name) + text.removesuffix(".0"))
    return "-".join(parts)


def decimal(value: float) -> str:
    """The shortest decimal for the same float, without an exponent and with at least one digit after the point."""
    text = format(Decimal(repr(float(value))), "f")
    return text if "." in text else f"{text}.0"


@dataclass(frozen=True)
class Summary:
    """An allocation compared with the uniform model of the same budget. Widths are hidden units of the MLP."""

    layers: int
    width: int  # D, the width of every layer of the uniform model
    model_width: int | None  # d
    widths: tuple[int, ...]
    ratios: tuple[float, ...]  # width ÷ D
    total: int
    mean: float
    layers_without_mlp: int
    moved_width: int  # taken from layers narrower than D and given to wider ones
    moved_parameters: int | None  # moved_width in parameters of a SwiGLU MLP, 3·d for each hidden unit

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    def to_text(self) -> str:
        """A table for the terminal: one line with a bar for each layer, and the totals."""
        rows = ["layer  width  ÷ mean"]
        widest = max(self.widths)
        for layer, (width, ratio) in enumerate(zip(self.widths, self.ratios, strict=True)):
            rows.append(
                f"{layer:5d}  {width:5d}  {ratio:6.3f}  {'#' * round(BAR_CHARACTERS * width / widest)}".rstrip()
            )
        rows.append(f"sum {self.total:,} = {self.layers} layers × {self.mean:,.10g}; uniform {self.width:,}")
        if self.layers_without_mlp:
            rows.append(f"layers without an MLP: {self.layers_without_mlp}")
        moved = f"moved: {self.moved_width:,} of width ({self.moved_width / self.total:.1%} of the budget)"
        if self.moved_parameters is not None:
            moved += f" = {self.moved_parameters:,} parameters at model width {self.model_width:,}"
        return "\n".join([*rows, moved])


def summary(widths: Sequence[int], width: int, model_width: int | None = None) -> Summary:
    """Compares `widths`, as `layer_widths` returns them, with `width` in every layer.

    At model width d, 3·d·Σ|w − D| / 2 parameters are moved, because SwiGLU has three d × w matrices.
    """
    moved = sum(abs(layer_width - width) for layer_width in widths) // 2
    return Summary(
        layers=len(widths),
        width=width,
        model_width=model_width,
        widths=tuple(widths),
        ratios=tuple(layer_width / width for layer_width in widths),
        total=sum(widths),
        mean=sum(widths) / len(widths),
        layers_without_mlp=sum(layer_width == 0 for layer_width in widths),
        moved_width=moved,
        moved_parameters=None if model_width is None else 3 * model_width * moved,
    )
