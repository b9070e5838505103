"""Table 2: language modelling and zero-shot benchmarks, uniform beside tapered, for each architecture and scale.

The paper's columns come first, `avg` with them: the plain mean of its eight accuracies. Benchmarks that the
configuration adds have a column each after those, and no published value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tlm_repro.records.view import Cells, ExperimentView
from tlm_repro.reporting.evidence import Evidence
from tlm_repro.reporting.exhibit import Exhibit
from tlm_repro.reporting.lazy import pd
from tlm_repro.reporting.paired import NOT_MEASURED, against_uniform, mean_of
from tlm_repro.reporting.published import NOT_PUBLISHED, reference
from tlm_repro.reporting.results import is_missing
from tlm_repro.reporting.sheets import HEAD, SHADES, Sheet, Tone, caption, head, number, sheet, tone
from tlm_repro.spec.benchmarks import PAPER_BENCHMARKS, Benchmark, Scale
from tlm_repro.spec.metrics import MAIN_METRICS
from tlm_repro.statistics.estimates import Estimate, table_value

AVERAGE = Benchmark("avg", "Avg", "", "acc", "higher")
PAPER_COLUMNS = (*PAPER_BENCHMARKS, AVERAGE)
DIGITS: dict[Scale, tuple[int, int]] = {"percent": (1, 2), "perplexity": (2, 4), "plain": (4, 4)}  # level, difference
ROW = ("architecture", "scale", "label", "allocation", "quantity", "seeds", "basis", "toy")


class Main(Exhibit):
    name = "main"
    title = "Table 2"
    caption = "Table 2: language modelling and zero-shot accuracy, uniform against tapered."
    order = 30
    experiments = ("main",)
    suites = ("validation", "zero_shot")

    def table(self, evidence: Evidence) -> pd.DataFrame:
        """Per architecture and scale the uniform row, the tapered row, and tapered − uniform.

        `quantity` is "level" (perplexities, accuracies in percent) or "difference" (perplexities in nats, that is the
        logarithm of their ratio, accuracies in percentage points). A metric that the suite didn't ask for is missing.
        Raises ArtifactError, naming the run, for a cell without its zero-shot evaluation.
        """
        results, view = evidence.results, evidence.views["main"]
        results.require(view, "zero_shot")
        benchmarks = (*PAPER_COLUMNS, *evidence.benchmarks)
        rows = []
        for (architecture, scale), labels in view.groups().items():
            order = sorted(labels, key=lambda label: label != "uniform")
            printed_scale = next(iter(labels[order[0]].values())).published_scale or scale
            printed = {label: published_row(architecture, printed_scale, label) for label in order}
            for label in order:
                levels = {
                    benchmark: mean_of(results, labels[label], benchmark.column, benchmark.scale)
                    for benchmark in benchmarks
                }
                rows.append(main_row("level", label, labels[label], levels, printed[label], view))
            for label in (label for label in order if label != "uniform" and "uniform" in labels):
                effects = {
                    benchmark: against_uniform(results, labels, label, benchmark.column, benchmark.scale)
                    for benchmark in benchmarks
                }
                published = published_effects(printed[label], printed["uniform"])
                rows.append(main_row("difference", label, labels[label], effects, published, view))
        frame = pd.DataFrame(rows, columns=[*ROW, *(part for column in benchmarks for part in parts(column.column))])
        frame.attrs["benchmarks"] = tuple(evidence.benchmarks)
        return frame

    def sheet(self, frame: pd.DataFrame) -> Sheet:
        """Ours above the paper's, for each row of Table 2 and for the difference."""
        columns = (*PAPER_COLUMNS, *frame.attrs.get("benchmarks", ()))
        rows: list[dict[str, tuple[str, Tone]]] = []
        for _, group in frame.groupby(["architecture", "scale"], sort=False):
            records = [dict(zip(frame.columns, row, strict=True)) for row in group.itertuples(index=False)]
            changes = {row["label"]: row for row in records if row["quantity"] == "difference"}
            published = [row[f"published_{metric}"] for row in records for metric in MAIN_METRICS]
            has_published = not all(is_missing(value) for value in published)
            for row in records:
                rows.append(main_cells(row, changes.get(row["label"]), "ours", columns))
                if has_published:
                    rows.append(main_cells(row, changes.get(row["label"]), "paper", columns))
            if not has_published:
                absent: tuple[str, Tone] = (NOT_PUBLISHED, "")
                rows.append(head(records[0], "all rows", "paper") | {column.heading: absent for column in columns})
        units = "Difference: tapered − uniform, perplexities in nats (logarithm of their ratio), accuracies in points."
        return sheet(self.name, rows, caption("Table 2: zero-shot evaluation.", frame, units, SHADES), HEAD)


