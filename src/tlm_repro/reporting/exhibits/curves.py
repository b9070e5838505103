"""Training loss over tokens and FLOPs, tapered beside uniform: who leads when.

Evaluation files of the held-out loss have a thinned training curve, so that no model and no metrics file is needed;
older files have none. Both runs of a pair see the same batches, so their training losses are compared step by step.
Losses are in nats per token.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tlm_repro.records.evaluation import TrainingCurve
from tlm_repro.records.view import Cells, ExperimentView
from tlm_repro.reporting.evidence import Evidence
from tlm_repro.reporting.exhibit import Exhibit
from tlm_repro.reporting.lazy import np, pd, ticker
from tlm_repro.reporting.results import Results
from tlm_repro.reporting.sheets import SHADES, Sheet, Tone, number, sheet, tone, toy_note
from tlm_repro.reporting.style import LINES, NEUTRAL, PALETTE, architecture_title, blank, theme
from tlm_repro.statistics.estimates import Estimate, estimate
from tlm_repro.statistics.measurement import Measurement

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = (
    *("architecture", "scale", "label", "allocation", "seeds", "basis", "share", "tokens", "training_flops"),
    *("uniform", "other", "difference", "difference_interval", "leader", "toy"),
)
QUARTERS = 4
ACROSS = 4  # pairs side by side
SMOOTHED = 9  # points
START = 0.1  # share of the training whose steep fall isn't shown
NO_CURVES = "These evaluation files hold no training curve:\nthey were made before it was kept."


class Curves(Exhibit):
    name = "curves"
    title = "Training curves"
    caption = "Training loss over tokens and FLOPs, tapered beside uniform, and their difference: who leads when."
    order = 80
    experiments = ("main",)

    def table(self, evidence: Evidence) -> pd.DataFrame:
        """Four rows a pair, a quarter of the training each: mean training losses, their paired difference, who leads.

        The interval is over seeds (Student); with one seed it is that of the points of the quarter, taken as
        independent. `leader` is "unclear" where it holds 0. Pairs without curves have no rows.
        """
        view = evidence.views.get("main")
        rows = []
        for pair, quarter in itertools.product(pairs(evidence.results, view), range(QUARTERS)):
            share = pair.tokens / pair.tokens[-1]
            inside = (share > quarter / QUARTERS) & (share <= (quarter + 1) / QUARTERS)
            if not inside.any():
                continue
            effect = over_seeds(pair.differences[:, inside])
            leader = {-1: pair.label, 0: "unclear", 1: "uniform"}[effect.sign]
            end = int(pair.tokens[inside][-1])
            row: dict[str, Any] = {"architecture": pair.architecture, "scale": pair.scale, "label": pair.label}
            row |= {"allocation": pair.allocation, "seeds": effect.seeds, "basis": effect.basis, "leader": leader}
            row |= {
                "share": (quarter + 1) / QUARTERS,
                "tokens": end,
                "training_flops": round(end * pair.flops_per_token),
            }
            row |= {name: float(pair.losses(name)[:, inside].mean()) for name in ("uniform", "other")}
            row |= {"difference": effect.mean, "difference_interval": effect.half_width}
            rows.append(row | {"toy": bool(view and view.toy)})
        return pd.DataFrame(rows, columns=list(COLUMNS))

    def sheet(self, frame: pd.DataFrame) -> Sheet:
        rows: list[dict[str, tuple[str, Tone]]] = []
        for row in frame.to_dict(orient="records"):
            shade = tone(-row["difference"], row["difference_interval"])
            cells: dict[str, tuple[str, Tone]] = {
                "Architecture": (architecture_title(row["architecture"]), ""),
                "Scale": (row["scale"], ""),
                "Allocation": (row["label"], ""),
                "Seeds": (str(row["seeds"]), ""),
                "Until tokens": (f"{row['tokens']:,} ({100 * row['share']:.0f} %)", ""),
                "Training FLOPs": (f"{row['training_flops']:.2e}", ""),
                "Uniform (nats)": (number(row["uniform"], digits=4), ""),
                "Allocation's (nats)": (number(row["other"], digits=4), shade),
                "Difference (nats)": (number(row["difference"], row["difference_interval"], 4, signed=True), shade),
                "Leads": (row["leader"] + " (one run)" * (row["seeds"] == 1), ""),
            }
            rows.append(cells)
        rows = rows or [{"Architecture": ("no training curve in these evaluation files", "")}]
        title = (
            "Training loss by quarters of the training, on the same batches; differences ± half a 95 % interval, over "
            f"seeds or, with one, over the points of the quarter. {SHADES}"
        )
        title += toy_note(frame)
        return sheet(self.name, rows, title, ("Architecture", "Scale", "Allocation", "Leads"))

    def figure(self, evidence: Evidence) -> Figure:
        """For each architecture and scale the training losses, and below them tapered less uniform with its spread."""
        view = evidence.views.get("main")
        measured = pairs(evidence.results, view)
        groups = {
            key: list(group)
            for key, group in itertools.groupby(measured, key=lambda pair: (pair.architecture, pair.scale))
        }
        across, blocks = max(1, min(ACROSS, len(groups))), max(1, math.ceil(len(groups) / ACROSS))
        toy = bool(view and view.toy)
        with theme():
            drawing = blank(max(4.0 * across, 5), 5.6 * blocks, toy=toy)
            grid = drawing.subplots(2 * blocks, across, squeeze=False, height_ratios=[3, 2] * blocks)
            for axes in grid.flat:
                axes.set_visible(False)
            if not measured:
                drawing.text(0.5, 0.5, NO_CURVES, ha="center", va="center", color=NEUTRAL)
            for place, ((architecture, scale), group) in enumerate(groups.items()):
                block, column = divmod(place, ACROSS)
                above, below = grid[2 * block, column], grid[2 * block + 1, column]
                for axes in (above, below):
                    axes.set_visible(True)
                    axes.set_xlim(0, group[0].tokens[-1])
                seeds = len(group[0].uniform)
                title = f"Ours, {scale} {architecture_title(architecture)}\n({seeds} seed{'s' if seeds > 1 else ''})"
                above.set_title(title)
                training(above, group, labelled=column == 0)
                leads(below, group, labelled=column == 0)
            entries = {
                label: line for axes in grid.flat for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
            }
            if entries:
                drawing.legend(entries.values(), entries.keys(), loc="outside upper center", ncols=len(entries))
        return drawing


@dataclass(frozen=True)
class Pair:
    """Curves by seed of uniform and another allocation, which share their batches; (seeds, points) where stacked."""

    architecture: str
    scale: str
    label: str
    allocation: str
    uniform: dict[int, TrainingCurve]
    other: dict[int, TrainingCurve]
    flops_per_token: float

    @property
    def tokens(self) -> np.ndarray:
        return np.array(next(iter(self.uniform.values())).tokens)

    def losses(self, name: str) -> np.ndarray:
        curves: dict[int, TrainingCurve] = getattr(self, name)
        return np.array([curve.loss for curve in curves.values()])

    @property
    def differences(self) -> np.ndarray:
        return self.losses("other") - self.losses("uniform")


def pairs(results: Results, view: ExperimentView | None) -> list[Pair]:
    """The pairs of an experiment that have curves with the same steps, by architecture and scale."""
    comparable, facts = [], results.models.to_dict(orient="index")
    for (architecture, scale), labels in (view.groups() if view else {}).items():
        for label, cells in labels.items():
            both = {} if label == "uniform" else shared_curves(results, labels.get("uniform", {}), cells)
            if both:
                cell = cells[next(iter(both))]
                uniform, other = ({seed: pair[place] for seed, pair in both.items()} for place in (0, 1))
                rate = facts[cell.run]["training_flops"] / facts[cell.run]["tokens"]
                comparable.append(Pair(architecture, scale, label, cell.allocation, uniform, other, rate))
    return comparable


def shared_curves(results: Results, uniform: Cells, other: Cells) -> dict[int, tuple[TrainingCurve, TrainingCurve]]:
    """Seed → the two curves, where both runs have one; all with the same steps as the first seed's."""
    curves: dict[int, tuple[TrainingCurve, TrainingCurve]] = {}
    for seed in sorted(uniform.keys() & other.keys()):
        one, two = (results.curves.get(cells[seed].run) for cells in (uniform, other))
        if one and two:
            first = next(iter(curves.values()))[0] if curves else one
            if one.step == two.step == first.step:
                curves[seed] = (one, two)
    return curves


