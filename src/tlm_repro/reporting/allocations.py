"""Other published allocations beside the paper's, all at one exact MLP budget: table and figure of `allocations`.

Pure functions. Losses are in nats per token; differences are paired by seed, with 95 % intervals.
"""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from tlm_repro.allocation.curves import CURVES, Curve
from tlm_repro.records.view import Cells, ExperimentView
from tlm_repro.reporting.figures import LEVEL_COLOUR, groups
from tlm_repro.reporting.results import Results
from tlm_repro.reporting.style import NEUTRAL, PALETTE, blank, theme
from tlm_repro.reporting.tables import validation

COLUMNS = (
    *("label", "allocation", "shape", "source", "architecture", "scale", "seeds", "basis"),
    *("val_loss", "val_loss_se", "val_ppl", "val_ppl_se", "difference", "difference_interval", "difference_basis"),
    *("width", "widths", "layers_without_mlp", "parameters", "parameters_less_uniform", "flops_less_uniform", "toy"),
)
BETTER, WORSE = PALETTE[0], PALETTE[1]
ROW = 0.46  # inches
HEIGHT = 0.8  # of the widest layer's bar, in rows
SKETCH = "MLP width by layer\n(line: D; ×: no MLP)"
DIFFERENCE = "validation loss − uniform's (nats/token), with 95 % interval"


def table(results: Results, view: ExperimentView) -> pd.DataFrame:
    """One row an allocation, in the order of the configuration; `difference` is the loss less uniform's.

    `width` is D and `widths` has every layer's. `parameters_less_uniform` isn't 0 where a layer has no MLP: the norm
    before it goes too. Raises ArtifactError, naming the run, for a cell without its evaluation.
    """
    rows = validation(results, view, "label", "table1_sweep")
    cells = {(*group, label): found for group, labels in view.groups().items() for label, found in labels.items()}
    for row in rows:
        group = (row["architecture"], row["scale"])
        row |= facts(results, cells[*group, row["label"]], cells[*group, "uniform"])
        row["shape"], row["source"] = schedule(row["allocation"]).title, schedule(row["allocation"]).source
    return pd.DataFrame(rows, columns=list(COLUMNS))


def facts(results: Results, cells: Cells, uniform: Cells) -> dict[str, Any]:
    """Exact counts of the runs of `cells`, which differ in their seed alone, beside those of the uniform ones."""
    known = results.models.to_dict(orient="index")
    ours, theirs = (known[next(iter(found.values())).run] for found in (cells, uniform))
    widths = tuple(ours["intermediate_sizes"])
    return {
        "width": sum(widths) // len(widths),
        "widths": list(widths),
        "layers_without_mlp": widths.count(0),
        "parameters": int(ours["parameters"]),
        "parameters_less_uniform": int(ours["parameters"] - theirs["parameters"]),
        "flops_less_uniform": int(ours["training_flops"] - theirs["training_flops"]),
    }


def schedule(allocation: str) -> Curve:
    """The schedule of a canonical allocation, which begins with its name."""
    names = [name for name in CURVES if f"{allocation}-".startswith(f"{name}-")]
    return CURVES[max(names, key=len)]


def figure(frame: pd.DataFrame) -> Figure:
    """Each allocation's exact widths over depth, and beside them its loss less uniform's with the interval.

    `frame` has the columns of `table`; a block of rows for each architecture and scale.
    """
    blocks = groups(frame)
    with theme():
        drawing = blank(9.4, 1.5 + sum(0.7 + ROW * len(rows) for _, rows in blocks), toy=bool(frame["toy"].any()))
        heights = [len(rows) for _, rows in blocks]
        grid = drawing.subplots(len(blocks), 2, squeeze=False, width_ratios=(1, 3), height_ratios=heights, sharey="row")
        for (sketch, forest), (title, rows) in zip(grid, blocks, strict=True):
            widths(sketch, rows)
            differences(forest, rows)
            forest.set_title(title)
            sketch.set_ylim(len(rows) - 0.45, -0.6)
        grid[-1, 0].set_xlabel(SKETCH)
        grid[-1, 1].set_xlabel(DIFFERENCE)
        drawing.legend(handles=legend(), loc="outside upper center", ncols=3)
    return drawing


def legend() -> list[Line2D]:
    looks: dict[str, dict[str, Any]] = {
        "lower than uniform": {"color": BETTER, "marker": "o"},
        "higher": {"color": WORSE, "marker": "s"},
        "interval holds 0": {"color": NEUTRAL, "marker": "o", "markerfacecolor": "white"},
    }
    return [Line2D([], [], linestyle="none", label=label, **look) for label, look in looks.items()]


def widths(axes: Axes, rows: pd.DataFrame) -> None:
    """Bars over the layer index, one row an allocation, all to one scale; a layer without an MLP has a cross."""
    widest = max(max(sizes) for sizes in rows["widths"])
    for place, row in enumerate(rows.to_dict("records")):
        floor, sizes = place + HEIGHT / 2, row["widths"]
        heights = [HEIGHT * size / widest for size in sizes]
        shade = NEUTRAL if row["label"] == "uniform" else PALETTE[2]
        axes.bar(range(len(sizes)), heights, bottom=[floor - height for height in heights], width=0.78, color=shade)
        level = floor - HEIGHT * row["width"] / widest
        axes.plot([-0.5, len(sizes) - 0.5], [level, level], color="black", linewidth=0.6)
        bare = [layer for layer, size in enumerate(sizes) if size == 0]
        axes.plot(bare, [floor - 0.1] * len(bare), linestyle="none", marker="x", markersize=4, color=WORSE)
    axes.set_yticks(range(len(rows)), list(rows["label"]))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    axes.grid(visible=False)
    axes.tick_params(left=False)
    for side in axes.spines.values():
        side.set_visible(False)


def differences(axes: Axes, rows: pd.DataFrame) -> None:
    """One point an allocation with its 95 % interval, its numbers on the right; uniform is the line at 0."""
    numbers = []
    for place, row in enumerate(rows.to_dict("records")):
        if row["label"] == "uniform":
            numbers.append(f"{row['val_loss']:.3f} nats")
            continue
        change, half = row["difference"], row["difference_interval"]
        clear = abs(change) > half
        look: dict[str, Any] = {"color": (BETTER if change < 0 else WORSE) if clear else NEUTRAL}
        look |= {"marker": "s" if clear and change > 0 else "o", "markerfacecolor": None if clear else "white"}
        axes.errorbar(change, place, xerr=None if pd.isna(half) else half, capsize=3, markersize=6, zorder=3, **look)
        margin = "" if pd.isna(half) else f" ± {half:.3f}"
        numbers.append(f"{change:+.3f}{margin}".replace("-", "−"))
    axes.axvline(0, color=NEUTRAL, linestyle="--", linewidth=1, zorder=2)
    for place in range(len(rows)):
        axes.axhline(place, color=LEVEL_COLOUR, linewidth=0.4, zorder=0)
    axes.grid(visible=False, axis="y")
    axes.tick_params(labelleft=False, left=False)
    axes.margins(x=0.08)
    beside = axes.secondary_yaxis("right")
    beside.set_yticks(range(len(rows)), numbers)
    beside.tick_params(length=0)
