"""The shape of an allocation over depth: one relative multiplier a layer, unrounded.

Layer l = 0 … L−1 lies at depth x = l / (L−1); `start` is the value at x = 0 and `end` the one at x = 1. `widths` turns
a shape into layer widths at an exact budget.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tlm_repro.allocation.budget import nearest
from tlm_repro.errors import ConfigError

Value = float | tuple[float, ...]


@dataclass(frozen=True)
class Schedule:
    """A named shape, its parameters with their defaults, and where it was published.

    A schedule with `pinned_ends` has parameters `start` and `end`, ratios to the mean that add up to 2: the first and
    last layers get exactly these, to the nearest rounding step. An `exact` one needs no rounding: every width is its
    multiplier times the mean. Any other shape is relative: it is rescaled to the mean, then rounded.
    """

    name: str
    title: str
    source: str
    function: Callable[..., list[float]]
    parameters: Mapping[str, Value] = field(default_factory=dict)
    pinned_ends: bool = False
    exact: bool = False
    minimum_layers: int = 1
    labelled: tuple[str, ...] = ()  # a label always shows these, by value alone
    symbols: Mapping[str, str] = field(default_factory=dict)  # what a label calls the others; by default their name

    def multipliers(self, layers: int, **parameters: Value) -> list[float]:
        """One multiplier for each layer. Raises ConfigError for too few layers or an unusable parameter."""
        if layers < self.minimum_layers:
            raise ConfigError(f"schedule '{self.name}' needs {self.minimum_layers} layers or more, not {layers}")
        return self.function(layers, **{**self.parameters, **parameters})


def uniform(layers: int) -> list[float]:
    return [1.0] * layers


def taper(start: float, end: float, remaining: list[float]) -> list[float]:
    """end + (start − end) × what remains of the drop, 1 … 0, in the form that never leaves the interval of the two."""
    return [rest * start + (1 - rest) * end for rest in remaining]


def linear(layers: int, start: float, end: float) -> list[float]:
    """start − (start − end)·x."""
    return taper(start, end, [1 - layer / (layers - 1) for layer in range(layers)])


def cosine(layers: int, start: float, end: float) -> list[float]:
    """end + (start − end) / 2 · (1 + cos πx)."""
    return taper(start, end, [(1 + math.cos(math.pi * layer / (layers - 1))) / 2 for layer in range(layers)])


def sigmoid(layers: int, start: float, end: float, sharpness: float) -> list[float]:
    """end + (start − end) / (1 + exp(k·(x − ½))), by tanh, which doesn't overflow for a large k."""
    if sharpness <= 0:
        raise ConfigError(f"schedule 'sigmoid': sharpness {sharpness} must be above 0; the paper has 10")
    remaining = [(1 - math.tanh(sharpness * (layer / (layers - 1) - 0.5) / 2)) / 2 for layer in range(layers)]
    return taper(start, end, remaining)


def reverse(layers: int, start: float, end: float) -> list[float]:
    """The cosine taper upside down: narrow first, wide last."""
    if start > end:
        raise ConfigError(
            f"schedule 'reverse' widens with depth, so start {start} can't exceed end {end}: "
            f"swap them, or use schedule 'cosine' to narrow"
        )
    return cosine(layers, start, end)