def over_seeds(differences: np.ndarray) -> Estimate:
    """Of the means over points, one a seed."""
    count = differences.shape[1]
    errors = differences.std(axis=1, ddof=1) / math.sqrt(count) if count > 1 else [math.nan] * len(differences)
    means = differences.mean(axis=1)
    return estimate([Measurement(float(m), float(error)) for m, error in zip(means, errors, strict=True)])


def training(axes: Axes, group: list[Pair], *, labelled: bool) -> None:
    """Training losses as lines, held-out ones as points, means over seeds; the upper axis counts FLOPs."""
    first, level = group[0], []
    lines = [("uniform", "uniform", first), *((pair.label, "other", pair) for pair in group)]
    for place, (label, name, pair) in enumerate(lines):
        losses = pair.losses(name).mean(axis=0)
        level.append(losses[pair.tokens > START * pair.tokens[-1]])
        look: dict[str, Any] = {"color": PALETTE[(place - 1) % len(PALETTE)] if place else NEUTRAL, "linewidth": 1.1}
        axes.plot(pair.tokens, losses, linestyle=LINES[0 if place else 1], label=label, **look)
        held_out = [curve.validation for curve in getattr(pair, name).values()]
        if len({points.tokens for points in held_out}) == 1 and held_out[0].tokens:
            means = np.mean([points.loss for points in held_out], axis=0)
            axes.plot(
                held_out[0].tokens,
                means,
                linestyle="none",
                marker="o",
                markersize=3.5,
                color=look["color"],
                clip_on=False,
            )
    shown = np.concatenate(level)
    margin = 0.05 * float(np.ptp(shown)) or 0.1
    axes.set_ylim(shown.min() - margin, shown.max() + margin)
    rate = first.flops_per_token
    above = axes.secondary_xaxis("top", functions=(lambda x: np.multiply(x, rate), lambda x: np.divide(x, rate)))
    above.set_xlabel("training FLOPs", fontsize=8.5)
    above.xaxis.set_major_locator(ticker.MaxNLocator(5))
    above.tick_params(labelsize=8)
    axes.tick_params(labelbottom=False)
    if labelled:
        axes.set_ylabel("loss (nats/token)\nline: training; points: held out")


