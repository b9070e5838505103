"""Needle in a haystack: Table 3, and heat maps of the share of the needles found by depth and length of the text.

A metric is called `niah_<task>_<length>`, as in `niah_single_1_4096`; its value is the share of the needles found.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from tlm_repro.errors import ArtifactError
from tlm_repro.records.evaluation import NeedleEvaluation
from tlm_repro.records.view import Cells, ExperimentView
from tlm_repro.reporting.evidence import Evidence
from tlm_repro.reporting.exhibit import Exhibit
from tlm_repro.reporting.lazy import np, pd
from tlm_repro.reporting.paired import against_uniform, mean_of
from tlm_repro.reporting.published import NOT_PUBLISHED
from tlm_repro.reporting.results import Results, is_missing
from tlm_repro.reporting.sheets import HEAD, SHADES, TOY, Sheet, Tone, head, number, sheet, tone, toneless
from tlm_repro.reporting.style import architecture_title, blank, theme
from tlm_repro.spec.metrics import NEEDLES
from tlm_repro.statistics.estimates import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TASKS = {"single_1": "S-NIAH-1", "single_2": "S-NIAH-2", "single_3": "S-NIAH-3", "multiquery": "MQ-NIAH"}
NAME = re.compile(rf"^{NEEDLES}(?P<task>.+)_(?P<length>\d+)$")
BEYOND = "†"
COLUMNS = (
    *("architecture", "scale", "label", "allocation", "quantity", "seeds", "basis", "training_length"),
    *("rope_scaling", "generator", "toy"),
)
COLOURS = "YlGnBu"  # light to dark in one direction, and no grey in it
ABSENT = "#c9c9c9"
BINS = 10
PANEL = 2.5  # inches; at least so wide is a panel,
COLUMN = 0.45  # and each of its columns
ROW = 0.27
CHARACTER = 4.3  # points, of an annotation's figures


class Niah(Exhibit):
    name = "niah"
    title = "Table 3"
    caption = "Table 3, needle-in-a-haystack: the share of the needles found, by task and length of the text."
    order = 50
    experiments = ("main",)
    suites = ("niah",)

    def table(self, evidence: Evidence) -> pd.DataFrame:
        """Per architecture and scale the uniform row, the tapered row, and tapered − uniform.

        Columns `<metric>` are in percent (`quantity` "level") or percentage points ("difference"), `<metric>_low` and
        `<metric>_high` their 95 % interval, `<metric>_items` the samples of one run. Raises ArtifactError, naming the
        run, for a cell without its needle evaluation.
        """
        results, view, files = evidence.results, evidence.views["main"], evidence.needles
        results.require(view, "niah")
        columns = metrics(results.metrics["metric"])
        rows = []
        for labels in view.groups().values():
            order = sorted(labels, key=lambda label: label != "uniform")
            for label in order:
                levels = {item: mean_of(results, labels[label], item.name) for item in columns}
                rows.append(needle_row("level", labels[label], levels, results, view))
            for label in (label for label in order if label != "uniform" and "uniform" in labels):
                effects = {item: against_uniform(results, labels, label, item.name) for item in columns}
                rows.append(needle_row("difference", labels[label], effects, results, view))
        parts = [item.name + suffix for item in columns for suffix in ("", "_low", "_high", "_items")]
        conditions = {"rope_scaling": scaling(files), "generator": generators(files)}
        frame = pd.DataFrame(rows, columns=[*COLUMNS, *parts, *(f"published_{item.name}" for item in columns)])
        return frame.assign(training_length=training_length(view), **conditions)

    def sheet(self, frame: pd.DataFrame) -> Sheet:
        """A level is shaded by its difference from uniform."""
        rows: list[dict[str, tuple[str, Tone]]] = []
        columns, training = metrics(frame.columns), frame["training_length"].min()
        titles = {item.name: f"{task_title(item.task)} {length_title(item.length, training)}" for item in columns}
        records = [dict(zip(frame.columns, row, strict=True)) for row in frame.itertuples(index=False)]
        keys = ("architecture", "scale", "label")
        changes = {tuple(row[key] for key in keys): row for row in records if row["quantity"] == "difference"}
        for row in records:
            level = row["quantity"] == "level"
            change = changes.get(tuple(row[key] for key in keys))
            cells = head(row, row["label"] if level else f"{row['label']} − uniform", "ours")
            for metric, title in titles.items():
                bounds = row[f"{metric}_low"], row[f"{metric}_high"]
                shade: Tone = shade_of(change, metric) if level and change else ""
                cells[title] = (with_interval(row[metric], *bounds, signed=not level), shade)
            rows.append(cells)
        paper = dict.fromkeys(HEAD, "all") | {"Source": "paper"} | dict.fromkeys(titles.values(), NOT_PUBLISHED)
        rows.append(toneless(paper))
        notes = [
            "Table 3: needle-in-a-haystack. Needles found in percent, by task and length in tokens; differences in "
            "points.",
            "In brackets 95 % intervals: Wilson's for a score, over seeds or else Newcombe's for a difference.",
            f"{BEYOND} longer than the training length of {training:,.0f} tokens."
            * any(beyond(item.length, training) for item in columns),
            *conditions_of(*frame[["rope_scaling", "generator"]].iloc[0]),
            SHADES,
            TOY * bool(frame["toy"].any()),
        ]
        return sheet(self.name, rows, " ".join(filter(None, notes)), HEAD)


class HeatMaps(Exhibit):
    name = "niah-{architecture}-{scale}"
    title = "Table 3 by depth, {architecture} {scale}"
    caption = (
        "Needle-in-a-haystack, {architecture}-{scale}: the share of the needles found, by depth in the text and its "
        "length."
    )
    order = 51
    experiments = ("main",)
    suites = ("niah",)

    def figure(self, evidence: Evidence) -> Figure:
        view, needles = evidence.views["main"], evidence.needles
        conditions = conditions_of(scaling(needles), generators(needles))
        table = by_depth(needles, view)
        return draw(table, training=training_length(view), toy=view.toy, conditions=conditions)


class Metric(NamedTuple):
    """The task and the length in tokens of a needle metric."""

    task: str
    length: int

    @property
    def name(self) -> str:
        return f"{NEEDLES}{self.task}_{self.length}"


def task_title(task: str) -> str:
    return TASKS.get(task, task)


def length_title(length: int, training: float) -> str:
    """4K for 4,096; marked where it is beyond the training length."""
    short = f"{length // 1024}K" if length % 1024 == 0 else f"{length:,}"
    return f"{short} {BEYOND}" if beyond(length, training) else short


def beyond(length: int, training: float) -> bool:
    """Whether `length` exceeds the training length; False where that isn't known (NaN)."""
    return length > training


