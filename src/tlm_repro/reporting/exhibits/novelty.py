"""Figure 4: layer novelty ρ over depth, of pretrained models and of our runs, and its correlation with depth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tlm_repro.records.novelty import Novelty
from tlm_repro.reporting.evidence import Evidence
from tlm_repro.reporting.exhibit import Exhibit
from tlm_repro.reporting.lazy import np, pd
from tlm_repro.reporting.paired import NOT_MEASURED
from tlm_repro.reporting.profiles import LABELS, RHO, SYMBOLS, Profile, averages, correlations, late
from tlm_repro.reporting.results import is_missing
from tlm_repro.reporting.sheets import Sheet, Tone, number, printed, sheet, toneless
from tlm_repro.reporting.style import LINES, MARKERS, PALETTE, REFERENCE_COLOUR, architecture_title, blank, theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

R_NOTE = "r: with depth, without the pale first and last layer"
BESIDE: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5), "alignment": "left"}
LATE: tuple[Profile, ...] = ("block", "mlp", "norm_ratio")  # means over the last third of the layers
COLUMNS = (
    *("model", "run", "layers", "parameters", "tokens", "r_block", "r_block_se", "layers_block", "r_mlp", "r_mlp_se"),
    *("layers_mlp", "published_r_block", "published_r_mlp", "toy"),
    *("r_block_low", "r_block_high", "r_mlp_low", "r_mlp_high"),
    *(f"late_{profile}{suffix}" for profile in LATE for suffix in ("", "_se")),
)


class LayerNovelty(Exhibit):
    name = "novelty"
    title = "Figure 4"
    caption = "Figure 4: cosine similarity of what a layer adds with what it received, over depth."
    order = 90
    novelty = True

    def table(self, evidence: Evidence) -> pd.DataFrame:
        """Correlations with depth, one row a model; the paper gives only their range over GPT-2 sizes.

        `late_…` are means over the last third of the layers; ‖MLP‖ / ‖h‖ is missing for a file that has none.
        Pretrained models are never at toy scale.
        """
        rows = []
        for item in evidence.novelty:
            model, run = item.model, item.model.run
            row: dict[str, Any] = {"model": model.name, "run": run.id if run else None, "layers": model.layers}
            row |= {"parameters": model.parameters, "tokens": item.tokens}
            block, mlp, _ = correlations(item)
            for name, estimate, correlation in (
                ("block", block, item.correlation.block),
                ("mlp", mlp, item.correlation.mlp),
            ):
                r = estimate or NOT_MEASURED
                row |= {f"r_{name}": r.mean, f"r_{name}_se": r.stderr, f"layers_{name}": correlation.layers}
                row |= {f"r_{name}_low": r.interval[0], f"r_{name}_high": r.interval[1]}
            for name in LATE:
                row[f"late_{name}"], row[f"late_{name}_se"] = late(item, name) or (math.nan, math.nan)
            rows.append(
                row
                | {"published_r_block": math.nan, "published_r_mlp": math.nan, "toy": evidence.toy and run is not None}
            )
        return pd.DataFrame(rows, columns=list(COLUMNS))

    def sheet(self, frame: pd.DataFrame) -> Sheet:
        rows: list[dict[str, tuple[str, Tone]]] = []
        published = {"Paper r block": "published_r_block", "Paper r MLP": "published_r_mlp"}
        shown = published if frame[[*published.values()]].notna().to_numpy().any() else {}
        for row in frame.to_dict(orient="records"):
            cells: dict[str, str] = {
                "Model": row["model"],
                "Layers": str(row["layers"]),
                "Tokens": f"{row['tokens']:,}",
                "r block": with_interval(row, "block"),
                "r MLP": with_interval(row, "mlp"),
                "Layers in r (block, MLP)": f"{row['layers_block']}, {row['layers_mlp']}",
                **{title: printed(row[column]) for title, column in shown.items()},
                "Late ρ block": number(row["late_block"], row["late_block_se"], 3, missing="none"),
                "Late ρ MLP": number(row["late_mlp"], row["late_mlp_se"], 3, missing="none"),
                "Late ‖MLP‖/‖h‖": number(
                    row["late_norm_ratio"], row["late_norm_ratio_se"], 3, missing="not in the file"
                ),
            }
            rows.append(toneless(cells))
        title = (
            "Figure 4: Pearson r of layer novelty ρ with depth, first and last layers dropped, with the 95 % interval "
            "of the sampled tokens. The paper gives ranges over GPT-2 124M to 1.5B: block 0.27 to 0.71, MLP 0.49 to "
            "0.71. Late: mean over the last third of the layers without the very last, ± one standard error."
        )
        return sheet(self.name, rows, title, ("Model",))

    def figure(self, evidence: Evidence) -> Figure:
        """Figure 4: ρ_MLP and ρ_block over relative depth, pretrained models above our runs, r of each in the legend.

        A third panel has ‖MLP‖ / ‖h‖, where the files do. Runs that differ in their seed alone are averaged. The first
        and the last layer, which r leaves out, are pale.
        """
        measurements, toy = evidence.novelty, evidence.toy
        kinds = {
            "Pretrained models": [item for item in measurements if item.model.run is None],
            "Our runs, toy scale" if toy else "Our runs": [item for item in measurements if item.model.run is not None],
        }
        drawn = {title: lines_by_depth(items) for title, items in kinds.items() if items}
        with theme():
            runs = any(item.model.run for item in measurements)
            kinds_drawn = [kind for kind in LABELS if any(getattr(item, kind) for item in measurements)] or list(RHO)
            width = 11 if len(kinds_drawn) == len(RHO) else 14.5
            figure = blank(width, 3.6 * max(1, len(drawn)) + 0.4, toy=toy and runs)
            grid = figure.subplots(max(1, len(drawn)), len(kinds_drawn), squeeze=False, sharex=True)
            for row, (title, table) in zip(grid, drawn.items(), strict=False):
                for axes, kind in zip(row, kinds_drawn, strict=True):
                    by_depth(axes, table[table["kind"] == kind])
                    axes.set_title(f"{title}: {SYMBOLS[kind]}")
                    axes.set_ylabel(LABELS[kind])
                    if kind == "norm_ratio":
                        axes.set_yscale("log")
                legend = row[-1].legend(*row[0].get_legend_handles_labels(), title=R_NOTE, handlelength=3, **BESIDE)
                legend.get_title().set_fontsize(8)
            for axes in grid[-1]:
                axes.set_xlabel("relative depth $l/(L-1)$")
        return figure


def lines_by_depth(measurements: Sequence[Novelty]) -> pd.DataFrame:
    """One row a model, kind and layer: group, variant, legend, kind, depth, mean, stderr."""
    models: dict[tuple[str, str, str], list[Novelty]] = {}
    for item in measurements:
        run = item.model.run
        key = (run.architecture, run.scale, run.allocation) if run else (item.model.name, "", "")
        models.setdefault(key, []).append(item)
    rows: list[dict[str, Any]] = []
    for (group, scale, variant), items in models.items():
        name = f"{architecture_title(group)} {scale}, {variant}" if scale else group
        seeds = f" ({len(items)} seeds)" if len(items) > 1 else ""
        same = {"group": f"{group} {scale}", "variant": variant, "legend": f"{name}{seeds}\n{legend_text(items)}"}
        for kind in LABELS:
            having = [item for item in items if getattr(item, kind)]
            for layer, (mean, stderr) in enumerate(averages(having, kind)):
                depth = layer / max(1, items[0].model.layers - 1)
                rows.append({**same, "kind": kind, "depth": depth, "mean": mean, "stderr": stderr})
    return pd.DataFrame(rows)


def legend_text(items: Sequence[Novelty]) -> str:
    """r with depth as the legend has it, averaged over seeds."""
    parts = []
    for kind, symbol in RHO.items():
        values = [r for item in items if (r := getattr(item.correlation, kind).r) is not None]
        value = f"{np.mean(values):+.2f}".replace("-", "−") if values else "undefined"
        parts.append(f"r({symbol}) = {value}")
    return ", ".join(parts)


def by_depth(axes: Axes, table: pd.DataFrame) -> None:
    """Lines over depth: a colour an architecture and scale, a line style an allocation."""
    models, variants = list(dict.fromkeys(table["group"])), list(dict.fromkeys(table["variant"]))
    if not (table["kind"] == "norm_ratio").any():
        axes.axhline(0, color=REFERENCE_COLOUR, linewidth=0.8, zorder=0)
    for legend, line in table.groupby("legend", sort=False):
        model, variant = models.index(line["group"].iloc[0]), variants.index(line["variant"].iloc[0])
        look: dict[str, Any] = {"color": PALETTE[model % len(PALETTE)], "linestyle": LINES[variant % len(LINES)]}
        look |= {"marker": MARKERS[model % len(MARKERS)], "markersize": 3.5}
        inner, error = line.iloc[1:-1], line["stderr"].fillna(0)
        axes.plot(line["depth"], line["mean"], alpha=0.3, **look)
        axes.plot(inner["depth"], inner["mean"], label=str(legend), **look)
        low, high = line["mean"] - error, line["mean"] + error
        axes.fill_between(line["depth"], low, high, color=look["color"], alpha=0.15, linewidth=0)


def with_interval(row: Mapping[Any, Any], kind: str) -> str:
    """`0.62 [0.58, 0.66]`: r with depth and its interval."""
    text = number(row[f"r_{kind}"], digits=3, missing="undefined")
    bounds = [row[f"r_{kind}_{end}"] for end in ("low", "high")]
    return text if is_missing(bounds[0]) else f"{text} [{', '.join(number(bound, digits=3) for bound in bounds)}]"
