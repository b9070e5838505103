"""The paper's figures from our measurements: each function takes values and returns a matplotlib figure.

Losses are in nats per token. The published 440M perplexities are exp(loss rounded to 0.01 nat), so it is losses that
are compared, each with half its last digit as its error. Error bars of ours are one standard error: over seeds or, with
one seed, over the evaluated tokens.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tlm_repro.allocation.widths import layer_widths
from tlm_repro.records.novelty import Novelty
from tlm_repro.reporting.published import LOSS_RESOLUTION, published_loss, reference
from tlm_repro.reporting.results import shape
from tlm_repro.reporting.style import (
    LINES,
    MARKERS,
    NEUTRAL,
    PALETTE,
    architecture_title,
    blank,
    perplexity_axis,
    theme,
)

LOSS = "validation loss (nats/token)"
PAPER = f"Paper, 440M Transformer\n(error: rounding, ±{LOSS_RESOLUTION} nat)"
LABEL_COLOURS = {"uniform": NEUTRAL, "wider-early": PALETTE[0], "wider-middle": PALETTE[4], "wider-late": PALETTE[1]}
FREE_COLOURS = [colour for colour in PALETTE if colour not in LABEL_COLOURS.values()]
LEVEL_COLOUR = "#b5b5b5"
SCHEDULES = ("cosine", "linear", "sigmoid")
RATIOS = ((1.25, 0.75), (1.375, 0.625), (1.5, 0.5), (1.625, 0.375), (1.75, 0.25))  # Table 1
MAIN_RATIO = (1.5, 0.5)
APART = 0.012  # between lines, in units of the ratio: error bars at one ratio don't hide each other
RHO = {"mlp": r"$\rho_{\mathrm{MLP}}$", "block": r"$\rho_{\mathrm{block}}$"}
SYMBOLS = {**RHO, "norm_ratio": r"$\|\mathrm{MLP}\|/\|h\|$"}
LABELS = {**{kind: f"{rho}, mean cosine" for kind, rho in RHO.items()}, "norm_ratio": f"{SYMBOLS['norm_ratio']}, mean"}
R_NOTE = "r: with depth, without the pale first and last layer"
BESIDE: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5), "alignment": "left"}


def motivation(table: pd.DataFrame) -> Figure:
    """Figure 2: validation loss by where the width lies, ours (a panel an architecture and scale) beside the paper's.

    `table` has the columns of `tables.motivation`. Small bars above the panels sketch the widths over depth.
    """
    printed = published("figure2_motivation").rename(columns={"allocation": "label"})
    ours = dict(zip(table["label"], table["allocation"], strict=True))
    printed["allocation"] = printed["label"].map(ours).fillna(printed["label"])
    panels = [*groups(table), (PAPER, printed)]
    with theme():
        figure = blank(4.4 * len(panels), 4.4, toy=bool(table["toy"].any()))
        grid = figure.subplots(2, len(panels), sharex="col", squeeze=False, height_ratios=(1, 5))
        for (sketch, axes), (title, rows) in zip(grid.T, panels, strict=True):
            losses(axes, rows)
            sketches(sketch, rows)
            sketch.set_title(title)
        grid[0, 0].set_ylabel("width by\ndepth", fontsize=8, color=NEUTRAL)
    return figure


def losses(axes: Axes, rows: pd.DataFrame) -> None:
    """One point a label, with its value beside it."""
    digits = 2 if rows["val_loss_se"].eq(LOSS_RESOLUTION).all() else 3
    for place, row in enumerate(rows.to_dict("records")):
        loss, error = row["val_loss"], known(row["val_loss_se"])
        axes.errorbar(place, loss, yerr=error, fmt="o", ms=7, capsize=4, color=colour(row["label"], place))
        beside: dict[str, Any] = {"xytext": (9, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(f"{loss:.{digits}f}", (place, loss), fontsize=8.5, **beside)
    axes.set_xticks(range(len(rows)), [label.replace("-", "-\n", 1) for label in rows["label"]])
    axes.set_xlim(-0.5, len(rows) - 0.25)
    axes.set_ylabel(LOSS)
    axes.margins(y=0.12)
    axes.grid(visible=False, axis="x")
    perplexity_axis(axes)


def sketches(axes: Axes, rows: pd.DataFrame) -> None:
    """The shape of each allocation: bars for the early, middle and late layers, a line at uniform's width."""
    for place, row in enumerate(rows.to_dict("records")):
        heights = thirds(row["allocation"])
        if heights is not None:
            middles = [place - 0.2, place, place + 0.2]
            axes.bar(middles, heights, width=0.17, color=colour(row["label"], place), linewidth=0)
    axes.axhline(1, color=LEVEL_COLOUR, linewidth=0.7, zorder=0)
    axes.set_ylim(0, 1.8)
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.tick_params(bottom=False, labelbottom=False)
    sns.despine(ax=axes, left=True, bottom=True)


