"""What tapering does to layer novelty: each architecture and scale's tapered runs beside the uniform ones.

Late-layer novelty is the mean of a profile over the last third of the layers; a lower ρ is more novelty. Differences
are paired by seed; with one seed their error is that of the sampled tokens.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tlm_repro.novelty.late_layers import late_layers
from tlm_repro.records.novelty import Novelty
from tlm_repro.reporting.evidence import Evidence
from tlm_repro.reporting.exhibit import Exhibit
from tlm_repro.reporting.lazy import pd, ticker
from tlm_repro.reporting.paired import known_error
from tlm_repro.reporting.profiles import LABELS, Profile, averages, late
from tlm_repro.reporting.sheets import Sheet, Tone, number, sheet, toneless, toy_note
from tlm_repro.reporting.style import (
    LINES,
    MARKERS,
    NEUTRAL,
    PALETTE,
    REFERENCE_COLOUR,
    architecture_title,
    blank,
    theme,
)
from tlm_repro.statistics.estimates import Estimate, estimate
from tlm_repro.statistics.measurement import Measurement

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tlm_repro.study.grid import Grid

PROFILES: tuple[Profile, ...] = ("mlp", "block", "norm_ratio")
COLUMNS = (
    *("architecture", "scale", "allocation", "quantity", "layers", "seeds", "basis"),
    *("uniform", "tapered", "difference", "difference_se", "difference_interval", "toy"),
)
QUANTITIES = {"mlp": "ρ MLP", "block": "ρ block", "norm_ratio": "‖MLP‖/‖h‖"}
Seeds = dict[int, Novelty]  # seed → measurement


class NoveltyPairs(Exhibit):
    name = "novelty-pairs"
    title = "Layer novelty, tapered beside uniform"
    caption = (
        "Layer novelty of tapered beside uniform models after training, and the norm of what MLPs add; above each "
        "panel tapered less uniform over the late layers, which are grey."
    )
    order = 100
    novelty = True

    def applies(self, grid: Grid) -> bool:
        """Whether a uniform run with late layers is measured, and another allocation beside it."""
        runs = [grid.runs[task.run] for task in grid.novelty.values() if task.run is not None]
        deep = [run.labels for run in runs if late_layers(run.model.layers)]
        groups = {(labels.architecture, labels.scale, labels.allocation == "uniform") for labels in deep}
        return any((architecture, scale, not uniform) in groups for architecture, scale, uniform in groups)

    def table(self, evidence: Evidence) -> pd.DataFrame:
        """One row a pair and quantity: the late layers' mean of each profile, uniform, tapered and the difference.

        A quantity that a file lacks, as the norm ratio in older ones, has no row.
        """
        rows: list[dict[str, Any]] = []
        for (architecture, scale), allocations in pairs(evidence.novelty).items():
            uniform = allocations["uniform"]
            for allocation, quantity in itertools.product(list(allocations)[1:], PROFILES):
                effect = difference(allocations[allocation], uniform, quantity)
                if effect is None:
                    continue
                row: dict[str, Any] = {"architecture": architecture, "scale": scale, "allocation": allocation}
                row |= {
                    "quantity": quantity,
                    "layers": late_text(uniform),
                    "seeds": effect.seeds,
                    "basis": effect.basis,
                }
                row |= {
                    "uniform": mean_over_seeds(uniform, quantity),
                    "tapered": mean_over_seeds(allocations[allocation], quantity),
                }
                row |= {"difference": effect.mean, "difference_se": effect.stderr}
                rows.append(row | {"difference_interval": effect.half_width, "toy": evidence.toy})
        return pd.DataFrame(rows, columns=list(COLUMNS))

    def sheet(self, frame: pd.DataFrame) -> Sheet:
        rows: list[dict[str, tuple[str, Tone]]] = []
        for row in frame.to_dict(orient="records"):
            cells: dict[str, str] = {
                "Architecture": architecture_title(row["architecture"]),
                "Scale": row["scale"],
                "Allocation": row["allocation"],
                "Late layers": row["layers"],
                "Quantity": QUANTITIES[row["quantity"]],
                "Seeds": str(row["seeds"]),
                "Uniform": number(row["uniform"], digits=3),
                "Tapered": number(row["tapered"], digits=3),
                "Tapered − uniform": number(row["difference"], row["difference_interval"], 3, signed=True),
            }
            rows.append(toneless(cells))
        rows = rows or [toneless({"Architecture": "no run was measured beside a uniform one"})]
        title = (
            "What tapering does to the novelty of late layers: means over the last third of the layers without the "
            "very last. A lower ρ is more novelty. Differences ± half a 95 % interval, over seeds or, with one, over "
            "tokens."
        )
        title += toy_note(frame)
        return sheet(self.name, rows, title, ("Architecture", "Scale", "Allocation", "Late layers", "Quantity"))

    def figure(self, evidence: Evidence) -> Figure:
        """ρ_MLP, ρ_block and the norm ratio by layer, uniform against tapered: a row of panels a pair.

        Runs that differ in their seed alone are averaged; the band is one standard error. The last third is shaded,
        with its difference above the panel.
        """
        measured = pairs(evidence.novelty)
        with theme():
            drawing = blank(11.5, 0.6 + 2.9 * max(1, len(measured)), toy=evidence.toy and bool(measured))
            grid = drawing.subplots(max(1, len(measured)), len(PROFILES), squeeze=False)
            for row, ((architecture, scale), allocations) in zip(grid, measured.items(), strict=False):
                for axes, quantity in zip(row, PROFILES, strict=True):
                    by_layer(axes, allocations, quantity)
                    axes.set_ylabel(LABELS[quantity])
                seeds = len(allocations["uniform"])
                title = f"{architecture_title(architecture)} {scale} ({seeds} seed{'s' if seeds > 1 else ''})"
                row[0].annotate(title, (0, 1.2), xycoords="axes fraction", fontsize=10.5, fontweight="bold")
            for axes in grid[-1]:
                axes.set_xlabel("layer")
            entries = {
                label: line for axes in grid.flat for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
            }
            drawing.legend(entries.values(), entries.keys(), loc="outside upper center", ncols=max(1, len(entries)))
        return drawing


def pairs(measurements: Sequence[Novelty]) -> dict[tuple[str, str], dict[str, Seeds]]:
    """(architecture, scale) → allocation → seed → measurement, uniform first; only where uniform and another are."""
    groups: dict[tuple[str, str], dict[str, Seeds]] = {}
    for item in measurements:
        if (run := item.model.run) is not None:
            group = groups.setdefault((run.architecture, run.scale), {})
            group.setdefault(run.allocation, {})[run.seed] = item
    return {
        key: {"uniform": group["uniform"], **{name: seeds for name, seeds in group.items() if name != "uniform"}}
        for key, group in groups.items()
        if "uniform" in group and len(group) > 1
    }


def late_text(seeds: Seeds) -> str:
    """The late layers, as `16 to 22`."""
    layers = late_layers(next(iter(seeds.values())).model.layers)
    return f"{layers[0]} to {layers[-1]}" if len(layers) > 1 else ", ".join(map(str, layers))


def mean_over_seeds(seeds: Seeds, quantity: Profile) -> float:
    values = [mean[0] for item in seeds.values() if (mean := late(item, quantity))]
    return sum(values) / len(values)


def difference(tapered: Mapping[int, Novelty], uniform: Mapping[int, Novelty], quantity: Profile) -> Estimate | None:
    """Tapered − uniform over the seeds that have both; None where none has."""
    both = [
        (late(tapered[seed], quantity), late(uniform[seed], quantity))
        for seed in sorted(tapered.keys() & uniform.keys())
    ]
    values = [Measurement(one[0] - other[0], math.hypot(one[1], other[1])) for one, other in both if one and other]
    return estimate(values) if values else None


def by_layer(axes: Axes, allocations: Mapping[str, Seeds], quantity: Profile) -> None:
    """One line an allocation over the layer index; a layer without an MLP is a gap."""
    titles = []
    for place, (allocation, seeds) in enumerate(allocations.items()):
        measured = [item for item in seeds.values() if getattr(item, quantity)]
        if not measured:
            continue
        means, errors = zip(*averages(measured, quantity), strict=True)
        look: dict[str, Any] = {"color": PALETTE[(place - 1) % len(PALETTE)] if place else NEUTRAL}
        look |= {"linestyle": LINES[0 if place else 1], "marker": MARKERS[place % len(MARKERS)], "markersize": 3.5}
        axes.plot(range(len(means)), means, label=allocation, **look)
        low, high = (
            [mean + sign * (known_error(error) or 0) for mean, error in zip(means, errors, strict=True)]
            for sign in (-1, 1)
        )
        axes.fill_between(range(len(means)), low, high, color=look["color"], alpha=0.15, linewidth=0)
        if place and (effect := difference(seeds, allocations["uniform"], quantity)):
            margin = "" if math.isnan(effect.half_width) else f" ± {effect.half_width:.3f}"
            titles.append(f"late layers: {effect.mean:+.3f}{margin}".replace("-", "−"))
    layers = late_layers(next(iter(allocations["uniform"].values())).model.layers)
    if len(layers):
        axes.axvspan(layers[0] - 0.5, layers[-1] + 0.5, color=REFERENCE_COLOUR, alpha=0.25, linewidth=0, zorder=0)
    if quantity == "norm_ratio":
        axes.set_yscale("log")
    else:
        axes.axhline(0, color=REFERENCE_COLOUR, linewidth=0.8, zorder=0)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    axes.set_title("\n".join(titles), fontsize=9)
