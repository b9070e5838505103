"""The curves of allocations over depth: one relative, unrounded multiplier for each layer.

Layer l = 0 … L−1 lies at depth x = l / (L−1). `start` is the value at x = 0 and `end` the value at x = 1. `widths`
turns a curve into layer widths at an exact budget. A curve is a function whose `@curve` declares everything else.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tlm_repro.allocation.budget import nearest
from tlm_repro.errors import ConfigError

Value = float | tuple[float, ...]
Function = Callable[..., list[float]]


@dataclass(frozen=True)
class Parameter:
    """A parameter of a curve.

    A run's label always shows a `labelled` parameter, and any other after its `symbol` if it isn't at its default.
    """

    default: Value
    meaning: str
    labelled: bool = False
    symbol: str | None = None  # None: its name


@dataclass(frozen=True)
class Curve:
    """A named curve, its parameters and its source.

    A curve with `pinned_ends` has the parameters `start` and `end`, ratios to the mean that add up to 2. The first and
    last layers get exactly these, to the nearest rounding step. An `exact` curve isn't rounded: every width is its
    multiplier times the mean. Any other curve is rescaled to the mean, then rounded.
    """

    name: str
    title: str
    source: str
    function: Function
    parameters: Mapping[str, Parameter]
    pinned_ends: bool = False
    exact: bool = False
    minimum_layers: int = 1

    @property
    def defaults(self) -> dict[str, Value]:
        return {name: parameter.default for name, parameter in self.parameters.items()}

    def multipliers(self, layers: int, **parameters: Value) -> list[float]:
        """One multiplier for each layer. Raises ConfigError for too few layers or an invalid parameter."""
        if layers < self.minimum_layers:
            raise ConfigError(f"schedule '{self.name}' needs at least {self.minimum_layers} layers, not {layers}")
        return self.function(layers, **{**self.defaults, **parameters})


CURVES: dict[str, Curve] = {}


def curve(
    name: str,
    title: str,
    source: str,
    parameters: Mapping[str, Parameter] | None = None,
    *,
    pinned_ends: bool = False,
    exact: bool = False,
    minimum_layers: int = 1,
) -> Callable[[Function], Function]:
    """Registers the decorated function, (layers, **parameters) → one multiplier for each layer, in `CURVES`.

    The configuration's keys, `tlm-repro widths` and the labels of runs follow from this declaration.
    """

    def register(function: Function) -> Function:
        CURVES[name] = Curve(name, title, source, function, parameters or {}, pinned_ends, exact, minimum_layers)
        return function

    return register


def ends(start: float, end: float, *, labelled: bool = False) -> dict[str, Parameter]:
    """The parameters `start` and `end`, which most curves have."""
    return {
        "start": Parameter(start, "First layer's width ÷ D.", labelled),
        "end": Parameter(
            end, "Last layer's width ÷ D; of the tapers start + end = 2, other shapes are rescaled to mean D.", labelled
        ),
    }


TLM = "Tapered Language Models, arXiv 2606.23670"
OPENELM = "Mehta et al. 2024, arXiv 2404.14619"
DELIGHT = "Mehta et al. 2021, arXiv 2008.00623"
LAYER_WISE_SCALING = "Baroian and Notebomer 2025, arXiv 2509.06518"
TAPER = ends(1.5, 0.5, labelled=True)


@curve(
    "uniform",
    "The same width in every layer",
    f"{TLM}, baseline",
    exact=True,
)
def uniform(layers: int) -> list[float]:
    return [1.0] * layers


def taper(start: float, end: float, remaining: list[float]) -> list[float]:
    """end + (start − end) × remaining, which falls from 1 to 0, in a form that stays between start and end."""
    return [share * start + (1 - share) * end for share in remaining]


@curve(
    "linear",
    "Linear taper",
    f"{TLM}, Table 1",
    TAPER,
    pinned_ends=True,
    minimum_layers=2,
)
def linear(layers: int, start: float, end: float) -> list[float]:
    """start − (start − end)·x."""
    return taper(start, end, [1 - layer / (layers - 1) for layer in range(layers)])


@curve(
    "cosine",
    "Cosine taper",
    f"{TLM}, Table 1",
    TAPER,
    pinned_ends=True,
    minimum_layers=2,
)
def cosine(layers: int, start: float, end: float) -> list[float]:
    """end + (start − end) / 2 · (1 + cos πx)."""
    return taper(start, end, [(1 + math.cos(math.pi * layer / (layers - 1))) / 2 for layer in range(layers)])


@curve(
    "sigmoid",
    "Sigmoid taper",
    f"{TLM}, Table 1",
    {**TAPER, "sharpness": Parameter(10.0, "Steepness k of the sigmoid. [paper: 10]", symbol="k")},
    pinned_ends=True,
    minimum_layers=2,
)
def sigmoid(layers: int, start: float, end: float, sharpness: float) -> list[float]:
    """end + (start − end) / (1 + exp(k·(x − ½))), computed with tanh, which doesn't overflow for a large k."""
    if sharpness <= 0:
        raise ConfigError(f"schedule 'sigmoid': sharpness {sharpness} must be above 0; the paper uses 10")
    remaining = [(1 - math.tanh(sharpness * (layer / (layers - 1) - 0.5) / 2)) / 2 for layer in range(layers)]
    return taper(start, end, remaining)


