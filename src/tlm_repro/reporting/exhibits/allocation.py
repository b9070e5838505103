"""Figure 3: MLP width by layer under each allocation, all at exactly the same budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from tlm_repro.allocation.widths import label as allocation_label
from tlm_repro.allocation.widths import layer_widths
from tlm_repro.errors import ConfigError
from tlm_repro.records.view import Shapes
from tlm_repro.reporting.evidence import Evidence
from tlm_repro.reporting.exhibit import Exhibit
from tlm_repro.reporting.lazy import ticker
from tlm_repro.reporting.style import LINES, MARKERS, NEUTRAL, PALETTE, blank, theme
from tlm_repro.reporting.tapers import CURVE_NAMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RATIOS = ((1.25, 0.75), (1.375, 0.625), (1.5, 0.5), (1.625, 0.375), (1.75, 0.25))  # Table 1
MAIN_RATIO = (1.5, 0.5)


class Allocation(Exhibit):
    name = "allocation"
    title = "Figure 3"
    caption = "Figure 3: MLP width of each layer; every allocation spends exactly the same budget."
    order = 60
    shapes = True

    def figure(self, evidence: Evidence) -> Figure:
        """The three curves at 1.5/0.5, cosine at five ratios, and the other allocations of this configuration.

        Lines are the widths of the runs; those that no run has are computed.
        """
        shapes = evidence.shapes
        if shapes is None:
            raise ConfigError("--view: the file has no 'shapes'. Pass results/views/allocation-*.json")
        return draw(shapes)


def draw(shapes: Shapes) -> Figure:
    layers, width = shapes.layers, shapes.width

    def line(curve: str, start: float, end: float) -> Sequence[int]:
        trained = shapes.widths.get(allocation_label(curve, start=start, end=end))
        return layer_widths(curve, layers, width, start=start, end=end) if trained is None else trained

    at_main, mean = f"{MAIN_RATIO[0]:g}/{MAIN_RATIO[1]:g}", [width] * layers
    panels: dict[str, Mapping[str, Sequence[int]]] = {
        f"Schedules at {at_main}": {name: line(name, *MAIN_RATIO) for name in CURVE_NAMES},
        "Cosine at five ratios": {f"{start:g}/{end:g}": line("cosine", start, end) for start, end in RATIOS},
    }
    of_table_1 = ("uniform", *CURVE_NAMES)
    others = {name: sizes for name, sizes in shapes.widths.items() if shapes.curves.get(name, name) not in of_table_1}
    if others:
        panels["Other allocations here"] = others
    with theme():
        figure = blank(4.3 * len(panels), 4.8)
        figure.suptitle(f"{layers} layers, D = {width:,}; every line has the mean D", fontsize=10.5)
        grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (title, lines) in zip(grid, panels.items(), strict=True):
            by_layer(axes, {"uniform": mean, **lines}, drawstyle="steps-mid" if lines is others else "default")
            axes.set_title(title)
        grid[0].set_ylabel(r"MLP width $d_{\mathrm{ff}}$ (hidden units)")
        grid[0].set_ylim(0, 1.05 * max(max(sizes) for lines in panels.values() for sizes in lines.values()))
        ratio = grid[-1].secondary_yaxis("right", functions=(lambda y: y / width, lambda y: y * width))
        ratio.set_ylabel("width ÷ D")
    return figure


def by_layer(
    axes: Axes, lines: Mapping[str, Sequence[int]], *, drawstyle: Literal["default", "steps-mid"] = "default"
) -> None:
    """One line an allocation over the layer index, uniform dashed and grey."""
    for place, (label, sizes) in enumerate(lines.items(), start=-1):
        look: dict[str, Any] = {"color": NEUTRAL, "linestyle": "--"}
        if label != "uniform":
            look = {"color": PALETTE[place % len(PALETTE)], "linestyle": LINES[place // len(PALETTE) % len(LINES)]}
            look["marker"] = MARKERS[place % len(MARKERS)]
        axes.plot(range(len(sizes)), sizes, markersize=3.5, drawstyle=drawstyle, label=label, **look)
    axes.set_xlabel("layer")
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=8.5)
