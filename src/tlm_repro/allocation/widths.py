"""Layer widths: a schedule in multiples of 16, at exactly the budget of the uniform model (paper, Equation 7)."""

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

STEP = 16  # every width is a multiple of it (paper, text on rounding)
LARGEST = 10**6  # of a parameter: far above any use, far below overflow
BAR = 40  # characters of the widest bar in a table


def layer_widths(schedule: str, layers: int, width: int, **parameters: Any) -> tuple[int, ...]:
    """MLP widths of layers 0 … L−1: multiples of 16 that add up to exactly layers × width.

    Each width lies less than 16 from the curve, and their summed deviation from it is the least that the same sum, ends
    and order allow.

    Args:
        schedule: a name in `CURVES`.
        layers: L.
        width: D, the mean, which every layer of the uniform model has; a multiple of 16.
        parameters: of the schedule, where they differ from its defaults.

    Raises:
        ConfigError: a name, a parameter or a size doesn't fit; the message says what would.
    """
    shape, values = resolve(schedule, parameters)
    if not is_whole(layers) or layers < 1:
        raise ConfigError(f"layers is {layers!r}: give a whole number from 1 up")
    if not is_whole(width) or width < 1:
        raise ConfigError(f"width is {width!r}: give a multiple of {STEP} from {STEP} up")
    if width % STEP:
        near = [multiple for multiple in (width - width % STEP, width + STEP - width % STEP) if multiple]
        raise ConfigError(f"width {width} is not a multiple of {STEP}: use {' or '.join(map(str, near))}")
    multipliers = shape.multipliers(layers, **values)
    mean = width // STEP
    if shape.exact:
        units = exact_units(shape, multipliers, mean)
    elif shape.pinned_ends:
        units = pinned_units(multipliers, mean, values["start"], values["end"])
    else:
        units = relative_units(shape, multipliers, mean)
    return tuple(STEP * unit for unit in units)


def exact_units(shape: Curve, multipliers: Sequence[float], mean: int) -> list[int]:
    """Multiplier × mean for each layer. Raises ConfigError where that isn't whole: exact shapes aren't rounded."""
    for multiplier in multipliers:
        units = multiplier * mean
        if not math.isclose(units, round(units), rel_tol=0, abs_tol=1e-6):
            denominators = [Fraction(value).limit_denominator(1000).denominator for value in multipliers]
            raise ConfigError(
                f"schedule '{shape.name}': multiplier {decimal(multiplier)} × width {mean * STEP} is {units * STEP:g}, "
                f"not a multiple of {STEP}: use a width that is a multiple of {STEP * math.lcm(*denominators)}, "
                f"or other multipliers"
            )
    return [round(multiplier * mean) for multiplier in multipliers]


def pinned_units(multipliers: Sequence[float], mean: int, start: float, end: float) -> list[int]:
    """First and last layer at start × mean and end × mean, rounded to nearest; the others share what is left.

    The two ends lie symmetrically about the mean, so one's rounding settles the other's: a half is rounded up at the
    wide end and down at the narrow one. The curve between them is antisymmetric about mid-depth: remainders come in
    pairs r and 1 − r, and serving the largest rounds each layer to nearest. So the ends are never overtaken.
    """
    wide = nearest(max(start, end) * mean)
    narrow = 2 * mean - wide
    first, last = (wide, narrow) if start >= end else (narrow, wide)
    inner = multipliers[1:-1]
    return [first, *apportion(inner, len(inner) * mean), last]


def relative_units(shape: Curve, multipliers: Sequence[float], mean: int) -> list[int]:
    """The multipliers, rescaled to the mean and rounded; a layer whose multiplier is 0 gets nothing."""
    if not any(multipliers):
        raise ConfigError(
            f"schedule '{shape.name}' gives no layer any width: raise one of {', '.join(shape.parameters)}"
        )
    return apportion(multipliers, len(multipliers) * mean)


def resolve(schedule: str, parameters: Mapping[str, Any]) -> tuple[Curve, dict[str, Any]]:
    """The schedule of that name and all its parameters, those not given at their defaults.

    Raises:
        ConfigError: the schedule or a parameter is unknown, a value isn't a number from 0 up, or the two ends don't
            average to 1.
    """
    if schedule not in CURVES:
        raise ConfigError(f"unknown schedule {unknown(schedule, list(CURVES))}")
    shape = CURVES[schedule]
    for name in parameters:
        if not shape.parameters:
            raise ConfigError(f"schedule '{schedule}' takes no parameters: remove '{name}'")
        if name not in shape.parameters:
            raise ConfigError(f"schedule '{schedule}': unknown parameter {unknown(name, list(shape.parameters))}")
    values = {
        name: checked(f"schedule '{schedule}': {name}", parameters.get(name, default), default)
        for name, default in shape.defaults.items()
    }
    if shape.pinned_ends:
        check_ends(schedule, values["start"], values["end"])
    return shape, values


