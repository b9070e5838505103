"""The grid: all runs, evaluations and novelty measurements that a configuration's experiments need, each once.

The workflow expands the grid at every call, so this is pure and fast, and nothing here may import torch.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

from tlm_repro.allocation.widths import layer_widths, resolve
from tlm_repro.architectures.accounting import parameters as count_parameters
from tlm_repro.architectures.registry import architecture
from tlm_repro.artifacts.checksums import sha256_file
from tlm_repro.artifacts.fingerprint import fingerprint
from tlm_repro.config.axes import experiment_axes
from tlm_repro.config.experiments import AllocationConfig
from tlm_repro.config.schema import Config, NeedleConfig, ZeroShotConfig, steps
from tlm_repro.errors import ConfigError, EvaluationError
from tlm_repro.evaluation.benchmarks.folder import items_fingerprint, read_sources
from tlm_repro.records.view import Cell
from tlm_repro.spec.base import slug
from tlm_repro.spec.data import DataSpec, HeldOut, Tokenisation
from tlm_repro.spec.evaluation import (
    AdditionalTask,
    Benchmarks,
    NeedlePrompts,
    NeedleSamplesSpec,
    NeedleScoring,
    NeedleSpec,
    NoveltySpec,
    NoveltyText,
    ValidationSpec,
    ZeroShotSpec,
)
from tlm_repro.spec.run import ModelSpec, RunLabels, RunSpec, TrainingSpec

NOMINAL_TOLERANCE = 0.015
Suite = ValidationSpec | ZeroShotSpec | NeedleSpec


@dataclass(frozen=True)
class NoveltyTask:
    """One novelty measurement, of a run or, if `run` is None, of an external model."""

    name: str
    spec: NoveltySpec
    run: str | None

    @property
    def file(self) -> str:
        return f"{self.name}-{fingerprint(self.spec.canonical())}"


@dataclass(frozen=True)
class Grid:
    """Everything that a configuration's experiments need."""

    config: Config
    data: DataSpec
    runs: dict[str, RunSpec] = field(default_factory=dict)
    experiments: dict[str, list[Cell]] = field(default_factory=dict)
    suites: dict[str, dict[str, Suite]] = field(default_factory=dict)  # run → evaluation name → spec
    novelty: dict[str, NoveltyTask] = field(default_factory=dict)  # file name → task
    samples: dict[str, NeedleSamplesSpec] = field(default_factory=dict)  # needle-in-a-haystack samples by name

    def evaluations(self, cells: Iterable[Cell], suites: Collection[str]) -> list[tuple[str, str]]:
        """(run, evaluation name) of every evaluation in these suites of the cells' runs, each run once."""
        runs = dict.fromkeys(cell.run for cell in cells)
        return [(run, name) for run in runs for name, suite in self.suites[run].items() if suite.suite in suites]

    def without(self, novelty: Collection[str]) -> "Grid":
        """The grid without these novelty measurements."""
        return replace(self, novelty={file: task for file, task in self.novelty.items() if file not in novelty})


def evaluation_name(suite: Suite) -> str:
    """`<suite>-<fingerprint>`: the evaluation's file under the run's folder."""
    return f"{suite.suite}-{fingerprint(suite.canonical())}"


def data_spec(config: Config) -> DataSpec:
    return DataSpec(**config.data.keys_of(Tokenisation))


