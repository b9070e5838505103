"""Gain of tapering against the taper's ratio and against model size: fits, table and figure.

The gain is uniform's validation loss less the other's, in nats per token: positive where the other is better. A ratio
is that of the first layer's width to D; uniform is the taper of ratio 1, whatever the curve.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tlm_repro.records.view import Cells, ExperimentView
from tlm_repro.reporting.evidence import Evidence
from tlm_repro.reporting.exhibit import Exhibit
from tlm_repro.reporting.lazy import np, pd, ticker
from tlm_repro.reporting.published import published
from tlm_repro.reporting.results import Results, is_missing
from tlm_repro.reporting.sheets import Sheet, Tone, number, sheet, tone, toy_note
from tlm_repro.reporting.style import MARKERS, NEUTRAL, PALETTE, architecture_title, blank, theme
from tlm_repro.reporting.tapers import plain_tapers
from tlm_repro.statistics.estimates import Basis, Estimate, difference, mean, quantile
from tlm_repro.statistics.intervals import COVERAGE
from tlm_repro.statistics.measurement import Measurement

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = (
    *("kind", "source", "architecture", "scale", "label", "parameters", "seeds", "basis", "gain", "gain_interval"),
    *("ratios", "curvature", "curvature_interval", "minimum", "minimum_interval", "why", "toy"),
)
FLAT = "no U shape: the curvature's interval holds 0"
OUTSIDE = "the fitted minimum lies outside the ratios"
GAIN = "gain over uniform (nats/token)"


class Scaling(Exhibit):
    name = "scaling"
    title = "Gain by ratio and size"
    caption = "Gain over uniform by the taper's ratio, with a quadratic fit and its best ratio, and by model size."
    order = 70
    experiments = ("sweep", "main")

    def table(self, evidence: Evidence) -> pd.DataFrame:
        """A row a curve of the sweep (kind `ratio`: the fit), ours and the paper's, and one a pair (kind `scale`)."""
        results, views = evidence.results, evidence.views
        toy = any(view.toy for view in views.values())
        rows = fit_rows(results, views.get("sweep"), "ours", toy)
        if rows:
            rows += fit_rows(*paper_sweep(), "paper", False)
        rows += pair_rows(results, views.get("main"), toy)
        return pd.DataFrame(rows, columns=list(COLUMNS))

    def sheet(self, frame: pd.DataFrame) -> Sheet:
        rows: list[dict[str, tuple[str, Tone]]] = []
        for row in frame.to_dict(orient="records"):
            fitted, shade = row["kind"] == "ratio", tone(row["gain"], row["gain_interval"])
            cells: dict[str, tuple[str, Tone]] = {
                "What": ("fit over ratios" if fitted else "pair", ""),
                "Source": (row["source"], ""),
                "Architecture": (architecture_title(row["architecture"]), ""),
                "Scale": (row["scale"], ""),
                "Allocation": (row["label"], ""),
                "Parameters": ("" if fitted else f"{row['parameters']:,.0f}", ""),
                "Seeds": ("" if is_missing(row["seeds"]) else f"{row['seeds']:.0f}", ""),
                "Gain (nats)": ("" if fitted else number(row["gain"], row["gain_interval"], 4, signed=True), shade),
                "Curvature": (number(row["curvature"], row["curvature_interval"], missing="") if fitted else "", ""),
                "Best ratio": (
                    number(row["minimum"], row["minimum_interval"], missing=row["why"]) if fitted else "",
                    "",
                ),
            }
            rows.append(cells)
        title = (
            "Gain over uniform in validation loss by size, and a quadratic of the loss in the first layer's ratio "
            "(uniform is 1): its curvature in nats a squared unit, and the ratio of the least loss, ± half a 95 % "
            "interval. No best ratio is named where the curvature's interval holds 0. Of the paper's numbers only "
            "their rounding is known."
        )
        title += toy_note(frame)
        return sheet(self.name, rows, title, ("What", "Source", "Architecture", "Scale", "Allocation"))

    def figure(self, evidence: Evidence) -> Figure:
        """Gain against the ratio, ours and the paper's, with fitted curves; gain against parameters."""
        results, views = evidence.results, evidence.views
        toy = any(view.toy for view in views.values())
        panels: list[tuple[str, Results, Sweep]] = [
            (f"Ours, {scale} {architecture_title(architecture)}", results, schedules)
            for (architecture, scale), schedules in sweeps(results, views.get("sweep")).items()
        ]
        if panels:
            paper, view = paper_sweep()
            panels += [("Paper, 440M Transformer", paper, schedules) for schedules in sweeps(paper, view).values()]
        pairs = pd.DataFrame(pair_rows(results, views.get("main"), toy), columns=list(COLUMNS))
        count = max(1, len(panels) + (not pairs.empty))
        with theme():
            drawing = blank(4.6 * count, 4.6, toy=toy)
            grid = drawing.subplots(1, count, squeeze=False)[0]
            for axes, (title, measured, schedules) in zip(grid, panels, strict=False):
                by_ratio(axes, measured, schedules)
                axes.set_title(title)
            if not pairs.empty:
                by_parameters(grid[-1], pairs)
                grid[-1].set_title("Ours, by size")
            grid[0].set_ylabel(GAIN)
        return drawing