def parts(metric: str) -> tuple[str, str, str, str]:
    """The columns of a metric in the CSV file."""
    return metric, f"{metric}_se", f"{metric}_interval", f"published_{metric}"


def main_row(
    quantity: str,
    label: str,
    cells: Cells,
    estimates: Mapping[Benchmark, Estimate],
    published: Mapping[str, float],
    view: ExperimentView,
) -> dict[str, Any]:
    cell = next(iter(cells.values()))
    measured = next((estimate for estimate in estimates.values() if estimate.seeds), NOT_MEASURED)
    row: dict[str, Any] = {"architecture": cell.architecture, "scale": cell.scale, "label": label}
    row |= {"allocation": cell.allocation, "quantity": quantity, "toy": view.toy}
    row |= {"seeds": measured.seeds, "basis": measured.basis}
    for benchmark, estimate in estimates.items():
        value, stderr = estimate.mean, estimate.stderr
        if quantity == "level":
            value, stderr = table_value(benchmark.column, estimate, benchmark.scale)
        interval = estimate.half_width if quantity == "difference" else math.nan
        numbers = (value, stderr, interval, published.get(benchmark.column, math.nan))
        row |= dict(zip(parts(benchmark.column), numbers, strict=True))
    return row


def published_row(architecture: str, scale: str, label: str) -> dict[str, float]:
    """A row of the published Table 2; all missing where the paper has no such row."""
    table = reference("table2_main").set_index(["arch", "scale", "allocation"])
    key = (architecture, scale, label)
    return {metric: float(table[metric].get(key, math.nan)) for metric in MAIN_METRICS}


def published_effects(ours: Mapping[str, float], uniform: Mapping[str, float]) -> dict[str, float]:
    """Differences of two published rows, each in the metric's natural unit."""
    return {
        benchmark.column: math.log(ours[benchmark.column] / uniform[benchmark.column])
        if benchmark.scale == "perplexity"
        else ours[benchmark.column] - uniform[benchmark.column]
        for benchmark in PAPER_COLUMNS
    }


def main_cells(
    row: Mapping[str, Any], change: Mapping[str, Any] | None, source: str, columns: Sequence[Benchmark]
) -> dict[str, tuple[str, Tone]]:
    """One line of the sheet; the level of a row that has a `change` is shaded by it."""
    is_level, prefix = row["quantity"] == "level", "" if source == "ours" else "published_"
    cells = head(row, row["label"] if is_level else f"{row['label']} − uniform", source)
    for benchmark in columns:
        metric = benchmark.column
        error = math.nan if prefix else row[f"{metric}_se" if is_level else f"{metric}_interval"]
        missing = NOT_PUBLISHED if prefix else "not run"
        text = number(row[prefix + metric], error, digits(benchmark, is_level), not is_level, missing)
        shade: Tone = ""
        if is_level and change is not None:
            effect = change[prefix + metric] * (1 if benchmark.direction == "higher" else -1)
            shade = tone(effect, 0.0 if prefix else change[f"{metric}_interval"])
        cells[benchmark.heading] = (text, shade)
    return cells


def digits(benchmark: Benchmark, is_level: bool) -> int:
    """Decimals of a level or of a difference."""
    if benchmark == AVERAGE:
        return 2
    level_digits, difference_digits = DIGITS[benchmark.scale]
    return level_digits if is_level else difference_digits
