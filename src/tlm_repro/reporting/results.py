"""What the report is made from: evaluation files, novelty files, experiment views and the paper's own numbers.

Ours and the paper's take the same shape (`Results` and `View`), so one rule judges both.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self, cast

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tlm_repro.artifacts.files import read_json
from tlm_repro.errors import ArtifactError
from tlm_repro.spec.run import RunLabels
from tlm_repro.statistics.blocks import Blocks

ACCURACIES = ("lambada_acc", "piqa", "hellaswag", "winogrande", "arc_easy", "arc_challenge", "siqa", "boolq")
NOT_PUBLISHED = "not published here"
MAIN_METRICS = ("wikitext_ppl", "lambada_ppl", *ACCURACIES, "avg")
PERPLEXITIES = ("val_ppl", "wikitext_ppl", "lambada_ppl")
NEEDLES = "niah_"  # metrics `niah_<task>_<length>`: the share of the needles found, 0 to 1
EXTERNAL_COLUMNS = ["name", "path", "version", "suite", "metric", "value", "stderr", "items"]
BLOCKS_MISS = 1e-6  # nats; the losses of blocks are rounded
FACTS = ("parameters", "forward_flops", "training_flops", "tokens", "layers", "model_width", "intermediate_sizes")


class Part(BaseModel):
    """Part of a file we read: unknown keys are left alone, missing or ill-typed ones refused."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, protected_namespaces=())

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises ArtifactError, naming the file and the key, when `path` doesn't hold what this class describes."""
        try:
            return cls.model_validate(read_json(path))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the whole file"
            kind = cls.__name__.lower()
            raise ArtifactError(
                f"{path} is not a usable {kind} file: {where}: {first['msg']} (seen: {first['input']!r:.80}); "
                "delete it and run its stage again"
            ) from None


class RunIdentity(RunLabels):
    id: str


class Facts(Part):
    """Exact facts of a trained model; FLOPs of one forward pass of one sequence, and of the whole training."""

    parameters: int
    forward_flops: int
    training_flops: int
    tokens: int
    layers: int
    model_width: int
    intermediate_sizes: tuple[int, ...]


class Metric(Part):
    value: float
    stderr: float | None
    items: int


class ExternalIdentity(Part):
    """A model that was trained elsewhere: a commit of the hub, or the hash of local files."""

    name: str
    source: str
    path: str
    revision: str | None = None
    hash: str | None = None


class Details(Part):
    """What tables and figures take from an evaluation's details; older files have neither."""

    curve: Any = None
    blocks: Blocks | None = None


class Evaluation(Part):
    """`results/evaluations/<run>/<suite>-<fingerprint>.json`, of a run with its facts or of an external model."""

    schema_: Literal[1] = Field(alias="schema")
    kind: Literal["evaluation"]
    suite: str
    run: RunIdentity | None = None
    model: Facts | None = None
    external: ExternalIdentity | None = None
    metrics: dict[str, Metric]
    details: Details = Details()

    @model_validator(mode="after")
    def _of_one_model(self) -> Self:
        if (self.run is None) != (self.model is None) or (self.run is None) == (self.external is None):
            raise ValueError("run and model are expected, or external in their place")
        return self

    @model_validator(mode="after")
    def _blocks_of_this_loss(self) -> Self:
        blocks, loss = self.details.blocks, self.metrics.get("val_loss")
        if blocks and not (loss and abs(blocks.mean - loss.value) < BLOCKS_MISS):
            raise ValueError(f"details.blocks have the mean {blocks.mean}, metrics.val_loss is {loss and loss.value}")
        return self


class Cosine(Part):
    mean: float
    stderr: float | None


class Correlation(Part):
    r: float | None
    layers: int


class Correlations(Part):
    block: Correlation
    mlp: Correlation


class Intervals(Part):
    """95 % intervals of r, and of r_MLP − r_block; None where they couldn't be had."""

    block: tuple[float, float] | None
    mlp: tuple[float, float] | None
    difference: tuple[float, float] | None