@dataclass(frozen=True)
class Quadratic:
    """loss = a + b·x + c·x² with x = ratio − 1; `covariance` is that of (a, b, c).

    Intervals are ± `multiple` standard errors.
    """

    coefficients: tuple[float, float, float]
    covariance: np.ndarray
    multiple: float
    seeds: int
    basis: Basis
    ratios: tuple[float, ...]

    def loss(self, ratio: Any) -> Any:
        a, b, c = self.coefficients
        return a + b * (ratio - 1) + c * (ratio - 1) ** 2

    @property
    def curvature(self) -> Estimate:
        """c, in nats a squared unit of the ratio."""
        return self._estimate(self.coefficients[2], float(self.covariance[2, 2]))

    @property
    def minimum(self) -> Estimate | None:
        """The ratio of the least loss, 1 − b / 2c, with its interval by the delta method; None where `why` says so."""
        if self.why:
            return None
        _, b, c = self.coefficients
        gradient = np.array([0.0, -1 / (2 * c), b / (2 * c**2)])
        return self._estimate(1 - b / (2 * c), float(gradient @ self.covariance @ gradient))

    @property
    def why(self) -> str:
        """Why no minimum is named; empty where one is."""
        if self.curvature.sign <= 0:
            return FLAT
        _, b, c = self.coefficients
        return "" if min(self.ratios) <= 1 - b / (2 * c) <= max(self.ratios) else OUTSIDE

    def _estimate(self, value: float, variance: float) -> Estimate:
        stderr = math.sqrt(variance)
        return Estimate(value, stderr, self.multiple * stderr, self.seeds, self.basis)