def colour(label: str, place: int) -> str:
    """The label's own colour; for other labels one that none of those has."""
    return LABEL_COLOURS.get(label, FREE_COLOURS[place % len(FREE_COLOURS)])


def thirds(allocation: str) -> list[float] | None:
    """Mean width ÷ D of the early, middle and late layers; None for a shape that its label doesn't tell."""
    schedule, start, end = shape(allocation)
    if schedule == "uniform":
        return [1.0, 1.0, 1.0]
    if schedule == "thirds":
        return [float(multiplier) for multiplier in allocation.split("-")[1:]]
    if math.isnan(start):
        return None
    widths = layer_widths(schedule, 30, 1280, start=start, end=end)
    return (np.reshape(widths, (3, 10)).mean(axis=1) / 1280).tolist()


def sweep(table: pd.DataFrame) -> Figure:
    """Table 1 as curves: validation loss against the width ratio, a line a schedule, uniform as a level.

    `table` has the columns of `tables.sweep`. Ours (a panel an architecture and scale) stand beside the paper's.
    """
    panels = [*groups(table), (PAPER, published("table1_sweep"))]
    with theme():
        figure = blank(4.6 * len(panels), 4.4, toy=bool(table["toy"].any()))
        grid = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, (title, rows) in zip(grid, panels, strict=True):
            curves(axes, rows)
            axes.set_title(title)
        shown = [axes.get_legend_handles_labels() for axes in grid]
        entries = {label: handle for handles, labels in shown for handle, label in zip(handles, labels, strict=True)}
        figure.legend(entries.values(), entries.keys(), loc="outside upper center", ncols=len(entries))
    return figure


def curves(axes: Axes, rows: pd.DataFrame) -> None:
    """Lines over the first layer's ratio, set apart a little; a schedule with other parameters has its own line."""
    tapers = rows[rows["start"].notna() & (rows["schedule"] != "uniform")].sort_values("start")
    names = [line_name(allocation) for allocation in tapers["allocation"]]
    for place, (name, line) in enumerate(tapers.assign(name=names).groupby("name")):
        starts, error = line["start"] + APART * (place - 1), line["val_loss_se"].fillna(0)
        look: dict[str, Any] = {"color": PALETTE[place % len(PALETTE)], "marker": MARKERS[place % len(MARKERS)]}
        axes.errorbar(starts, line["val_loss"], yerr=error, capsize=3, elinewidth=1, label=str(name), **look)
    for row in rows[rows["schedule"] == "uniform"].to_dict("records"):
        loss, spread = row["val_loss"], known(row["val_loss_se"]) or 0.0
        axes.axhline(loss, color=NEUTRAL, linestyle="--", label="uniform")
        axes.axhspan(loss - spread, loss + spread, color=NEUTRAL, alpha=0.15, linewidth=0)
    ratios = tapers.drop_duplicates("start").to_dict("records")
    ticks = [row["start"] for row in ratios]
    axes.set_xticks(ticks, [f"{row['start']:g}/\n{row['end']:g}" for row in ratios])
    axes.set_xlabel("width of the first / last layer (÷ D)")
    axes.set_ylabel(LOSS)
    perplexity_axis(axes)


def line_name(allocation: str) -> str:
    """The schedule of an allocation, with its parameters other than the two ends: `sigmoid`, `sigmoid k8`."""
    schedule, _, _, *others = allocation.split("-")
    return " ".join([schedule, *others])


def allocation(layers: int, width: int, widths: Mapping[str, Sequence[int]] | None = None) -> Figure:
    """Figure 3: MLP width by layer, of the three schedules at 1.5/0.5, of cosine at five ratios, and of the others.

    Args:
        layers: L.
        width: D, which every layer of the uniform model has.
        widths: allocation label → widths of the runs, where there are any; what Figure 3 lacks is computed.
    """
    trained = dict(widths or {})

    def line(schedule: str, start: float, end: float) -> Sequence[int]:
        found = trained.get(f"{schedule}-{start}-{end}")
        return layer_widths(schedule, layers, width, start=start, end=end) if found is None else found

    at_main, mean = f"{MAIN_RATIO[0]:g}/{MAIN_RATIO[1]:g}", [width] * layers
    panels = {
        f"Schedules at {at_main}": {name: line(name, *MAIN_RATIO) for name in SCHEDULES},
        "Cosine at five ratios": {f"{start:g}/{end:g}": line("cosine", start, end) for start, end in RATIOS},
    }
    others = {label: sizes for label, sizes in trained.items() if shape(label)[0] not in ("uniform", *SCHEDULES)}
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
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=8.5)


