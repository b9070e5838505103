"""The paper's figures from our measurements: each function takes values and returns a matplotlib figure.

Losses are in nats per token. The published 440M perplexities are exp(loss rounded to 0.01 nat), so it is losses that are
compared, each with half its last digit as its error. Error bars of ours are one standard error: over seeds or, with one
seed, over the evaluated tokens.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tlm_repro.allocation.widths import layer_widths
from tlm_repro.reporting.results import LOSS_RESOLUTION, Novelty, published_loss, reference, shape
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
SCHEDULES = ("cosine", "linear", "sigmoid")
RATIOS = ((1.25, 0.75), (1.375, 0.625), (1.5, 0.5), (1.625, 0.375), (1.75, 0.25))  # Table 1
MAIN_RATIO = (1.5, 0.5)
LABEL_COLOURS = {
    "uniform": NEUTRAL,
    "wider-early": PALETTE[0],
    "wider-middle": PALETTE[4],
    "wider-late": PALETTE[1],
}
RHO = {"mlp": r"$\rho_{\mathrm{MLP}}$", "block": r"$\rho_{\mathrm{block}}$"}


def motivation(table: pd.DataFrame) -> Figure:
    """Figure 2: validation loss by where the width lies, ours (a panel an architecture and scale) beside the paper's.

    `table` has the columns of `tables.motivation`. Small bars above the panels sketch the widths over depth.
    """
    printed = published("figure2_motivation").assign(label=lambda rows: rows["allocation"])
    ours = dict(zip(table["label"], table["allocation"], strict=True))
    printed["allocation"] = printed["label"].map(ours).fillna(printed["allocation"])
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
    for place, row in enumerate(rows.itertuples()):
        colour = LABEL_COLOURS.get(row.label, PALETTE[place % len(PALETTE)])
        error = known(row.val_loss_se)
        axes.errorbar(place, row.val_loss, yerr=error, fmt="o", ms=7, capsize=4, color=colour)
        axes.annotate(
            f"{row.val_loss:.{digits}f}",
            (place, row.val_loss),
            xytext=(9, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
        )
    axes.set_xticks(range(len(rows)), [label.replace("-", "-\n", 1) for label in rows["label"]])
    axes.set_xlim(-0.5, len(rows) - 0.25)
    axes.set_ylabel(LOSS)
    axes.margins(y=0.12)
    axes.grid(visible=False, axis="x")
    perplexity_axis(axes)


def sketches(axes: Axes, rows: pd.DataFrame) -> None:
    """The shape of each allocation: three bars for the early, middle and late layers, at their height over uniform's."""
    for place, row in enumerate(rows.itertuples()):
        colour = LABEL_COLOURS.get(row.label, PALETTE[place % len(PALETTE)])
        heights = thirds(row.allocation)
        if heights is not None:
            axes.bar([place - 0.2, place, place + 0.2], heights, width=0.17, color=colour, linewidth=0)
    axes.axhline(1, color="#b5b5b5", linewidth=0.7, zorder=0)
    axes.set_ylim(0, 1.7)
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.tick_params(bottom=False, labelbottom=False)
    sns.despine(ax=axes, left=True, bottom=True)


def thirds(allocation: str) -> list[float] | None:
    """Mean width ÷ D of the early, middle and late third of the layers; None for a shape that its label doesn't tell."""
    schedule, start, end = shape(allocation)
    if schedule == "thirds":
        return [float(multiplier) for multiplier in allocation.split("-")[1:]]
    if math.isnan(start):
        return None
    parameters = {} if schedule == "uniform" else {"start": start, "end": end}
    widths = layer_widths(schedule, 30, 1280, **parameters)
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
        handles = {
            label: handle for axes in grid for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=len(handles))
    return figure


