"""Table 1: validation loss and perplexity of each curve at each width ratio, and the same as a figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tlm_repro.reporting.evidence import Evidence
from tlm_repro.reporting.exhibit import Exhibit
from tlm_repro.reporting.lazy import pd
from tlm_repro.reporting.paired import VALIDATION_COLUMNS, groups, known_error, validation_rows, validation_sheet
from tlm_repro.reporting.published import PAPER_PANEL, reference_losses
from tlm_repro.reporting.sheets import Sheet
from tlm_repro.reporting.style import LOSS, MARKERS, NEUTRAL, PALETTE, blank, perplexity_axis, theme
from tlm_repro.reporting.tapers import ends

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

APART = 0.012  # between lines, in units of the ratio: error bars at one ratio don't hide each other


class Sweep(Exhibit):
    name = "sweep"
    title = "Table 1"
    caption = "Table 1 as curves: validation loss against the width ratio of each schedule."
    order = 20
    experiments = ("sweep",)

    def table(self, evidence: Evidence) -> pd.DataFrame:
        """By allocation; `start` and `end` are the widths of the first and the last layer ÷ D."""
        view = evidence.views["sweep"]
        cells = {cell.allocation: cell for cell in view.cells}
        rows = validation_rows(evidence.results, view, "allocation", "table1_sweep")
        for row in rows:
            cell = cells[row["allocation"]]
            row["schedule"] = cell.curve
            row["start"], row["end"] = ends(cell)
        return pd.DataFrame(rows, columns=["allocation", "start", "end", "schedule", *VALIDATION_COLUMNS])

    def sheet(self, frame: pd.DataFrame) -> Sheet:
        return validation_sheet(self.name, frame, "allocation", "Table 1: width allocations.")

    def figure(self, evidence: Evidence) -> Figure:
        """A line a curve, uniform as a level: ours, a panel an architecture and scale, beside the paper's."""
        table = self.table(evidence)
        panels = [*groups(table), (PAPER_PANEL, reference_losses("table1_sweep"))]
        with theme():
            figure = blank(4.6 * len(panels), 4.4, toy=bool(table["toy"].any()))
            grid = figure.subplots(1, len(panels), squeeze=False)[0]
            for axes, (title, rows) in zip(grid, panels, strict=True):
                lines(axes, rows)
                axes.set_title(title)
            legends = [axes.get_legend_handles_labels() for axes in grid]
            entries = {
                label: handle for handles, labels in legends for handle, label in zip(handles, labels, strict=True)
            }
            figure.legend(entries.values(), entries.keys(), loc="outside upper center", ncols=len(entries))
        return figure


def lines(axes: Axes, rows: pd.DataFrame) -> None:
    """Lines over the first layer's ratio, set apart a little; a curve with other parameters has its own line."""
    tapers = rows[rows["start"].notna() & (rows["schedule"] != "uniform")].sort_values("start")
    names = [line_name(allocation) for allocation in tapers["allocation"]]
    for place, (name, line) in enumerate(tapers.assign(name=names).groupby("name")):
        starts, error = line["start"] + APART * (place - 1), line["val_loss_se"].fillna(0)
        look: dict[str, Any] = {"color": PALETTE[place % len(PALETTE)], "marker": MARKERS[place % len(MARKERS)]}
        axes.errorbar(starts, line["val_loss"], yerr=error, capsize=3, elinewidth=1, label=str(name), **look)
    for row in rows[rows["schedule"] == "uniform"].to_dict("records"):
        loss, spread = row["val_loss"], known_error(row["val_loss_se"]) or 0.0
        axes.axhline(loss, color=NEUTRAL, linestyle="--", label="uniform")
        axes.axhspan(loss - spread, loss + spread, color=NEUTRAL, alpha=0.15, linewidth=0)
    ratios = tapers.drop_duplicates("start").to_dict("records")
    ticks = [row["start"] for row in ratios]
    axes.set_xticks(ticks, [f"{row['start']:g}/\n{row['end']:g}" for row in ratios])
    axes.set_xlabel("width of the first / last layer (÷ D)")
    axes.set_ylabel(LOSS)
    perplexity_axis(axes)


def line_name(allocation: str) -> str:
    """The label without its two ends: `sigmoid`, `sigmoid k8`."""
    curve, _, _, *others = allocation.split("-")
    return " ".join([curve, *others])
