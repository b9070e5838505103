"""Heat maps of needle-in-a-haystack: the share of the needles found by depth in the text and by its length."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from tlm_repro.reporting.needle import BEYOND, beyond, length_title, metrics, task_title
from tlm_repro.reporting.style import architecture_title, blank, theme

COLOURS = "YlGnBu"  # light to dark in one direction, and no grey in it
ABSENT = "#c9c9c9"
BINS = 10
PANEL = 2.5  # inches; at least so wide is a panel,
COLUMN = 0.45  # and each of its columns
ROW = 0.27
CHARACTER = 4.3  # points, of an annotation's figures


def needle(table: pd.DataFrame, *, training: float, toy: bool, conditions: Sequence[str] = ()) -> Figure:
    """A panel a task and allocation: length from left to right, depth downwards, colour from 0 to 1.

    Args:
        table: rows of `needle.by_depth`, of one architecture and scale.
        training: the training length in tokens, NaN where it isn't known; longer lengths are marked.
        conditions: sentences that a reader has to know, from `needle.conditions`.
    """
    places = depth_rows(table["depth"])
    rows = table.assign(place=[row_of(depth, places) for depth in table["depth"]])
    labels, tasks = list(dict.fromkeys(table["label"])), task_order(table)
    shape = len(labels), len(tasks)
    lengths = sorted(rows["length"].unique())
    with theme():
        width = max(PANEL, COLUMN * len(lengths))
        height = max(1.5, ROW * len(places) + 0.6) * len(labels) + 1.1
        figure = blank(width * len(tasks) + 1.6, height, toy=toy)
        figure.suptitle(title(table), fontsize=10.5)
        grid = figure.subplots(*shape, squeeze=False, sharex=True, sharey=True)
        missing = False
        for (label, task), axes in zip(product(labels, tasks), grid.flat, strict=True):
            chosen = rows[(rows["label"] == label) & (rows["task"] == task)]
            found, needed = (cells(chosen, column, places, lengths) for column in ("found", "needed"))
            missing |= bool((needed == 0).any(axis=None))
            panel(axes, found, needed, column=width / len(lengths))
            axes.set_title(f"{task_title(task)}, {label}")
        for axes in grid[:, 0]:
            axes.set_ylabel("depth of the needle")
            axes.set_yticks(np.arange(len(places)) + 0.5, list(places), rotation=0)
        for axes in grid[-1]:
            axes.set_xticks(np.arange(len(lengths)) + 0.5, [length_title(length, training) for length in lengths])
            axes.set_xlabel("length of the text (tokens)")
        scale = ScalarMappable(Normalize(0, 1), COLOURS)
        bar = figure.colorbar(scale, ax=grid, label="share of the needles found", fraction=0.03, aspect=30)
        bar.outline.set_visible(False)
        marked = any(beyond(length, training) for length in lengths)
        mark = [f"{BEYOND} longer than the training length of {training:,.0f} tokens"] if marked else []
        notes(figure, missing, [*mark, *conditions])
    return figure


def panel(axes: Axes, found: pd.DataFrame, needed: pd.DataFrame, *, column: float) -> None:
    """One heat map; where there is room, in columns of `column` inches, each cell says `found/needed`."""
    share = found / needed.where(needed > 0)
    text = found.astype(str) + "/" + needed.astype(str)
    widest = max((len(entry) for entry in text.to_numpy().flat), default=0)
    room = 72 * column > CHARACTER * widest + 4
    look: dict[str, Any] = {"annot": text, "fmt": "", "annot_kws": {"fontsize": 7}} if room else {}
    axes.set_facecolor(ABSENT)
    axes.grid(visible=False)
    sns.heatmap(share, ax=axes, vmin=0, vmax=1, cmap=COLOURS, mask=share.isna(), cbar=False, linewidths=0.5, **look)
    axes.set(xlabel="", ylabel="")
    axes.tick_params(length=0)


def notes(figure: Figure, missing: bool, texts: Sequence[str]) -> None:
    """A line below the panels: what grey means where there is any, and `texts`."""
    handles = [Patch(color=ABSENT, label="no needle in this cell")] if missing else []
    handles += [Patch(visible=False, label=text) for text in texts]
    if handles:
        figure.legend(handles=handles, loc="outside lower left", ncols=len(handles), fontsize=8.5)


def title(table: pd.DataFrame) -> str:
    architecture, scale = table[["architecture", "scale"]].iloc[0]
    seeds = int(table["seeds"].max())
    pooled = f", {seeds} seeds added up" if seeds > 1 else ""
    return f"{architecture_title(architecture)} {scale}: needles found, by depth and length{pooled}"


def task_order(table: pd.DataFrame) -> list[str]:
    names = [f"niah_{task}_{length}" for task, length in zip(table["task"], table["length"], strict=True)]
    return list(dict.fromkeys(item.task for item in metrics(names)))


def depth_rows(depths: pd.Series) -> list[str]:
    """Names of the heat map's rows, from the text's start down: the depths, or bins of 10 % where they are many."""
    distinct = list(dict.fromkeys(percent(depth) for depth in sorted(depths)))
    if len(distinct) <= BINS:
        return distinct
    return [f"{100 * place // BINS}–{100 * (place + 1) // BINS} %" for place in range(BINS)]


def row_of(depth: float, rows: list[str]) -> str:
    """The row that a depth stands in; a bin holds its lower bound, the last one 100 % too."""
    exact = percent(depth)
    return exact if exact in rows else rows[min(int(depth * BINS + 1e-9), BINS - 1)]


def percent(depth: float) -> str:
    return f"{100 * depth:.0f} %"


def cells(rows: pd.DataFrame, column: str, places: list[str], lengths: list[int]) -> pd.DataFrame:
    """The sum of `column`, places × lengths; 0 where there is nothing."""
    sums = rows.pivot_table(index="place", columns="length", values=column, aggfunc="sum")
    return sums.reindex(index=places, columns=lengths).fillna(0).astype(int)
