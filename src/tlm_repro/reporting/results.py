"""What evaluation files hold, as tables: one row a metric of a run, one row of facts a run.

The paper's own numbers (`published`) and ours take the same form, so one rule judges both.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from tlm_repro.errors import ArtifactError
from tlm_repro.records.evaluation import Evaluation, Metric, TrainingCurve, ValidationEvaluation
from tlm_repro.records.view import Cells, ExperimentView
from tlm_repro.reporting.lazy import pd
from tlm_repro.spec.metrics import ACCURACIES
from tlm_repro.statistics.blocks import Blocks
from tlm_repro.statistics.measurement import Measurement

METRIC_COLUMNS = ["run", "architecture", "scale", "allocation", "seed", "suite", "metric", "value", "stderr", "items"]
EXTERNAL_COLUMNS = ["name", "path", "version", "suite", "metric", "value", "stderr", "items"]
FACTS = ("parameters", "forward_flops", "training_flops", "tokens", "layers", "model_width", "intermediate_sizes")


@dataclass(frozen=True)
class Results:
    """`metrics`: one row a (run, metric) with its labels; `models`: one row a run with its exact facts.

    `external`: one row a (model, suite, metric) of models trained elsewhere. They are in no table of the paper.
    """

    metrics: pd.DataFrame
    models: pd.DataFrame
    external: pd.DataFrame
    curves: dict[str, TrainingCurve] = field(default_factory=dict)  # run → its training losses
    blocks: dict[str, Blocks] = field(default_factory=dict)  # run → its validation loss by blocks of the text

    def find(self, run: str, metric: str) -> Measurement | None:
        """The measurement, or None when that run wasn't evaluated on that metric."""
        try:
            row = cast("pd.Series", self.metrics.loc[(run, metric)])
        except KeyError:
            return None
        items = 0 if is_missing(row["items"]) else int(row["items"])
        blocks = self.blocks.get(run) if metric == "val_loss" else None
        return Measurement(float(row["value"]), float(row["stderr"]), float(row["resolution"]), items, blocks)

    def seeds(self, cells: Cells, metric: str) -> dict[int, Measurement]:
        """Seed → measurement of those cells that have one."""
        measurements = {seed: self.find(cell.run, metric) for seed, cell in cells.items()}
        return {seed: measurement for seed, measurement in measurements.items() if measurement is not None}

    def restricted(self, runs: Collection[str], suites: Collection[str]) -> Results:
        """The metrics of these suites, and the facts, of these runs."""
        metrics = self.metrics[self.metrics["run"].isin(list(runs)) & self.metrics["suite"].isin(list(suites))]
        return replace(self, metrics=metrics, models=self.models[self.models["run"].isin(list(runs))])

    def require(self, view: ExperimentView, suite: str) -> None:
        """Raises ArtifactError, naming the run and the target that makes it, when a cell of `view` lacks `suite`."""
        rows = self.metrics["suite"] == suite
        if suite == "validation":
            rows &= self.metrics["metric"] == "val_loss"
        evaluated = set(self.metrics.loc[rows, "run"])
        for cell in view.cells:
            if cell.run not in evaluated:
                raise ArtifactError(
                    f"run {cell.run} has no {suite} evaluation, which experiment '{view.experiment}' needs for "
                    f"cell '{cell.label}' ({cell.architecture}, {cell.scale}, seed {cell.seed}); make it with "
                    f"`snakemake evaluations` (results/evaluations/{cell.run}/)"
                )


def is_missing(value: Any) -> bool:
    """Whether a value of a table is None or NaN."""
    return value is None or value != value


def frames(metrics: Sequence[dict[str, Any]], models: Sequence[dict[str, Any]]) -> Results:
    """Results from plain rows; keys that a row lacks are missing values."""
    table = pd.DataFrame(metrics, columns=[*METRIC_COLUMNS, "resolution", "file"])
    numbers = ["value", "stderr", "resolution"]
    table[numbers] = table[numbers].astype(float)
    table = table.set_index(["run", "metric"], drop=False).sort_index()
    table.index.names = [None, None]
    facts = pd.DataFrame(models, columns=["run", *FACTS]).set_index("run", drop=False)
    facts.index.name = None
    return Results(metrics=table, models=facts, external=pd.DataFrame(columns=EXTERNAL_COLUMNS))


def load(paths: Iterable[Path]) -> Results:
    """The results in evaluation files. Raises ArtifactError, naming the file, as `Evaluation.read` and `collect` do."""
    return collect({path: Evaluation.read(path) for path in sorted(paths)})


def collect(evaluations: Mapping[Path, Evaluation]) -> Results:
    """The results in evaluations. `avg`, the plain mean of the eight accuracies, is added to each run that has them.

    Raises:
        ArtifactError: two files hold the same metric of one run, or disagree on the facts of one model; the message
            names the files.
    """
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    models: dict[str, tuple[Path, dict[str, Any]]] = {}
    external: list[dict[str, Any]] = []
    curves: dict[str, TrainingCurve] = {}
    blocks: dict[str, Blocks] = {}
    for path, evaluation in evaluations.items():
        run = evaluation.run
        if run is None or evaluation.model is None:
            external += external_rows(evaluation)
            continue
        facts = evaluation.model.model_dump()
        first, earlier = models.setdefault(run.id, (path, facts))
        if earlier != facts:
            changed = next(name for name in FACTS if earlier[name] != facts[name])
            raise ArtifactError(
                f"{path} and {first} disagree on '{changed}' of run {run.id}: delete both and evaluate the run again"
            )
        if isinstance(evaluation, ValidationEvaluation):
            details = evaluation.details
            curves |= {run.id: details.curve} if details.curve else {}
            blocks |= {run.id: details.blocks} if details.blocks else {}
        labels = {"run": run.id, **run.model_dump(exclude={"id"}), "suite": evaluation.suite, "file": str(path)}
        for name, metric in with_average(evaluation.metrics).items():
            if (run.id, name) in rows:
                other = rows[run.id, name]["file"]
                raise ArtifactError(f"{path} and {other} both hold '{name}' of run {run.id}: pass only one of them")
            rows[run.id, name] = {**labels, "metric": name, **metric.model_dump()}
    results = frames(list(rows.values()), [{"run": run, **facts} for run, (_, facts) in models.items()])
    elsewhere = pd.DataFrame(external, columns=EXTERNAL_COLUMNS)
    return replace(results, external=elsewhere, curves=curves, blocks=blocks)


def external_rows(evaluation: Evaluation) -> list[dict[str, Any]]:
    """One row a metric of a model trained elsewhere; `version` is the commit, or the hash of its files."""
    model = evaluation.external
    if model is None:
        return []
    labels = {"name": model.name, "path": model.path, "version": model.revision or model.hash}
    return [
        {**labels, "suite": evaluation.suite, "metric": name, **metric.model_dump()}
        for name, metric in with_average(evaluation.metrics).items()
    ]


def with_average(metrics: dict[str, Metric]) -> dict[str, Metric]:
    """Adds `avg` where all eight accuracies are there; its standard error takes the tasks as independent."""
    accuracies = [metrics[name] for name in ACCURACIES if name in metrics]
    count = len(accuracies)
    if count < len(ACCURACIES):
        return metrics
    errors = [metric.stderr for metric in accuracies if metric.stderr is not None]
    stderr = math.sqrt(sum(error**2 for error in errors)) / count if len(errors) == count else None
    value = sum(metric.value for metric in accuracies) / count
    return {**metrics, "avg": Metric(value=value, stderr=stderr, items=sum(metric.items for metric in accuracies))}