def fit(points: Mapping[float, Mapping[int, Measurement]]) -> Quadratic | None:
    """The quadratic through ratio → seed → loss; None with fewer than four ratios, or no error to weigh them by.

    With several seeds each is fitted on its own, and the coefficients' spread gives the errors (Student). With one, the
    losses' own errors do: standard errors, or for printed values the standard deviation of rounding; they are inflated
    by √(χ²/degrees of freedom) where the quadratic misses the points by more than that.
    """
    ratios = sorted(points)
    seeds = sorted(set.intersection(*(set(measured) for measured in points.values()))) if points else []
    if len(ratios) < 4 or not seeds:
        return None
    design = np.vander(np.array(ratios) - 1, 3, increasing=True)
    losses = np.array([[points[ratio][seed].value for ratio in ratios] for seed in seeds])
    if len(seeds) > 1:
        each = np.linalg.lstsq(design, losses.T, rcond=None)[0].T  # (seeds, 3)
        covariance = np.cov(each, rowvar=False) / len(seeds)
        student = quantile(COVERAGE, len(seeds) - 1)
        return quadratic(each.mean(axis=0), covariance, student, len(seeds), "seeds", ratios)
    measured = [points[ratio][seeds[0]] for ratio in ratios]
    rounded = not math.isnan(measured[0].resolution)
    errors = np.array([one.resolution / math.sqrt(3) if rounded else one.stderr for one in measured])
    if not (errors > 0).all():  # NaN too
        return None
    weighted = design / errors[:, None]
    covariance = np.linalg.inv(weighted.T @ weighted)
    coefficients = covariance @ weighted.T @ (losses[0] / errors)
    chi_squared = float((((losses[0] - design @ coefficients) / errors) ** 2).sum())
    covariance *= max(1.0, chi_squared / (len(ratios) - 3))
    basis: Basis = "rounding" if rounded else "evaluation"
    return quadratic(coefficients, covariance, quantile(COVERAGE), 1, basis, ratios)


def quadratic(
    coefficients: np.ndarray, covariance: np.ndarray, multiple: float, seeds: int, basis: Basis, ratios: Sequence[float]
) -> Quadratic:
    a, b, c = map(float, coefficients)
    return Quadratic((a, b, c), covariance, multiple, seeds, basis, tuple(ratios))


Sweep = dict[str, dict[float, Cells]]  # curve → ratio, 1 for uniform → cells


def sweeps(results: Results, view: ExperimentView | None) -> dict[tuple[str, str], Sweep]:
    """(architecture, scale) → its plain tapers whose losses are known, uniform at ratio 1 in each."""
    groups = view.groups(by="allocation") if view else {}
    swept: dict[tuple[str, str], Sweep] = {}
    for group, tapers in plain_tapers(results, view).items():
        uniform = groups[group].get("uniform")
        if uniform is None:
            continue
        for (curve, start), cells in tapers.items():
            swept.setdefault(group, {}).setdefault(curve, {1.0: uniform})[start] = cells
    return swept


def losses(results: Results, tapers: Mapping[float, Cells]) -> dict[float, dict[int, Measurement]]:
    return {ratio: results.seeds(cells, "val_loss") for ratio, cells in tapers.items()}


def gain(results: Results, uniform: Cells, other: Cells) -> Estimate | None:
    """Paired by seed, positive where `other` is better."""
    return difference("val_loss", results.seeds(uniform, "val_loss"), results.seeds(other, "val_loss"))


def paper_sweep() -> tuple[Results, ExperimentView]:
    """The published Table 1 in the shape of ours."""
    results, views = published()
    return results, next(view for view in views if view.experiment == "sweep")


def fit_rows(results: Results, view: ExperimentView | None, source: str, toy: bool) -> list[dict[str, Any]]:
    rows = []
    for (architecture, scale), schedules in sweeps(results, view).items():
        for schedule, tapers in schedules.items():
            row: dict[str, Any] = {"kind": "ratio", "source": source, "architecture": architecture, "scale": scale}
            row |= {"label": schedule, "ratios": len(tapers), "toy": toy}
            fitted = fit(losses(results, tapers))
            if fitted is None:
                rows.append(row | {"why": "fewer than four ratios, uniform included, or no error is known"})
                continue
            row |= {"seeds": fitted.seeds, "basis": fitted.basis, "why": fitted.why}
            row |= {"curvature": fitted.curvature.mean, "curvature_interval": fitted.curvature.half_width}
            if (minimum := fitted.minimum) is not None:
                row |= {"minimum": minimum.mean, "minimum_interval": minimum.half_width}
            rows.append(row)
    return rows