def metrics(names: Iterable[str]) -> list[Metric]:
    """The needle metrics among `names`: by task in the paper's order, then by length."""
    matches = {name: NAME.match(name) for name in names}
    distinct = {Metric(match["task"], int(match["length"])) for match in matches.values() if match}
    order = list(TASKS)
    return sorted(distinct, key=lambda item: (order.index(item.task) if item.task in order else len(order), *item))


def training_length(view: ExperimentView) -> float:
    return math.nan if view.sequence_length is None else float(view.sequence_length)


def needle_row(
    quantity: str, cells: Cells, estimates: dict[Metric, Estimate], results: Results, view: ExperimentView
) -> dict[str, Any]:
    """A row of the table; the published columns are empty, since Table 3's values aren't published in usable form."""
    cell = next(iter(cells.values()))
    measured = next((estimate for estimate in estimates.values() if estimate.seeds), None)
    line: dict[str, Any] = {"architecture": cell.architecture, "scale": cell.scale, "label": cell.label}
    line |= {"allocation": cell.allocation, "quantity": quantity, "toy": view.toy}
    line |= {"seeds": measured.seeds, "basis": measured.basis} if measured else {"seeds": 0, "basis": "unknown"}
    for item, estimate in estimates.items():
        samples = [measurement.items for measurement in results.seeds(cells, item.name).values()]
        low, high = estimate.interval
        line |= {item.name: estimate.mean, f"{item.name}_low": low, f"{item.name}_high": high}
        line[f"{item.name}_items"] = min(samples) if samples else None
    return line


def shade_of(change: dict[str, Any], metric: str) -> Tone:
    """Shade of a needle score by the interval of its difference from uniform."""
    effect = change[metric]
    return tone(effect, effect - change[f"{metric}_low"] if effect > 0 else change[f"{metric}_high"] - effect)


def with_interval(value: float, low: float, high: float, signed: bool = False) -> str:
    """`72.4 [68.3, 76.1]`, in percent or points."""
    text = number(value, digits=1, signed=signed)
    return (
        text if is_missing(value) or is_missing(low) else f"{text} [{number(low, digits=1)}, {number(high, digits=1)}]"
    )


def by_depth(records: Sequence[NeedleEvaluation], view: ExperimentView) -> pd.DataFrame:
    """One row a label, task, length and depth (0 to 1), seeds added up: how many needles were found. Uniform is first.

    Files of runs that `view` doesn't have are left out. Raises ArtifactError, naming the run, for a cell that lacks its
    file.
    """
    cells = {cell.run: cell for cell in view.cells}
    measured = [(cells[file.run.id], file.details.needles) for file in records if file.run and file.run.id in cells]
    for run in cells.keys() - {cell.run for cell, _ in measured}:
        raise ArtifactError(f"no file holds the needles of run {run}: pass its results/evaluations/{run}/niah-*.json")
    rows = [
        {
            **{name: getattr(cell, name) for name in ("architecture", "scale", "label", "seed")},
            **{"task": item.task, "length": item.length},
            **{"depth": place.depth, "found": place.found, "needed": place.needed},
        }
        for cell, needles in sorted(measured, key=lambda one: one[0].label != "uniform")
        for item in metrics(needles)
        for place in needles[item.name]
    ]
    keys = ["architecture", "scale", "label", "task", "length", "depth"]
    frame = pd.DataFrame(rows, columns=[*keys, "seed", "found", "needed"])
    sums = frame.groupby(keys, sort=False)
    counts = sums.agg(seeds=("seed", "nunique"), found=("found", "sum"), needed=("needed", "sum"))
    return counts.reset_index()


