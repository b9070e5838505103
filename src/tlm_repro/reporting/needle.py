"""Needle-in-a-haystack results: Table 3, and the share of the needles found by depth. Pure functions to data frames.

A metric is called `niah_<task>_<length>`, as in `niah_single_1_4096`; its value is the share of the needles found.
"""

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from tlm_repro.errors import ArtifactError
from tlm_repro.records.evaluation import Evaluation, NeedleEvaluation
from tlm_repro.records.view import Cells, ExperimentView
from tlm_repro.reporting.results import Results
from tlm_repro.reporting.tables import against_uniform, found_level
from tlm_repro.spec.metrics import NEEDLES
from tlm_repro.statistics.estimates import Estimate

TASKS = {"single_1": "S-NIAH-1", "single_2": "S-NIAH-2", "single_3": "S-NIAH-3", "multiquery": "MQ-NIAH"}
NAME = re.compile(rf"^{NEEDLES}(?P<task>.+)_(?P<length>\d+)$")
BEYOND = "†"
HEAD = (
    *("architecture", "scale", "label", "allocation", "quantity", "seeds", "basis", "training_length"),
    *("rope_scaling", "generator", "toy"),
)


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
    found = {Metric(match["task"], int(match["length"])) for match in matches.values() if match}
    order = list(TASKS)
    return sorted(found, key=lambda item: (order.index(item.task) if item.task in order else len(order), *item))


def measured(results: Results) -> list[Metric]:
    """The needle metrics that any run has."""
    return metrics(results.metrics["metric"])


def training_length(view: ExperimentView) -> float:
    return math.nan if view.sequence_length is None else float(view.sequence_length)


def table(results: Results, view: ExperimentView, files: Sequence[NeedleEvaluation] = ()) -> pd.DataFrame:
    """Table 3: per architecture and scale the uniform row, the tapered row, and tapered − uniform.

    Columns `<metric>` are in percent (`quantity` "level") or percentage points ("difference"), `<metric>_low` and
    `<metric>_high` their 95 % interval, `<metric>_items` the samples of one run. `files` tell how prompts were made and
    positions read. Raises ArtifactError, naming the run, for a cell of `view` without its needle evaluation.
    """
    results.require(view, "niah")
    columns = measured(results)
    rows = []
    for labels in view.groups().values():
        order = sorted(labels, key=lambda label: label != "uniform")
        for label in order:
            found = {item: found_level(results, labels[label], item.name) for item in columns}
            rows.append(row("level", labels[label], found, results, view))
        for label in (label for label in order if label != "uniform" and "uniform" in labels):
            effects = {item: against_uniform(results, labels, label, item.name) for item in columns}
            rows.append(row("difference", labels[label], effects, results, view))
    parts = [item.name + suffix for item in columns for suffix in ("", "_low", "_high", "_items")]
    read = {"rope_scaling": scaling(files), "generator": generators(files)}
    frame = pd.DataFrame(rows, columns=[*HEAD, *parts, *(f"published_{item.name}" for item in columns)])
    return frame.assign(training_length=training_length(view), **read)


def row(
    quantity: str, cells: Cells, found: dict[Metric, Estimate], results: Results, view: ExperimentView
) -> dict[str, Any]:
    """A row of the table; the published columns are empty, since Table 3's values aren't published in usable form."""
    cell = next(iter(cells.values()))
    known = next((estimate for estimate in found.values() if estimate.seeds), None)
    line: dict[str, Any] = {"architecture": cell.architecture, "scale": cell.scale, "label": cell.label}
    line |= {"allocation": cell.allocation, "quantity": quantity, "toy": view.toy}
    line |= {"seeds": known.seeds, "basis": known.basis} if known else {"seeds": 0, "basis": "unknown"}
    for item, estimate in found.items():
        samples = [measurement.items for measurement in results.seeds(cells, item.name).values()]
        low, high = estimate.interval
        line |= {item.name: estimate.mean, f"{item.name}_low": low, f"{item.name}_high": high}
        line[f"{item.name}_items"] = min(samples) if samples else None
    return line


def load(paths: Iterable[Path]) -> list[NeedleEvaluation]:
    """The needle evaluations among evaluation files, by name. Raises ArtifactError naming a file that can't be used."""
    evaluations = [Evaluation.read(path) for path in sorted(paths)]
    return [evaluation for evaluation in evaluations if isinstance(evaluation, NeedleEvaluation)]


def by_depth(found: Sequence[NeedleEvaluation], view: ExperimentView) -> pd.DataFrame:
    """One row a label, task, length and depth (0 to 1), seeds added up: how many needles were found. Uniform is first.

    Files of runs that `view` doesn't have are left out. Raises ArtifactError, naming the run, for a cell that lacks its
    file.
    """
    cells = {cell.run: cell for cell in view.cells}
    known = [(cells[file.run.id], file.details.needles) for file in found if file.run and file.run.id in cells]
    for run in cells.keys() - {cell.run for cell, _ in known}:
        raise ArtifactError(f"no file holds the needles of run {run}: pass its results/evaluations/{run}/niah-*.json")
    rows = [
        {
            **{name: getattr(cell, name) for name in ("architecture", "scale", "label", "seed")},
            **{"task": item.task, "length": item.length},
            **{"depth": place.depth, "found": place.found, "needed": place.needed},
        }
        for cell, needles in sorted(known, key=lambda one: one[0].label != "uniform")
        for item in metrics(needles)
        for place in needles[item.name]
    ]
    keys = ["architecture", "scale", "label", "task", "length", "depth"]
    frame = pd.DataFrame(rows, columns=[*keys, "seed", "found", "needed"])
    sums = frame.groupby(keys, sort=False)
    counts = sums.agg(seeds=("seed", "nunique"), found=("found", "sum"), needed=("needed", "sum"))
    return counts.reset_index()


def scaling(found: Sequence[NeedleEvaluation]) -> str:
    """The RoPE scaling that the files were made with; empty where positions were read as trained."""
    kinds = {file.details.rope_scaling.kind for file in found if file.details.rope_scaling}
    return ", ".join(sorted(kinds - {"none"}))


def conditions(rope_scaling: str, generator: str) -> list[str]:
    """What a reader has to know of how the scores were made; nothing where all is as usual."""
    found = [f"RoPE scaling: {rope_scaling}."] if rope_scaling else []
    return found + (["Prompts: lm-eval's own niah tasks."] if "lm_eval" in generator else [])


def generators(found: Sequence[NeedleEvaluation]) -> str:
    return ", ".join(sorted({file.details.generator for file in found}))