def pair_rows(results: Results, view: ExperimentView | None, toy: bool) -> list[dict[str, Any]]:
    rows = []
    facts = results.models["parameters"].to_dict()
    for (architecture, scale), labels in (view.groups() if view else {}).items():
        for label, cells in labels.items():
            effect = None if label == "uniform" else gain(results, labels.get("uniform", {}), cells)
            if effect is None:
                continue
            row: dict[str, Any] = {"kind": "scale", "source": "ours", "architecture": architecture, "scale": scale}
            row |= {"label": label, "parameters": int(facts[next(iter(cells.values())).run]), "seeds": effect.seeds}
            row |= {"basis": effect.basis, "gain": effect.mean, "gain_interval": effect.half_width, "toy": toy}
            rows.append(row)
    return rows


def by_ratio(axes: Axes, results: Results, schedules: Sweep) -> None:
    """Points with 95 % intervals, the fitted curve, and a bar along the interval of its best ratio."""
    for place, (schedule, tapers) in enumerate(schedules.items()):
        colour, starts = PALETTE[place % len(PALETTE)], sorted(ratio for ratio in tapers if ratio != 1)
        effects = [gain(results, tapers[1.0], tapers[ratio]) for ratio in starts]
        means = [math.nan if effect is None else effect.mean for effect in effects]
        bars = [0.0 if effect is None or math.isnan(effect.half_width) else effect.half_width for effect in effects]
        apart = np.array(starts) + 0.012 * (place - 1)
        fitted = fit(losses(results, tapers))
        note = "" if fitted is None or fitted.minimum is None else f", best at {with_margin(fitted.minimum)}"
        look: dict[str, Any] = {"color": colour, "marker": MARKERS[place % len(MARKERS)], "linestyle": "none"}
        axes.errorbar(apart, means, yerr=bars, capsize=3, elinewidth=1, label=f"{schedule}{note}", **look)
        if fitted is not None:
            ratios = np.linspace(1, max(starts), 100)
            level = mean("val_loss", results.seeds(tapers[1.0], "val_loss")).mean
            axes.plot(ratios, level - fitted.loss(ratios), color=colour, linewidth=1.2, alpha=0.8)
            if fitted.minimum is not None:
                best = level - fitted.loss(fitted.minimum.mean)
                axes.plot(fitted.minimum.interval, [best, best], color=colour, linewidth=4, alpha=0.35)
    axes.axhline(0, color=NEUTRAL, linestyle="--", linewidth=1)
    axes.set_xlabel("width of the first layer (÷ D); 1: uniform")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), fontsize=8.5)


def with_margin(estimate: Estimate) -> str:
    return f"{estimate.mean:.2f} ± {estimate.half_width:.2f}"


def by_parameters(axes: Axes, pairs: pd.DataFrame) -> None:
    """One line an architecture and allocation over the number of parameters; side by side where there is one size."""
    several = pairs["parameters"].max() > 1.5 * pairs["parameters"].min()
    lines = list(pairs.groupby(["architecture", "label"], sort=False))
    for place, ((architecture, label), line) in enumerate(lines):
        ordered = line.sort_values("parameters")
        apart = 1.02 ** (place - (len(lines) - 1) / 2)  # error bars of one size don't hide each other
        x = ordered["parameters"] * apart if several else [place] * len(ordered)
        look: dict[str, Any] = {"color": PALETTE[place % len(PALETTE)], "marker": MARKERS[place % len(MARKERS)]}
        name = f"{architecture_title(str(architecture))}, {label}"
        bars = ordered["gain_interval"].fillna(0)
        axes.errorbar(x, ordered["gain"], yerr=bars, capsize=3, elinewidth=1, label=name, **look)
    if several:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_formatter(ticker.NullFormatter())
        axes.xaxis.set_major_formatter(ticker.EngFormatter())
    else:
        sizes = [ticker.EngFormatter(places=0).format_data(line["parameters"].iloc[0]) for _, line in lines]
        axes.set_xticks(range(len(lines)), sizes)
        axes.set_xlim(-0.6, len(lines) - 0.4)
    axes.axhline(0, color=NEUTRAL, linestyle="--", linewidth=1)
    axes.set_xlabel("parameters")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), fontsize=8.5)
