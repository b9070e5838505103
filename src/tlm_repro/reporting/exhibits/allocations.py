"""Other published allocations beside the paper's, all at one exact MLP budget: exact widths and losses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tlm_repro.allocation.curves import CURVES
from tlm_repro.records.view import Cells
from tlm_repro.reporting.evidence import Evidence
from tlm_repro.reporting.exhibit import Exhibit
from tlm_repro.reporting.lazy import pd, ticker
from tlm_repro.reporting.paired import groups, validation_rows
from tlm_repro.reporting.results import Results, is_missing
from tlm_repro.reporting.sheets import SHADES, Sheet, Tone, caption, number, sheet, tone
from tlm_repro.reporting.style import NEUTRAL, PALETTE, REFERENCE_COLOUR, architecture_title, blank, theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

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


class Allocations(Exhibit):
    name = "allocations"
    title = "Other allocations"
    caption = "Other published allocations at the same budget: widths by layer, and loss less uniform's."
    order = 40
    experiments = ("allocations",)

    def table(self, evidence: Evidence) -> pd.DataFrame:
        """One row an allocation, in the order of the configuration; `difference` is the loss less uniform's.

        `width` is D and `widths` has every layer's. `parameters_less_uniform` isn't 0 where a layer has no MLP: the
        norm before it goes too. Raises ArtifactError, naming the run, for a cell without its evaluation.
        """
        results, view = evidence.results, evidence.views["allocations"]
        rows = validation_rows(results, view, "label", "table1_sweep")
        cells = {(*group, label): chosen for group, labels in view.groups().items() for label, chosen in labels.items()}
        for row in rows:
            group = (row["architecture"], row["scale"])
            chosen = cells[*group, row["label"]]
            row |= facts(results, chosen, cells[*group, "uniform"])
            curve = CURVES.get(next(iter(chosen.values())).curve or "")
            row["shape"], row["source"] = (curve.title, curve.source) if curve else ("", "")
        return pd.DataFrame(rows, columns=list(COLUMNS))

    def sheet(self, frame: pd.DataFrame) -> Sheet:
        rows = []
        for row in frame.to_dict(orient="records"):
            shade = tone(-row["difference"], row["difference_interval"])
            ratios = [size / row["width"] for size in row["widths"]]
            uniform = row["label"] == "uniform"
            cells: dict[str, tuple[str, Tone]] = {
                "Allocation": (row["label"], ""),
                "Source": (row["source"], ""),
                "First, last (÷ D)": (f"{ratios[0]:.2f}, {ratios[-1]:.2f}", ""),
                "Narrowest, widest (÷ D)": (f"{min(ratios):.2f}, {max(ratios):.2f}", ""),
                "Without MLP": (str(row["layers_without_mlp"]), ""),
                "Parameters − uniform": (
                    f"{row['parameters_less_uniform']:+,}".replace("-", "−").replace("+0", "0"),
                    "",
                ),
                "Seeds": (str(row["seeds"]), ""),
                "Loss (nats/token)": (number(row["val_loss"], row["val_loss_se"], 4), shade),
                "Loss − uniform (nats)": (
                    "" if uniform else number(row["difference"], row["difference_interval"], 4, signed=True),
                    shade,
                ),
            }
            rows.append(cells)
        first = frame.iloc[0]
        title = (
            f"Other allocations at the same MLP budget: {architecture_title(first['architecture'])}, {first['scale']}, "
            f"{len(first['widths'])} layers, D = {first['width']:,}."
        )
        alone = (
            "Each interval holds for its row alone. A layer without an MLP has no norm before it: those are missing."
        )
        return sheet(self.name, rows, caption(title, frame, alone, SHADES), ("Allocation", "Source"))

    def figure(self, evidence: Evidence) -> Figure:
        return draw(self.table(evidence))


def draw(frame: pd.DataFrame) -> Figure:
    """Each allocation's exact widths over depth, and beside them its loss less uniform's with the interval.

    A block of rows for each architecture and scale.
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


def facts(results: Results, cells: Cells, uniform: Cells) -> dict[str, Any]:
    """Exact counts of the runs of `cells`, which differ in their seed alone, beside those of the uniform ones."""
    models = results.models.to_dict(orient="index")
    ours, theirs = (models[next(iter(chosen.values())).run] for chosen in (cells, uniform))
    widths = tuple(ours["intermediate_sizes"])
    return {
        "width": sum(widths) // len(widths),
        "widths": list(widths),
        "layers_without_mlp": widths.count(0),
        "parameters": int(ours["parameters"]),
        "parameters_less_uniform": int(ours["parameters"] - theirs["parameters"]),
        "flops_less_uniform": int(ours["training_flops"] - theirs["training_flops"]),
    }


def legend() -> list[Line2D]:
    from matplotlib.lines import Line2D

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
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True, nbins=5))
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
        axes.errorbar(change, place, xerr=None if is_missing(half) else half, capsize=3, markersize=6, zorder=3, **look)
        margin = "" if is_missing(half) else f" ± {half:.3f}"
        numbers.append(f"{change:+.3f}{margin}".replace("-", "−"))
    axes.axvline(0, color=NEUTRAL, linestyle="--", linewidth=1, zorder=2)
    for place in range(len(rows)):
        axes.axhline(place, color=REFERENCE_COLOUR, linewidth=0.4, zorder=0)
    axes.grid(visible=False, axis="y")
    axes.tick_params(labelleft=False, left=False)
    axes.margins(x=0.08)
    beside = axes.secondary_yaxis("right")
    beside.set_yticks(range(len(rows)), numbers)
    beside.tick_params(length=0)
