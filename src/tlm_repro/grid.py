"""Configuration → the set of runs, evaluations and novelty measurements that its experiments need, each once.

Pure and instant: the workflow expands the grid at every call, so nothing here may import torch.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tlm_repro.allocation.widths import layer_widths
from tlm_repro.architectures import architecture
from tlm_repro.artifacts import fingerprint
from tlm_repro.config import AllocationConfig, Config, experiment_axes, steps
from tlm_repro.errors import ConfigError
from tlm_repro.models.accounting import parameters
from tlm_repro.spec import (
    DataSpec,
    HeldOut,
    ModelSpec,
    NoveltySpec,
    RunLabels,
    RunSpec,
    TrainingSpec,
    ValidationSpec,
    ZeroShotSpec,
    slug,
)

NOMINAL_TOLERANCE = 0.015
Suite = ValidationSpec | ZeroShotSpec


@dataclass(frozen=True)
class Cell:
    """One place in an experiment, and the run that fills it."""

    label: str
    architecture: str
    scale: str
    allocation: str
    seed: int
    run: str
    width: int
    layers: int
    published_scale: str  # of the paper's values that stand beside ours


@dataclass(frozen=True)
class NoveltyTask:
    """One novelty measurement: of a run of ours (`run`) or of an external model (`run` is None)."""

    name: str
    spec: NoveltySpec
    run: str | None

    @property
    def file(self) -> str:
        return f"{self.name}-{fingerprint(self.spec.canonical())}"


@dataclass(frozen=True)
class Grid:
    """Everything that a configuration asks for."""

    config: Config
    data: DataSpec
    runs: dict[str, RunSpec] = field(default_factory=dict)
    experiments: dict[str, list[Cell]] = field(default_factory=dict)
    suites: dict[str, dict[str, Suite]] = field(default_factory=dict)  # run → evaluation name → spec
    novelty: dict[str, NoveltyTask] = field(default_factory=dict)  # file name → task

    def evaluations(self, experiment: str) -> list[tuple[str, str]]:
        """(run, evaluation name) of every evaluation that the experiment's table reads."""
        runs = dict.fromkeys(cell.run for cell in self.experiments[experiment])
        wanted = {"validation", "zero_shot"} if experiment == "main" else {"validation"}
        return [(run, name) for run in runs for name, suite in self.suites[run].items() if suite.suite in wanted]

    @property
    def tables(self) -> list[str]:
        return [*self.experiments, *(["novelty"] if self.novelty else [])]

    @property
    def figures(self) -> list[str]:
        drawn = [name for name in self.experiments if name != "main"]
        return [*drawn, *(["allocation"] if self.runs else []), *(["novelty"] if self.novelty else [])]

    def view(self, experiment: str) -> dict[str, Any]:
        """The experiment as reports take it: plain values."""
        return {
            "experiment": experiment,
            "config": self.config.name,
            "toy": self.config.toy,
            "cells": [vars(cell) for cell in self.experiments[experiment]],
        }

    def allocation_view(self) -> dict[str, Any]:
        """Per-layer widths of every allocation at the first experiment's scale and architecture (Figure 3)."""
        first = next(iter(self.experiments.values()))[0]
        labels = (first.scale, first.architecture)
        alike = [run for run in self.runs.values() if (run.labels.scale, run.labels.architecture) == labels]
        return {
            "scale": first.scale,
            "architecture": first.architecture,
            "layers": first.layers,
            "width": first.width,
            "widths": {run.labels.allocation: run.model.intermediate_sizes for run in alike},
        }


def evaluation_name(suite: Suite) -> str:
    """`<suite>-<fingerprint>`: the evaluation's file under the run's folder."""
    return f"{suite.suite}-{fingerprint(suite.canonical())}"


def data_spec(config: Config) -> DataSpec:
    return DataSpec(**dict(config.data))


def training_spec(config: Config, scale: str, seed: int) -> TrainingSpec:
    training, size = config.training, config.scales[scale]
    total = steps(size)
    return TrainingSpec(
        steps=total,
        batch_sequences=size.batch_tokens // training.sequence_length,
        warmup_steps=round(training.warmup_ratio * total),
        seed=seed,
        **training.model_dump(exclude={"warmup_ratio"}),
    )


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
    """All that the configuration asks for.

    Raises:
        ConfigError: a model's total is further than 1.5 % from the scale's nominal size.
    """
    grid = Grid(config=config, data=data_spec(config))
    for experiment, allocations, scales, architectures in experiment_axes(config):
        cells = grid.experiments.setdefault(experiment, [])
        for scale in scales:
            for arch in architectures:
                for label, allocation in allocations.items():
                    cells.extend(_cells(grid, label, arch, scale, allocation))
    _check_sizes(grid)
    _add_suites(grid)
    _add_novelty(grid)
    return grid


def _cells(grid: Grid, label: str, arch: str, scale: str, allocation: AllocationConfig) -> Iterator[Cell]:
    size = grid.config.scales[scale]
    for seed in grid.config.seeds:
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
        )


def _check_sizes(grid: Grid) -> None:
    for spec in grid.runs.values():
        labels, nominal = spec.labels, grid.config.scales[spec.labels.scale].nominal_parameters
        if nominal is None:
            continue
        total = parameters(spec.model).total
        if abs(total / nominal - 1) > NOMINAL_TOLERANCE:
            raise ConfigError(
                f"scales.{labels.scale}.mlp_width.{labels.architecture}: {total / 1e6:.1f} M parameters are "
                f"{100 * (total / nominal - 1):+.1f} % from the nominal {nominal / 1e6:.0f} M, at most "
                f"±{100 * NOMINAL_TOLERANCE} % is allowed: change the width or nominal_parameters"
            )


def _add_suites(grid: Grid) -> None:
    """Validation for every run; benchmarks for the runs of Table 2."""
    config, length = grid.config, grid.config.training.sequence_length
    validation = ValidationSpec(tokens=config.evaluation.validation.tokens, sequence_length=length)
    for run in grid.runs:
        grid.suites[run] = {evaluation_name(validation): validation}
    benchmarks = config.evaluation.zero_shot
    if benchmarks is None:
        return
    zero_shot = ZeroShotSpec(
        source=benchmarks.source,
        tasks=benchmarks.tasks,
        max_length=benchmarks.max_length or length,
        limit=benchmarks.limit,
    )
    for cell in grid.experiments.get("main", []):
        grid.suites[cell.run][evaluation_name(zero_shot)] = zero_shot


def _add_novelty(grid: Grid) -> None:
    novelty = grid.config.novelty
    if novelty is None:
        return
    data = grid.data if isinstance(novelty.text, HeldOut) else None
    common: Mapping[str, Any] = {"text": novelty.text, "tokens": novelty.tokens, "data": data}
    tasks = [
        NoveltyTask(slug(model.name), NoveltySpec(external=model, window=novelty.window, **common), None)
        for model in novelty.models
    ]
    if novelty.runs:
        window = min(novelty.window, grid.config.training.sequence_length)
        runs = dict.fromkeys(cell.run for cell in grid.experiments.get("main", []))
        tasks += [NoveltyTask(run, NoveltySpec(window=window, **common), run) for run in runs]
    grid.novelty.update({task.file: task for task in tasks})