def thirds(layers: int, multipliers: tuple[float, ...]) -> list[float]:
    """Three equal groups of layers with one multiplier each."""
    if layers % 3:
        below = layers - layers % 3
        raise ConfigError(
            f"schedule 'thirds' needs a number of layers divisible by 3, not {layers}: use {below} or {below + 3}"
        )
    if abs(math.fsum(multipliers) - 3) > 1e-9:
        mean = math.fsum(multipliers) / 3
        raise ConfigError(
            f"schedule 'thirds': multipliers {list(multipliers)} average to {mean:g}: they must average to 1"
        )
    return [multiplier for multiplier in multipliers for _ in range(layers // 3)]


def framed(layers: int, start: float, end: float) -> list[float]:
    """Linear from `start` to `end` over the inner layers; the first and the last layer get `end` too."""
    return [end, *linear(layers - 2, start, end), end]


def crown(layers: int, edge: float, peak: float) -> list[float]:
    """Linear from `edge` up to `peak` at the two middle layers (the middle one, if their number is odd) and back."""
    rise = linear((layers + 1) // 2, edge, peak)
    return rise + rise[::-1][layers % 2 :]


def middle(layers: int, fraction: float) -> list[float]:
    """MLPs in the middle `fraction` of the layers only. Of an odd number of bare layers, one more lies at the end."""
    if not 0 < fraction <= 1:
        raise ConfigError(f"schedule 'middle': fraction {fraction} must be above 0 and at most 1")
    filled = max(1, nearest(fraction * layers))
    before = (layers - filled) // 2
    return [0.0] * before + [1.0] * filled + [0.0] * (layers - filled - before)


def v_shape(layers: int, bottleneck: float, position: float) -> list[float]:
    """Geometric from 1 down to `bottleneck` at layer number `position` × layers, counted from 1, then back to 1."""
    if bottleneck <= 0:
        raise ConfigError(f"schedule 'v-shape': bottleneck {bottleneck} must be above 0")
    if not 0 < position < 1:
        raise ConfigError(f"schedule 'v-shape': position {position} must lie between 0 and 1")
    last = layers - 1
    lowest = min(max(nearest(position * layers) - 1, 1), last - 1)
    return [bottleneck ** min(layer / lowest, (last - layer) / (last - lowest)) for layer in range(layers)]


TLM = "Tapered Language Models, arXiv 2606.23670"
LAYER_WISE_SCALING = "Baroian and Notebomer 2025, arXiv 2509.06518"
TAPERED: dict[str, Value] = {"start": 1.5, "end": 0.5}

SCHEDULES: dict[str, Schedule] = {
    schedule.name: schedule
    for schedule in (
        Schedule("uniform", "The same width in every layer", f"{TLM}, baseline", uniform, exact=True),
        Schedule(
            "linear",
            "Linear taper",
            f"{TLM}, Table 1",
            linear,
            TAPERED,
            pinned_ends=True,
            minimum_layers=2,
            labelled=("start", "end"),
        ),
        Schedule(
            "cosine",
            "Cosine taper",
            f"{TLM}, Table 1",
            cosine,
            TAPERED,
            pinned_ends=True,
            minimum_layers=2,
            labelled=("start", "end"),
        ),
        Schedule(
            "sigmoid",
            "Sigmoid taper",
            f"{TLM}, Table 1",
            sigmoid,
            {**TAPERED, "sharpness": 10.0},
            pinned_ends=True,
            minimum_layers=2,
            labelled=("start", "end"),
            symbols={"sharpness": "k"},
        ),
        Schedule(
            "thirds",
            "Three equal groups of layers",
            f"{TLM}, Figure 2",
            thirds,
            {"multipliers": (1.5, 1.0, 0.5)},
            exact=True,
            minimum_layers=3,
            labelled=("multipliers",),
        ),
        Schedule(
            "reverse",
            "Cosine taper upside down",
            f"{TLM}, start and end swapped",
            reverse,
            {"start": 0.5, "end": 1.5},
            pinned_ends=True,
            minimum_layers=2,
        ),
        Schedule(
            "openelm",
            "Layer-wise scaling as in OpenELM",
            "Mehta et al. 2024, arXiv 2404.14619",
            linear,
            {"start": 0.5, "end": 4.0},
            minimum_layers=2,
        ),
        Schedule(
            "delight",
            "Block-wise scaling as in DeLighT",
            "Mehta et al. 2021, arXiv 2008.00623",
            linear,
            {"start": 1.0, "end": 2.0},
            minimum_layers=2,
        ),
        Schedule(
            "vanilla",
            "Vanilla layer-wise scaling",
            LAYER_WISE_SCALING,
            linear,
            {"start": 1.0, "end": 4.0},
            minimum_layers=2,
        ),
        Schedule(
            "vanilla-reversed",
            "Reverse layer-wise scaling",
            LAYER_WISE_SCALING,
            linear,
            {"start": 4.0, "end": 0.5},
            minimum_layers=2,
        ),
        Schedule(
            "framed",
            "Framed layer-wise scaling",
            LAYER_WISE_SCALING,
            framed,
            {"start": 0.5, "end": 4.0},
            minimum_layers=4,
        ),
        Schedule(
            "crown",
            "Crown layer-wise scaling",
            LAYER_WISE_SCALING,
            crown,
            {"edge": 0.5, "peak": 3.8},
            minimum_layers=3,
        ),
        Schedule(
            "middle",
            "MLPs in the middle layers only",
            "Ikeda et al. 2025",
            middle,
            {"fraction": 0.7},
        ),
        Schedule(
            "v-shape",
            "Narrow waist late in depth",
            "Variable-Width Transformers, arXiv 2606.18246",
            v_shape,
            {"bottleneck": 0.3, "position": 0.75},
            minimum_layers=3,
        ),
    )
}