class NovelModel(Part):
    name: str
    run: RunIdentity | None
    layers: int
    parameters: int


class Novelty(Part):
    """`results/novelty/<model>-<fingerprint>.json`: a mean cosine a layer (null where it has no MLP), r with depth."""

    schema_: Literal[1] = Field(alias="schema")
    kind: Literal["novelty"]
    model: NovelModel
    tokens: int
    block: tuple[Cosine | None, ...]
    mlp: tuple[Cosine | None, ...]
    correlation: Correlations
    norm_ratio: tuple[Cosine | None, ...] | None = None  # ‖MLP‖ / ‖h‖; older files have neither this
    intervals: Intervals | None = None  # nor these


class Cell(Part):
    """One run's place in an experiment. `width` is the baseline D, None where it isn't known (the paper's own rows)."""

    label: str
    architecture: str
    scale: str
    allocation: str
    seed: int
    run: str
    width: int | None
    layers: int | None
    published_scale: str | None = None  # whose published values stand beside it, where that isn't `scale`


Cells = dict[int, Cell]  # seed → cell


class View(Part):
    """An experiment as the grid expands it: which run stands in which cell."""

    experiment: Literal["sweep", "motivation", "main", "allocations"]
    toy: bool
    config: str
    cells: tuple[Cell, ...]
    sequence_length: int | None = None  # of training, in tokens; None where it isn't known

    def groups(self, by: Literal["label", "allocation"] = "label") -> dict[tuple[str, str], dict[str, Cells]]:
        """(architecture, scale) → label or allocation → seed → cell, in the order of the cells."""
        found: dict[tuple[str, str], dict[str, Cells]] = {}
        for cell in self.cells:
            names = found.setdefault((cell.architecture, cell.scale), {})
            names.setdefault(cell.label if by == "label" else cell.allocation, {})[cell.seed] = cell
        return found


@dataclass(frozen=True)
class Measurement:
    """One number of one run. `resolution` is half the last printed digit, for numbers that are only known rounded.

    `items` is how many items or samples it is over, 0 where that isn't known; `blocks` is a validation loss by blocks
    of its text, None where the file has none.
    """

    value: float
    stderr: float = math.nan
    resolution: float = math.nan
    items: int = 0
    blocks: Blocks | None = None


@dataclass(frozen=True)
class Results:
    """`metrics`: one row a (run, metric) with its labels; `models`: one row a run with its exact facts.

    `external`: one row a (model, suite, metric) of models trained elsewhere. They are in no table of the paper.
    """

    metrics: pd.DataFrame
    models: pd.DataFrame
    external: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=EXTERNAL_COLUMNS))
    curves: dict[str, Any] = field(default_factory=dict)  # run → how its training went, as `reporting.curves` reads it
    blocks: dict[str, Blocks] = field(default_factory=dict)  # run → its validation loss by blocks of the text

    def find(self, run: str, metric: str) -> Measurement | None:
        """The measurement, or None when that run wasn't evaluated on that metric."""
        try:
            row = cast(pd.Series, self.metrics.loc[(run, metric)])
        except KeyError:
            return None
        items = 0 if pd.isna(row["items"]) else int(row["items"])
        blocks = self.blocks.get(run) if metric == "val_loss" else None
        return Measurement(float(row["value"]), float(row["stderr"]), float(row["resolution"]), items, blocks)

    def seeds(self, cells: Cells, metric: str) -> dict[int, Measurement]:
        """Seed → measurement of those cells that have one."""
        found = {seed: self.find(cell.run, metric) for seed, cell in cells.items()}
        return {seed: measurement for seed, measurement in found.items() if measurement is not None}

    def require(self, view: View, suite: str) -> None:
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


SHAPE = re.compile(r"^(?P<schedule>[a-z_]+)-(?P<start>\d+(\.\d+)?)-(?P<end>\d+(\.\d+)?)(-[a-z].*)?$")