def leads(axes: Axes, group: list[Pair], *, labelled: bool) -> None:
    """Training loss less uniform's on the same batches, smoothed, with one standard error over seeds."""
    for place, pair in enumerate(group):
        smooth = np.array([moving_mean(row) for row in pair.differences])
        colour, centre = PALETTE[place % len(PALETTE)], smooth.mean(axis=0)
        axes.plot(pair.tokens, centre, color=colour, linewidth=1.2)
        if len(smooth) > 1:
            error = smooth.std(axis=0, ddof=1) / math.sqrt(len(smooth))
            axes.fill_between(pair.tokens, centre - error, centre + error, color=colour, alpha=0.2, linewidth=0)
    axes.axhline(0, color=NEUTRAL, linestyle="--", linewidth=1)
    axes.set_xlabel("training tokens")
    axes.xaxis.set_major_formatter(ticker.EngFormatter())
    axes.xaxis.set_major_locator(ticker.MaxNLocator(5))
    if labelled:
        axes.set_ylabel("loss − uniform's (nats)\nbelow 0: ahead")


def moving_mean(values: np.ndarray) -> np.ndarray:
    """Mean over up to `SMOOTHED` points around each, fewer at the ends."""
    half = (min(SMOOTHED, len(values)) - 1) // 2
    window = np.ones(2 * half + 1)
    return np.convolve(values, window, mode="same") / np.convolve(np.ones(len(values)), window, mode="same")