@curve(
    "thirds",
    "Three equal groups of layers",
    f"{TLM}, Figure 2",
    {"multipliers": Parameter((1.5, 1.0, 0.5), "Width ÷ D of three equal groups.", labelled=True)},
    exact=True,
    minimum_layers=3,
)
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
            f"schedule 'thirds': multipliers {list(multipliers)} average to {mean:g}, but they must average to 1"
        )
    return [multiplier for multiplier in multipliers for _ in range(layers // 3)]


@curve(
    "reverse",
    "Cosine taper upside down",
    f"{TLM}, start and end swapped",
    ends(0.5, 1.5),
    pinned_ends=True,
    minimum_layers=2,
)
def reverse(layers: int, start: float, end: float) -> list[float]:
    """The cosine taper mirrored over depth: narrow first, wide last."""
    if start > end:
        raise ConfigError(
            f"schedule 'reverse' widens with depth, so start {start} can't exceed end {end}: "
            f"swap them, or use schedule 'cosine' to narrow"
        )
    return cosine(layers, start, end)


curve("openelm", "Layer-wise scaling as in OpenELM", OPENELM, ends(0.5, 4.0), minimum_layers=2)(linear)
curve("delight", "Block-wise scaling as in DeLighT", DELIGHT, ends(1.0, 2.0), minimum_layers=2)(linear)
curve("vanilla", "Vanilla layer-wise scaling", LAYER_WISE_SCALING, ends(1.0, 4.0), minimum_layers=2)(linear)
curve("vanilla-reversed", "Reverse layer-wise scaling", LAYER_WISE_SCALING, ends(4.0, 0.5), minimum_layers=2)(linear)


@curve(
    "framed",
    "Framed layer-wise scaling",
    LAYER_WISE_SCALING,
    ends(0.5, 4.0),
    minimum_layers=4,
)
def framed(layers: int, start: float, end: float) -> list[float]:
    """Linear from `start` to `end` over the inner layers. The first and the last layer also get `end`."""
    return [end, *linear(layers - 2, start, end), end]


@curve(
    "crown",
    "Crown layer-wise scaling",
    LAYER_WISE_SCALING,
    {
        "edge": Parameter(0.5, "Relative width of the crown's ends."),
        "peak": Parameter(3.8, "Relative width of the crown's middle."),
    },
    minimum_layers=3,
)
def crown(layers: int, edge: float, peak: float) -> list[float]:
    """Linear from `edge` up to `peak` at the two middle layers (one, if the number of layers is odd) and back."""
    rise = linear((layers + 1) // 2, edge, peak)
    return rise + rise[::-1][layers % 2 :]


@curve(
    "middle",
    "MLPs in the middle layers only",
    "Ikeda et al. 2025",
    {"fraction": Parameter(0.7, "Share of the layers, in the middle, that have an MLP.")},
)
def middle(layers: int, fraction: float) -> list[float]:
    """MLPs in the middle `fraction` of the layers only. The odd layer without an MLP, if any, lies at the end."""
    if not 0 < fraction <= 1:
        raise ConfigError(f"schedule 'middle': fraction {fraction} must be above 0 and at most 1")
    count = max(1, nearest(fraction * layers))
    before = (layers - count) // 2
    return [0.0] * before + [1.0] * count + [0.0] * (layers - count - before)


@curve(
    "v-shape",
    "Narrow waist late in depth",
    "Variable-Width Transformers, arXiv 2606.18246",
    {
        "bottleneck": Parameter(0.3, "Narrowest width of the V ÷ its widest."),
        "position": Parameter(0.75, "Depth of the V's narrowest layer, 0…1."),
    },
    minimum_layers=3,
)
def v_shape(layers: int, bottleneck: float, position: float) -> list[float]:
    """Geometric from 1 down to `bottleneck` at layer number `position` × layers, counted from 1, then back to 1."""
    if bottleneck <= 0:
        raise ConfigError(f"schedule 'v-shape': bottleneck {bottleneck} must be above 0")
    if not 0 < position < 1:
        raise ConfigError(f"schedule 'v-shape': position {position} must lie between 0 and 1")
    last = layers - 1
    lowest = min(max(nearest(position * layers) - 1, 1), last - 1)
    return [bottleneck ** min(layer / lowest, (last - layer) / (last - lowest)) for layer in range(layers)]