def curves(axes: Axes, rows: pd.DataFrame) -> None:
    """Lines over the ratio of the first layer; a schedule with other parameters gets a line of its own."""
    ends = rows["start"].map("{:g}".format) + "-" + rows["end"].map("{:g}".format)
    tapers = rows[rows["start"].notna() & (rows["schedule"] != "uniform")]
    extra = [
        allocation.replace(f"{schedule}-", "", 1).removeprefix(end).lstrip("-")
        for allocation, schedule, end in zip(tapers["allocation"], tapers["schedule"], ends[tapers.index], strict=True)
    ]
    names = [f"{schedule} {more}".strip() for schedule, more in zip(tapers["schedule"], extra, strict=True)]
    for index, (name, line) in enumerate(tapers.assign(name=names).sort_values("start").groupby("name")):
        error = np.nan_to_num(line["val_loss_se"].to_numpy(dtype=float))
        style = {"color": PALETTE[index % len(PALETTE)], "marker": MARKERS[index % len(MARKERS)]}
        axes.errorbar(line["start"], line["val_loss"], yerr=error, capsize=3, label=name, **style)
    for row in rows[rows["schedule"] == "uniform"].itertuples():
        axes.axhline(row.val_loss, color=NEUTRAL, linestyle="--", label="uniform")
        error = known(row.val_loss_se)
        if error is not None:
            axes.axhspan(row.val_loss - error, row.val_loss + error, color=NEUTRAL, alpha=0.15, linewidth=0)
    ratios = tapers.drop_duplicates("start").sort_values("start")
    axes.set_xticks(ratios["start"], [f"{row.start:g}/\n{row.end:g}" for row in ratios.itertuples()])
    axes.set_xlabel("width of the first / last layer (÷ D)")
    axes.set_ylabel(LOSS)
    perplexity_axis(axes)


def allocation(layers: int, width: int, widths: Mapping[str, Sequence[int]] | None = None) -> Figure:
    """Figure 3: MLP width by layer, of the three schedules at 1.5/0.5, of cosine at five ratios, and of the others.

    Args:
        layers: L.
        width: D, which every layer of the uniform model has.
        widths: allocation label → widths of the runs, where there are any. Labels of Figure 3 that it lacks are computed.
    """
    trained = dict(widths or {})

    def line(schedule: str, start: float, end: float) -> Sequence[int]:
        label = f"{schedule}-{start}-{end}"
        return trained.pop(label, None) or layer_widths(schedule, layers, width, start=start, end=end)

    uniform = trained.pop("uniform", None) or layer_widths("uniform", layers, width)
    cosines = {f"{start:g}/{end:g}": line("cosine", start, end) for start, end in RATIOS}
    main = f"{MAIN_RATIO[0]:g}/{MAIN_RATIO[1]:g}"
    shapes = {name: cosines[main] if name == "cosine" else line(name, *MAIN_RATIO) for name in SCHEDULES}
    others = {label: sizes for label, sizes in trained.items() if shape(label)[0] not in SCHEDULES}
    panels = {f"Schedules at {main}": shapes, "Cosine at five ratios (first/last ÷ D)": cosines}
    if others:
        panels["Other allocations of this configuration"] = others
    with theme():
        figure = blank(4.3 * len(panels), 4.2)
        figure.suptitle(f"L = {layers} layers, D = {width:,}: every line has the mean D", fontsize=10.5)
        grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (title, lines) in zip(grid, panels.items(), strict=True):
            staircase(axes, {"uniform": uniform, **lines}, width)
            axes.set_title(title)
        grid[0].set_ylabel("MLP width $d_{\\mathrm{ff}}$ (hidden units)")
        grid[-1].secondary_yaxis("right", functions=(lambda y: y / width, lambda y: y * width)).set_ylabel("÷ D")
    return figure


