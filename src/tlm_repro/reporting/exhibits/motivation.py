"""Figure 2: where should width go? Validation loss with three groups of layers of unequal width, and its numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tlm_repro.allocation.widths import layer_widths
from tlm_repro.records.view import Cell, ExperimentView
from tlm_repro.reporting.evidence import Evidence
from tlm_repro.reporting.exhibit import Exhibit
from tlm_repro.reporting.lazy import np, pd
from tlm_repro.reporting.paired import VALIDATION_COLUMNS, groups, known_error, validation_rows, validation_sheet
from tlm_repro.reporting.published import LOSS_RESOLUTION, PAPER_PANEL, reference_losses
from tlm_repro.reporting.sheets import Sheet
from tlm_repro.reporting.style import LOSS, NEUTRAL, PALETTE, REFERENCE_COLOUR, blank, perplexity_axis, theme
from tlm_repro.reporting.tapers import ends

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LABEL_COLOURS = {"uniform": NEUTRAL, "wider-early": PALETTE[0], "wider-middle": PALETTE[4], "wider-late": PALETTE[1]}
FREE_COLOURS = [colour for colour in PALETTE if colour not in LABEL_COLOURS.values()]


class Motivation(Exhibit):
    name = "motivation"
    title = "Figure 2"
    caption = "Figure 2: validation loss by where the width lies, at one budget."
    order = 10
    experiments = ("motivation",)

    def table(self, evidence: Evidence) -> pd.DataFrame:
        """By label (uniform, wider-early, …)."""
        rows = validation_rows(evidence.results, evidence.views["motivation"], "label", "figure2_motivation")
        return pd.DataFrame(rows, columns=["label", "allocation", *VALIDATION_COLUMNS])

    def sheet(self, frame: pd.DataFrame) -> Sheet:
        return validation_sheet(self.name, frame, "label", "Figure 2: where the width goes.")

    def figure(self, evidence: Evidence) -> Figure:
        """Ours, a panel an architecture and scale, beside the paper's. Bars above sketch the widths over depth."""
        table, printed = self.table(evidence), reference_losses("figure2_motivation")
        panels = [*groups(table), (PAPER_PANEL, printed.rename(columns={"allocation": "label"}))]
        shapes = thirds_by_label(evidence.views["motivation"])
        with theme():
            figure = blank(4.4 * len(panels), 4.4, toy=bool(table["toy"].any()))
            grid = figure.subplots(2, len(panels), sharex="col", squeeze=False, height_ratios=(1, 5))
            for (sketch, axes), (title, rows) in zip(grid.T, panels, strict=True):
                losses(axes, rows)
                sketches(sketch, list(rows["label"]), shapes)
                sketch.set_title(title)
            grid[0, 0].set_ylabel("width by\ndepth", fontsize=8, color=NEUTRAL)
        return figure


def losses(axes: Axes, rows: pd.DataFrame) -> None:
    """One point a label, with its value beside it."""
    digits = 2 if rows["val_loss_se"].eq(LOSS_RESOLUTION).all() else 3
    for place, row in enumerate(rows.to_dict("records")):
        loss, error = row["val_loss"], known_error(row["val_loss_se"])
        axes.errorbar(place, loss, yerr=error, fmt="o", ms=7, capsize=4, color=colour(row["label"], place))
        beside: dict[str, Any] = {"xytext": (9, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(f"{loss:.{digits}f}", (place, loss), fontsize=8.5, **beside)
    axes.set_xticks(range(len(rows)), [label.replace("-", "-\n", 1) for label in rows["label"]])
    axes.set_xlim(-0.5, len(rows) - 0.25)
    axes.set_ylabel(LOSS)
    axes.margins(y=0.12)
    axes.grid(visible=False, axis="x")
    perplexity_axis(axes)


def sketches(axes: Axes, labels: list[str], shapes: Mapping[str, list[float] | None]) -> None:
    """The shape of each allocation: bars for the early, middle and late layers, a line at uniform's width."""
    for place, label in enumerate(labels):
        heights = shapes.get(label)
        if heights is not None:
            middles = [place - 0.2, place, place + 0.2]
            axes.bar(middles, heights, width=0.17, color=colour(label, place), linewidth=0)
    axes.axhline(1, color=REFERENCE_COLOUR, linewidth=0.7, zorder=0)
    axes.set_ylim(0, 1.8)
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.tick_params(bottom=False, labelbottom=False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def colour(label: str, place: int) -> str:
    """The label's own colour; for other labels one that none of those has."""
    return LABEL_COLOURS.get(label, FREE_COLOURS[place % len(FREE_COLOURS)])


def thirds_by_label(view: ExperimentView) -> dict[str, list[float] | None]:
    return {cell.label: thirds(cell) for cell in view.cells}


def thirds(cell: Cell) -> list[float] | None:
    """Mean width ÷ D of the early, middle and late layers; None for a shape that these three don't describe."""
    if cell.curve == "uniform":
        return [1.0, 1.0, 1.0]
    multipliers = cell.parameters.get("multipliers")
    if cell.curve == "thirds" and isinstance(multipliers, tuple):
        return list(multipliers)
    if cell.curve is None or math.isnan(ends(cell)[0]):
        return None
    widths = layer_widths(cell.curve, 30, 1280, **cell.parameters)
    return (np.reshape(widths, (3, 10)).mean(axis=1) / 1280).tolist()