def novelty(measurements: Sequence[Novelty], *, toy: bool) -> Figure:
    """Figure 4: ρ_MLP and ρ_block over relative depth, pretrained models above our runs, r of each in the legend.

    A third panel has ‖MLP‖ / ‖h‖, where the files do.

    Runs that differ in their seed alone are averaged. The first and the last layer, which r leaves out, are pale. `toy`
    says that our runs are at toy scale; pretrained models never are.
    """
    kinds = {
        "Pretrained models": [item for item in measurements if item.model.run is None],
        "Our runs, toy scale" if toy else "Our runs": [item for item in measurements if item.model.run is not None],
    }
    drawn = {title: profiles(items) for title, items in kinds.items() if items}
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


def profiles(measurements: Sequence[Novelty]) -> pd.DataFrame:
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
        same = {"group": f"{group} {scale}", "variant": variant, "legend": f"{name}{seeds}\n{correlations(items)}"}
        for kind in LABELS:
            having = [item for item in items if getattr(item, kind)]
            for layer, (mean, stderr) in enumerate(averages(having, kind)):
                depth = layer / max(1, items[0].model.layers - 1)
                rows.append({**same, "kind": kind, "depth": depth, "mean": mean, "stderr": stderr})
    return pd.DataFrame(rows)


def averages(items: Sequence[Novelty], kind: str) -> Iterator[tuple[float, float]]:
    """(mean, standard error) a layer: over seeds, or of the one model over its tokens. NaN where it has no MLP."""
    for layer in zip(*(getattr(item, kind) for item in items), strict=True):
        found = [cosine for cosine in layer if cosine is not None]
        if not found:
            yield math.nan, math.nan
        elif len(found) == 1:
            yield found[0].mean, math.nan if found[0].stderr is None else found[0].stderr
        else:
            means = np.array([cosine.mean for cosine in found])
            yield float(means.mean()), float(means.std(ddof=1) / math.sqrt(len(means)))


def correlations(items: Sequence[Novelty]) -> str:
    """r with depth as the legend has it, averaged over seeds."""
    parts = []
    for kind, symbol in RHO.items():
        found = [r for item in items if (r := getattr(item.correlation, kind).r) is not None]
        value = f"{np.mean(found):+.2f}".replace("-", "−") if found else "undefined"
        parts.append(f"r({symbol}) = {value}")
    return ", ".join(parts)


def by_depth(axes: Axes, table: pd.DataFrame) -> None:
    """Lines over depth: a colour an architecture and scale, a line style an allocation."""
    models, variants = list(dict.fromkeys(table["group"])), list(dict.fromkeys(table["variant"]))
    if not (table["kind"] == "norm_ratio").any():
        axes.axhline(0, color=LEVEL_COLOUR, linewidth=0.8, zorder=0)
    for legend, line in table.groupby("legend", sort=False):
        model, variant = models.index(line["group"].iloc[0]), variants.index(line["variant"].iloc[0])
        look: dict[str, Any] = {"color": PALETTE[model % len(PALETTE)], "linestyle": LINES[variant % len(LINES)]}
        look |= {"marker": MARKERS[model % len(MARKERS)], "markersize": 3.5}
        inner, error = line.iloc[1:-1], line["stderr"].fillna(0)
        axes.plot(line["depth"], line["mean"], alpha=0.3, **look)
        axes.plot(inner["depth"], inner["mean"], label=str(legend), **look)
        low, high = line["mean"] - error, line["mean"] + error
        axes.fill_between(line["depth"], low, high, color=look["color"], alpha=0.15, linewidth=0)


def groups(table: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """(title, rows) for each architecture and scale, in order."""
    found = []
    for key, rows in table.groupby(["architecture", "scale"], sort=False):
        architecture, scale = map(str, key)
        seeds = f"{rows['seeds'].min()} seeds" if (rows["seeds"] > 1).all() else "1 seed"
        basis = f"{seeds}, error over tokens" if (rows["basis"] == "evaluation").any() else seeds
        found.append((f"Ours, {scale} {architecture_title(architecture)}\n({basis})", rows))
    return found


def published(name: Literal["table1_sweep", "figure2_motivation"]) -> pd.DataFrame:
    """The paper's table with its losses in the columns of ours."""
    table = reference(name)
    return table.assign(
        val_loss=[published_loss(perplexity) for perplexity in table["val_ppl"]], val_loss_se=LOSS_RESOLUTION
    )


def known(error: float) -> float | None:
    return None if math.isnan(error) else float(error)