def staircase(axes: Axes, lines: Mapping[str, Sequence[int]], width: int) -> None:
    """One line an allocation over the layer index, uniform dashed and grey."""
    for index, (label, sizes) in enumerate(lines.items()):
        style: dict[str, Any] = {"color": NEUTRAL, "linestyle": "--"}
        if label != "uniform":
            place = index - 1
            style = {"color": PALETTE[place % len(PALETTE)], "linestyle": LINES[place // len(PALETTE) % len(LINES)]}
            style["marker"] = MARKERS[place % len(MARKERS)]
        axes.plot(range(len(sizes)), sizes, markersize=3.5, label=label, **style)
    axes.set_xlabel("layer")
    axes.set_ylim(0, None)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.legend(loc="best" if len(lines) < 6 else "lower left", fontsize=8)


def novelty(measurements: Sequence[Novelty], *, toy: bool) -> Figure:
    """Figure 4: ρ_MLP and ρ_block over relative depth, pretrained models above our runs, r of each in the legend.

    Runs that differ in their seed alone are averaged. The first and the last layer, which r leaves out, are pale. `toy`
    says that our runs are at toy scale; pretrained models never are.
    """
    rows = {
        "Pretrained models": [item for item in measurements if item.model.run is None],
        "Our runs": [item for item in measurements if item.model.run is not None],
    }
    drawn = {title: profiles(items) for title, items in rows.items() if items}
    with theme():
        figure = blank(11, 3.6 * len(drawn) + 0.4, toy=toy and bool(rows["Our runs"]))
        grid = figure.subplots(len(drawn), 2, squeeze=False, sharex=True)
        for pair, (title, table) in zip(grid, drawn.items(), strict=True):
            for axes, kind in zip(pair, RHO, strict=True):
                depths(axes, table[table["kind"] == kind])
                axes.set_title(f"{title}: {RHO[kind]}")
                axes.set_ylabel(f"{RHO[kind]}, mean cosine")
            handles, labels = pair[0].get_legend_handles_labels()
            pair[1].legend(handles, labels, loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8, labelspacing=0.9)
        for axes in grid[-1]:
            axes.set_xlabel("relative depth $l/(L-1)$")
    return figure


def profiles(measurements: Sequence[Novelty]) -> pd.DataFrame:
    """One row a model, kind and layer: name, group, variant, kind, depth, mean, stderr, legend."""
    groups: dict[tuple[str, str, str], list[Novelty]] = {}
    for item in measurements:
        run = item.model.run
        key = (run.architecture, run.scale, run.allocation) if run else (item.model.name, "", "")
        groups.setdefault(key, []).append(item)
    rows: list[dict[str, Any]] = []
    for (group, scale, variant), items in groups.items():
        name = f"{architecture_title(group)} {scale}, {variant}" if scale else group
        seeds = f" ({len(items)} seeds)" if len(items) > 1 else ""
        legend = f"{name}{seeds}\n{correlations(items)}"
        for kind in RHO:
            for layer, (mean, stderr) in enumerate(averages(items, kind)):
                rows.append({"group": f"{group} {scale}", "variant": variant, "legend": legend, "kind": kind})
                rows[-1] |= {"depth": layer / max(1, items[0].model.layers - 1), "mean": mean, "stderr": stderr}
    return pd.DataFrame(rows)


def averages(items: Sequence[Novelty], kind: str) -> Iterator[tuple[float, float]]:
    """(mean, standard error) a layer: over seeds, or of the one model over its tokens. NaN where a layer has no MLP."""
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
        value = f"{sum(found) / len(found):+.2f}".replace("-", "−") if found else "none"
        parts.append(f"r({symbol}) = {value}")
    return ", ".join(parts)


def depths(axes: Axes, table: pd.DataFrame) -> None:
    """Lines over depth: a colour a model size, a line style an allocation."""
    groups, variants = list(dict.fromkeys(table["group"])), list(dict.fromkeys(table["variant"]))
    axes.axhline(0, color="#b5b5b5", linewidth=0.8, zorder=0)
    for legend, line in table.groupby("legend", sort=False):
        group, variant = groups.index(line["group"].iloc[0]), variants.index(line["variant"].iloc[0])
        style = {"color": PALETTE[group % len(PALETTE)], "marker": MARKERS[group % len(MARKERS)], "markersize": 3.5}
        inner, error = line.iloc[1:-1], line["stderr"].fillna(0)
        axes.plot(line["depth"], line["mean"], linestyle=LINES[variant % len(LINES)], alpha=0.3, **style)
        axes.plot(inner["depth"], inner["mean"], linestyle=LINES[variant % len(LINES)], label=legend, **style)
        low, high = line["mean"] - error, line["mean"] + error
        axes.fill_between(line["depth"], low, high, color=style["color"], alpha=0.15, linewidth=0)


def groups(table: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """(title, rows) for each architecture and scale, in order."""
    found = []
    for (architecture, scale), rows in table.groupby(["architecture", "scale"], sort=False):
        seeds = int(rows["seeds"].min())
        basis = f"{seeds} seeds" if seeds > 1 else "1 seed, error over tokens"
        found.append((f"Ours, {scale} {architecture_title(str(architecture))}\n({basis})", rows))
    return found


def published(name: str) -> pd.DataFrame:
    """The paper's table with its losses in the columns of ours."""
    table = reference(name)  # type: ignore[arg-type]
    table["val_loss"] = [published_loss(perplexity) for perplexity in table["val_ppl"]]
    return table.assign(val_loss_se=LOSS_RESOLUTION)


def known(error: float) -> float | None:
    return None if math.isnan(error) else float(error)