def scaling(records: Sequence[NeedleEvaluation]) -> str:
    """The RoPE scaling that the files were made with; empty where positions were read as trained."""
    kinds = {file.details.rope_scaling.kind for file in records if file.details.rope_scaling}
    return ", ".join(sorted(kinds - {"none"}))


def conditions_of(rope_scaling: str, generator: str) -> list[str]:
    """What a reader has to know of how the scores were made; none where all is as usual."""
    sentences = [f"RoPE scaling: {rope_scaling}."] if rope_scaling else []
    return sentences + (["Prompts: lm-eval's own niah tasks."] if "lm_eval" in generator else [])


def generators(records: Sequence[NeedleEvaluation]) -> str:
    return ", ".join(sorted({file.details.generator for file in records}))


def draw(table: pd.DataFrame, *, training: float, toy: bool, conditions: Sequence[str] = ()) -> Figure:
    """A panel a task and allocation: length from left to right, depth downwards, colour from 0 to 1.

    Args:
        table: rows of `by_depth`, of one architecture and scale.
        training: the training length in tokens, NaN where it isn't known; longer lengths are marked.
        conditions: sentences that a reader has to know, from `conditions_of`.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    places = depth_rows(table["depth"])
    rows = table.assign(place=[row_of(depth, places) for depth in table["depth"]])
    labels, tasks = list(dict.fromkeys(table["label"])), task_order(table)
    shape = len(labels), len(tasks)
    lengths = sorted(rows["length"].unique())
    with theme():
        width = max(PANEL, COLUMN * len(lengths))
        height = max(1.5, ROW * len(places) + 0.6) * len(labels) + 1.1
        figure = blank(width * len(tasks) + 1.6, height, toy=toy)
        figure.suptitle(heading(table), fontsize=10.5)
        grid = figure.subplots(*shape, squeeze=False, sharex=True, sharey=True)
        missing = False
        for (label, task), axes in zip(product(labels, tasks), grid.flat, strict=True):
            chosen = rows[(rows["label"] == label) & (rows["task"] == task)]
            hits, needed = (counts(chosen, column, places, lengths) for column in ("found", "needed"))
            missing |= bool((needed == 0).any(axis=None))
            panel(axes, hits, needed, column=width / len(lengths))
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
        note(figure, missing, [*mark, *conditions])
    return figure


def panel(axes: Axes, hits: pd.DataFrame, needed: pd.DataFrame, *, column: float) -> None:
    """One heat map; where there is room, in columns of `column` inches, each cell says `found/needed`."""
    import seaborn as sns

    share = hits / needed.where(needed > 0)
    text = hits.astype(str) + "/" + needed.astype(str)
    widest = max((len(entry) for entry in text.to_numpy().flat), default=0)
    room = 72 * column > CHARACTER * widest + 4
    look: dict[str, Any] = {"annot": text, "fmt": "", "annot_kws": {"fontsize": 7}} if room else {}
    axes.set_facecolor(ABSENT)
    axes.grid(visible=False)
    sns.heatmap(share, ax=axes, vmin=0, vmax=1, cmap=COLOURS, mask=share.isna(), cbar=False, linewidths=0.5, **look)
    axes.set(xlabel="", ylabel="")
    axes.tick_params(length=0)


def note(figure: Figure, missing: bool, texts: Sequence[str]) -> None:
    """A line below the panels: what grey means where there is any, and `texts`."""
    from matplotlib.patches import Patch

    handles = [Patch(color=ABSENT, label="no needle in this cell")] if missing else []
    handles += [Patch(visible=False, label=text) for text in texts]
    if handles:
        figure.legend(handles=handles, loc="outside lower left", ncols=len(handles), fontsize=8.5)


def heading(table: pd.DataFrame) -> str:
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


def counts(rows: pd.DataFrame, column: str, places: list[str], lengths: list[int]) -> pd.DataFrame:
    """The sum of `column`, places × lengths; 0 where no needle was asked for."""
    sums = rows.pivot_table(index="place", columns="length", values=column, aggfunc="sum")
    return sums.reindex(index=places, columns=lengths).fillna(0).astype(int)