def training_spec(config: Config, scale: str, seed: int) -> TrainingSpec:
    training, size = config.training, config.scales[scale]
    total = steps(size)
    shared = dict(training) | {"learning_rate": training.learning_rate.in_whole_steps(total)}
    return TrainingSpec(steps=total, batch_sequences=size.batch_tokens // training.sequence_length, seed=seed, **shared)


def model_spec(config: Config, arch: str, scale: str, allocation: AllocationConfig) -> ModelSpec:
    size, width = config.scales[scale], config.scales[scale].mlp_width[arch]
    options = architecture(arch).options.model_validate(config.architectures[arch])
    return ModelSpec(
        architecture=arch,
        layers=size.layers,
        model_width=size.model_width,
        heads=size.heads,
        intermediate_sizes=layer_widths(allocation.schedule, size.layers, width, **allocation.parameters()),
        vocab_size=config.data.tokenizer.vocab_size,
        sequence_length=config.training.sequence_length,
        mixer={name: value for name, value in options.canonical().items() if value is not None},
        **dict(config.model),
    )


def run_spec(config: Config, arch: str, scale: str, allocation: AllocationConfig, seed: int) -> RunSpec:
    return RunSpec(
        labels=RunLabels(architecture=arch, scale=scale, allocation=allocation.label, seed=seed),
        model=model_spec(config, arch, scale, allocation),
        data=data_spec(config),
        training=training_spec(config, scale, seed),
    )


def expand(config: Config) -> Grid:
    """Expands a configuration to its grid.

    Raises:
        ConfigError: a model's size differs by more than 1.5 % from the scale's nominal size, or benchmark items are
            missing.
    """
    grid = Grid(config=config, data=data_spec(config))
    for axes in experiment_axes(config):
        cells = grid.experiments.setdefault(axes.experiment, [])
        for scale, arch in product(axes.scales, axes.architectures):
            for label, allocation in axes.allocations.items():
                cells.extend(_cells(grid, label, arch, scale, allocation, axes.seeds))
    _check_sizes(grid)
    _add_suites(grid)
    _add_novelty(grid)
    return grid


def _cells(
    grid: Grid, label: str, arch: str, scale: str, allocation: AllocationConfig, seeds: Iterable[int]
) -> Iterator[Cell]:
    size = grid.config.scales[scale]
    curve, parameters = resolve(allocation.schedule, allocation.parameters())
    for seed in seeds:
        spec = run_spec(grid.config, arch, scale, allocation, seed)
        grid.runs.setdefault(spec.id, spec)
        yield Cell(
            label=label,
            architecture=arch,
            scale=scale,
            allocation=spec.labels.allocation,
            seed=seed,
            run=spec.id,
            width=size.mlp_width[arch],
            layers=size.layers,
            published_scale=size.stands_for or scale,
            curve=curve.name,
            parameters=parameters,
        )


def _check_sizes(grid: Grid) -> None:
    for spec in grid.runs.values():
        labels, nominal = spec.labels, grid.config.scales[spec.labels.scale].nominal_parameters
        if nominal is None:
            continue
        total = count_parameters(spec.model).total
        if abs(total / nominal - 1) > NOMINAL_TOLERANCE:
            raise ConfigError(
                f"scales.{labels.scale}.mlp_width.{labels.architecture}: {total / 1e6:.1f} M parameters are "
                f"{100 * (total / nominal - 1):+.1f} % from the nominal {nominal / 1e6:.0f} M, but at most "
                f"±{100 * NOMINAL_TOLERANCE} % is allowed: change the width or nominal_parameters"
            )


def _add_suites(grid: Grid) -> None:
    """Adds validation to every run, and benchmarks and needle in a haystack to the runs of Table 2."""
    config, length = grid.config, grid.config.training.sequence_length
    validation = ValidationSpec(sequence_length=length, **dict(config.evaluation.validation))
    for run in grid.runs:
        grid.suites[run] = {evaluation_name(validation): validation}
    others: list[Suite] = []
    if config.evaluation.zero_shot is not None:
        others.append(zero_shot_spec(config.evaluation.zero_shot, length))
    if config.evaluation.niah is not None:
        needles = needle_spec(config.evaluation.niah, grid.data)
        others.append(needles)
        if needles.generator == "own":
            grid.samples[needles.samples.name] = needles.samples
    for cell in grid.experiments.get("main", []):
        grid.suites[cell.run].update({evaluation_name(suite): suite for suite in others})


def zero_shot_spec(benchmarks: ZeroShotConfig, sequence_length: int) -> ZeroShotSpec:
    """The spec of the benchmarks. Raises ConfigError if items are missing or the folder of items is incomplete."""
    items = None
    additional = additional_tasks(benchmarks)
    if benchmarks.path is not None:
        from_folder = (*benchmarks.tasks, *(entry.task for entry in additional if entry.items is None))
        try:
            items = items_fingerprint(read_sources(Path(benchmarks.path), from_folder))
        except EvaluationError as error:
            raise ConfigError(f"evaluation.zero_shot.path: {error}") from None
    return ZeroShotSpec(
        max_length=benchmarks.max_length or sequence_length,
        items=items,
        additional=additional,
        **benchmarks.keys_of(Benchmarks),
    )


def additional_tasks(benchmarks: ZeroShotConfig) -> tuple[AdditionalTask, ...]:
    """The specs of the additional benchmarks. An item file is identified by its sha256."""
    tasks = []
    for index, entry in enumerate(benchmarks.additional):
        try:
            items = None if entry.items is None else sha256_file(Path(entry.items))
        except OSError as error:
            raise ConfigError(
                f"evaluation.zero_shot.additional.{index}.items: {entry.items!r} can't be read ({error.strerror}). "
                "Name a JSONL file, relative to where the workflow runs"
            ) from None
        column = entry.benchmark.column
        tasks.append(AdditionalTask(column=column, task=entry.task, metric=entry.metric, items=items))
    return tuple(tasks)


def needle_spec(needles: NeedleConfig, data: DataSpec) -> NeedleSpec:
    samples = NeedleSamplesSpec(data=data, **needles.keys_of(NeedlePrompts))
    return NeedleSpec(samples=samples, **needles.keys_of(NeedleScoring))


def _add_novelty(grid: Grid) -> None:
    novelty = grid.config.novelty
    if novelty is None:
        return
    data = grid.data if isinstance(novelty.text, HeldOut) else None
    common = novelty.keys_of(NoveltyText) | {"data": data}
    tasks = [NoveltyTask(slug(model.name), NoveltySpec(external=model, **common), None) for model in novelty.models]
    if novelty.runs:
        window = min(novelty.window, grid.config.training.sequence_length)
        runs = dict.fromkeys(cell.run for cell in grid.experiments.get("main", []))
        tasks += [NoveltyTask(run, NoveltySpec(**common | {"window": window}), run) for run in runs]
    grid.novelty.update({task.file: task for task in tasks})


def needs_retraining(grid: Grid, results: Path) -> list[str]:
    """The file names of novelty measurements that would need a finished run to be trained again.

    A clone that pulled only evaluations has finished runs without models. Training them again for one table would cost
    as much as all other tables together, so it happens only on request (`snakemake novelty`). A run without evaluations
    has to be trained anyway, so its novelty isn't listed.
    """

    def finished(run: str) -> bool:
        return all((results / f"evaluations/{run}/{name}.json").exists() for name in grid.suites[run])

    return [
        file
        for file, task in grid.novelty.items()
        if task.run
        and not (results / f"novelty/{file}.json").exists()
        and not (results / f"models/{task.run}/manifest.json").exists()
        and finished(task.run)
    ]