def shape(allocation: str) -> tuple[str, float, float]:
    """(schedule, start, end) of a canonical allocation; the ends are NaN for one that isn't given by its two ends."""
    if allocation == "uniform":
        return "uniform", 1.0, 1.0
    found = SHAPE.match(allocation)
    if found is None:
        return allocation.split("-")[0], math.nan, math.nan
    return found["schedule"], float(found["start"]), float(found["end"])


METRIC_COLUMNS = ["run", "architecture", "scale", "allocation", "seed", "suite", "metric", "value", "stderr", "items"]


def frames(metrics: Sequence[dict[str, Any]], models: Sequence[dict[str, Any]]) -> Results:
    """Results from plain rows; keys that a row lacks are missing values."""
    table = pd.DataFrame(metrics, columns=[*METRIC_COLUMNS, "resolution", "file"])
    numbers = ["value", "stderr", "resolution"]
    table[numbers] = table[numbers].astype(float)
    table = table.set_index(["run", "metric"], drop=False).sort_index()
    table.index.names = [None, None]
    facts = pd.DataFrame(models, columns=["run", *FACTS]).set_index("run", drop=False)
    facts.index.name = None
    return Results(metrics=table, models=facts)


def load(paths: Iterable[Path]) -> Results:
    """Reads evaluation files. `avg`, the plain mean of the eight accuracies, is added to each run that has all eight.

    Raises:
        ArtifactError: a file is missing, malformed or of an unknown schema, two files hold the same metric of one run,
            or two files disagree on the facts of one model; the message names the files.
    """
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    models: dict[str, tuple[Path, dict[str, Any]]] = {}
    external: list[dict[str, Any]] = []
    curves: dict[str, Any] = {}
    blocks: dict[str, Blocks] = {}
    for path in sorted(paths):
        evaluation = Evaluation.read(path)
        run = evaluation.run
        if run is None or evaluation.model is None:
            external += external_rows(evaluation)
            continue
        facts = evaluation.model.model_dump()
        first, known = models.setdefault(run.id, (path, facts))
        if known != facts:
            changed = next(name for name in FACTS if known[name] != facts[name])
            raise ArtifactError(
                f"{path} and {first} disagree on '{changed}' of run {run.id}: delete both and evaluate the run again"
            )
        if evaluation.details.curve:
            curves[run.id] = evaluation.details.curve
        if evaluation.details.blocks:
            blocks[run.id] = evaluation.details.blocks
        labels = {"run": run.id, **run.model_dump(exclude={"id"}), "suite": evaluation.suite, "file": str(path)}
        for name, metric in with_average(evaluation.metrics).items():
            if (run.id, name) in rows:
                other = rows[run.id, name]["file"]
                raise ArtifactError(f"{path} and {other} both hold '{name}' of run {run.id}: pass only one of them")
            rows[run.id, name] = {**labels, "metric": name, **metric.model_dump()}
    found = frames(list(rows.values()), [{"run": run, **facts} for run, (_, facts) in models.items()])
    elsewhere = pd.DataFrame(external, columns=EXTERNAL_COLUMNS)
    return replace(found, external=elsewhere, curves=curves, blocks=blocks)


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
    found = [metrics[name] for name in ACCURACIES if name in metrics]
    if len(found) < len(ACCURACIES):
        return metrics
    errors = [metric.stderr for metric in found if metric.stderr is not None]
    stderr = math.sqrt(sum(error**2 for error in errors)) / len(found) if len(errors) == len(found) else None
    value = sum(metric.value for metric in found) / len(found)
    return {**metrics, "avg": Metric(value=value, stderr=stderr, items=sum(metric.items for metric in found))}


def load_novelty(paths: Iterable[Path]) -> list[Novelty]:
    """Reads novelty files, in order of their names. Raises ArtifactError naming a file that can't be used."""
    return [Novelty.read(path) for path in sorted(paths)]