def check_ends(schedule: str, start: float, end: float) -> None:
    """Raises ConfigError unless start + end = 2, without which the widths can't average to D."""
    if math.isclose(start + end, 2, rel_tol=0, abs_tol=1e-9):
        return
    ways = [f"end {2 - start:.6g}"] if start <= 2 else []
    ways += [f"start {2 - end:.6g}"] if end <= 2 else []
    remedy = f"use {' or '.join(ways)}" if ways else "use two ratios that add up to 2"
    raise ConfigError(
        f"schedule '{schedule}': start {decimal(start)} and end {decimal(end)} average to {(start + end) / 2:.6g}, "
        f"but the ratios must average to 1: {remedy}"
    )


def checked(what: str, value: Any, default: Any) -> Any:
    """`value` as a float, or as a tuple of as many floats as the default has. Raises ConfigError for anything else."""
    if isinstance(default, tuple):
        if not isinstance(value, list | tuple) or len(value) != len(default):
            raise ConfigError(f"{what} is {value!r}: give {len(default)} numbers, for example {list(default)}")
        return tuple(checked(what, item, 1.0) for item in value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST:
        raise ConfigError(f"{what} is {value!r}: give a number from 0 to {LARGEST}")
    return float(value) + 0.0  # -0.0 becomes 0.0


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def unknown(name: str, known: list[str]) -> str:
    """`'nmae': did you mean 'name'? Known: …`."""
    close = difflib.get_close_matches(str(name).lower().replace("_", "-"), known, n=1)
    hint = f" did you mean '{close[0]}'?" if close else ""
    return f"'{name}':{hint} known are {', '.join(known)}"


def label(schedule: str, **parameters: Any) -> str:
    """The allocation in a run id: `cosine-1.5-0.5`, `sigmoid-1.5-0.5-k8`, `uniform`, `v-shape-bottleneck0.5`.

    Parameters that make up the name of a taper or of groups are always there, the others only where they differ from
    their defaults. Equal allocations have equal labels, whatever was left out or written as an integer.

    Raises:
        ConfigError: as `resolve` does.
    """
    shape, values = resolve(schedule, parameters)
    parts = [schedule]
    for name, value in values.items():
        text = "-".join(map(decimal, value)) if isinstance(value, tuple) else decimal(value)
        parameter = shape.parameters[name]
        if parameter.labelled:
            parts.append(text)
        elif value != parameter.default:
            parts.append((parameter.symbol or name) + text.removesuffix(".0"))
    return "-".join(parts)


def decimal(value: float) -> str:
    """The shortest decimal that reads back as the same float, without an exponent, with a digit after the point."""
    text = format(Decimal(repr(float(value))), "f")
    return text if "." in text else f"{text}.0"


@dataclass(frozen=True)
class Summary:
    """What an allocation does to a uniform model of the same budget. Widths count hidden units of the MLP."""

    layers: int
    width: int  # D, of every layer of the uniform model
    model_width: int | None  # d
    widths: tuple[int, ...]
    ratios: tuple[float, ...]  # width ÷ D
    total: int
    mean: float
    layers_without_mlp: int
    moved_width: int  # taken from the layers below D and given to those above it
    moved_parameters: int | None  # the same in parameters of a SwiGLU MLP, 3·d a hidden unit

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    def to_text(self) -> str:
        """A table for the terminal: one line a layer, with a bar, and the totals."""
        rows = ["layer  width  ÷ mean"]
        widest = max(self.widths)
        for layer, (width, ratio) in enumerate(zip(self.widths, self.ratios, strict=True)):
            rows.append(f"{layer:5d}  {width:5d}  {ratio:6.3f}  {'#' * round(BAR * width / widest)}".rstrip())
        rows.append(f"sum {self.total:,} = {self.layers} layers × {self.mean:,.10g}; uniform {self.width:,}")
        if self.layers_without_mlp:
            rows.append(f"layers without an MLP: {self.layers_without_mlp}")
        moved = f"moved: {self.moved_width:,} of width ({self.moved_width / self.total:.1%} of the budget)"
        if self.moved_parameters is not None:
            moved += f" = {self.moved_parameters:,} parameters at model width {self.model_width:,}"
        return "\n".join([*rows, moved])


def summary(widths: Sequence[int], width: int, model_width: int | None = None) -> Summary:
    """Describes `widths`, as `layer_widths` returns them, against `width` in every layer.

    With the model width d the parameters moved are 3·d·Σ|w − D| / 2, SwiGLU having three d × w matrices.
    """
    moved = sum(abs(each - width) for each in widths) // 2
    return Summary(
        layers=len(widths),
        width=width,
        model_width=model_width,
        widths=tuple(widths),
        ratios=tuple(each / width for each in widths),
        total=sum(widths),
        mean=sum(widths) / len(widths),
        layers_without_mlp=sum(each == 0 for each in widths),
        moved_width=moved,
        moved_parameters=None if model_width is None else 3 * model_width * moved,
    )
