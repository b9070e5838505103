"""What a configuration costs before anything runs: FLOPs, GPU-hours, disk, and what is already done. No torch here.

GPU-hours are FLOPs in closed form ÷ (peak of a device × an assumed utilisation): the peak is a data sheet's, the
utilisation is whatever the reader states.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tlm_repro.architectures.accounting import forward_flops, parameters, training_flops
from tlm_repro.devices import Arithmetic, find_device, peak_flops
from tlm_repro.errors import ConfigError
from tlm_repro.overview import disk as storage
from tlm_repro.overview.progress import data_summary, finished_manifest
from tlm_repro.spec.evaluation import NeedleSpec, ValidationSpec
from tlm_repro.spec.run import ModelSpec, RunSpec
from tlm_repro.study.grid import Grid, Suite

TITLES = {
    "motivation": "Figure 2",
    "sweep": "Table 1",
    "main": "Table 2",
    "allocations": "Other allocations",
    "niah": "Table 3",
    "novelty": "Figure 4",
}


@dataclass(frozen=True)
class Assumptions:
    """What turns FLOPs into hours and money; `peak_flops` a second of one device, `mfu` the share of it that is used.

    `tokenizing_rate`: tokens a second of the whole tokenising stage; None: it isn't estimated.
    """

    device: str
    arithmetic: Arithmetic
    peak_flops: float
    peak_source: str
    mfu: float
    price_per_gpu_hour: float | None = None
    tokenizing_rate: float | None = None

    def hours(self, flops: float) -> float:
        """On one device."""
        return flops / (self.peak_flops * self.mfu) / 3600


@dataclass(frozen=True)
class RunCost:
    """One training run. `gpu_hours` are those of its optimiser steps; `validation_gpu_hours` of looking on meanwhile,
    when one process measures and the others wait; `wall_hours` are both, on `processes` devices."""

    id: str
    arch: str  # as the published tables call it
    scale: str
    allocation: str
    seed: int
    parameters: int
    tokens: int
    steps: int
    flops: int
    processes: int
    gpu_hours: float
    validation_gpu_hours: float
    wall_hours: float
    checkpoint_bytes: int
    model_bytes: int
    done: bool


@dataclass(frozen=True)
class EvaluationCost:
    """One evaluation of one run, on one device. `flops` and `gpu_hours` are None where the items aren't known."""

    run: str
    name: str
    suite: str
    flops: int | None
    gpu_hours: float | None
    done: bool


@dataclass(frozen=True)
class TableCost:
    """A table or figure, made alone: all the runs that it reads, of which `shared` are read by others too."""

    name: str
    title: str
    runs: int
    shared: int
    runs_done: int
    evaluations: int
    evaluations_done: int
    gpu_hours: float
    evaluation_gpu_hours: float


@dataclass(frozen=True)
class Link:
    """One stage of the longest chain; `hours` None: not estimated. `left` is what is still to be waited for."""

    stage: str
    what: str
    hours: float | None
    left: float | None


@dataclass(frozen=True)
class Disk:
    """Bytes. `tokens` is None where the budgets are open and nothing is tokenised yet.

    `tokens_measured` says that it is the size of files that are there. `tokens_joining` is what they take while the
    parts of several jobs are joined, None where one job makes them or they are there. Checkpoints: of the largest run,
    and of all unfinished runs training at once.
    """

    tokens: int | None
    tokens_measured: bool
    tokens_joining: int | None
    models: int
    checkpoints_one_run: int
    checkpoints_all_runs: int


@dataclass(frozen=True)
class Plan:
    """Everything that a configuration asks for, each thing once."""

    config: str
    toy: bool
    assumptions: Assumptions
    runs: list[RunCost]
    evaluations: list[EvaluationCost]
    tables: list[TableCost]
    novelty: int
    novelty_done: int
    data: str
    data_done: bool
    chain: list[Link]
    disk: Disk


def assumptions(
    grid: Grid,
    *,
    device: str,
    mfu: float,
    peak_tflops: float | None = None,
    price_per_gpu_hour: float | None = None,
    tokenizing_rate: float | None = None,
) -> Assumptions:
    """Checked assumptions. Raises ConfigError for a utilisation beyond 1, or a device whose peak isn't known."""
    if not 0 < mfu <= 1:
        raise ConfigError(f"--mfu {mfu}: a share of the peak is expected, above 0 and at most 1, as 0.4")
    stated = {"--peak-tflops": peak_tflops, "--tokenizing-rate": tokenizing_rate}
    for name, value in stated.items():
        if value is not None and value <= 0:
            raise ConfigError(f"{name} {value}: a number above 0 is expected")
    if price_per_gpu_hour is not None and price_per_gpu_hour < 0:
        raise ConfigError(f"--price-per-gpu-hour {price_per_gpu_hour}: a price of 0 or more is expected")
    arithmetic = grid.config.training.precision
    found = find_device(device)
    name = found.name if found else device
    if peak_tflops is not None:
        peak, source = peak_tflops * 1e12, "stated with --peak-tflops"
    else:
        peak, source = peak_flops(device, arithmetic), found.source if found else ""
    return Assumptions(name, arithmetic, peak, source, mfu, price_per_gpu_hour, tokenizing_rate)


def make(grid: Grid, assumed: Assumptions, results: Path) -> Plan:
    """The plan of all that `grid` holds; `results` is the workflow's folder, read for what is already done."""
    data = data_summary(grid.data, results)
    runs = [_run(grid, spec, assumed, results) for spec in grid.runs.values()]
    evaluations = [
        _evaluation(grid, run, name, suite, assumed, results)
        for run, suites in grid.suites.items()
        for name, suite in suites.items()
    ]
    return Plan(
        config=grid.config.name,
        toy=grid.config.toy,
        assumptions=assumed,
        runs=runs,
        evaluations=evaluations,
        tables=_tables(grid, runs, evaluations),
        novelty=len(grid.novelty),
        novelty_done=sum((results / "novelty" / f"{name}.json").is_file() for name in grid.novelty),
        data=grid.data.name,
        data_done=data is not None,
        chain=_chain(grid, assumed, runs, evaluations, data is not None),
        disk=_disk(grid, runs, data),
    )


def _run(grid: Grid, spec: RunSpec, assumed: Assumptions, results: Path) -> RunCost:
    labels, model = spec.labels, spec.model
    hardware = grid.config.scales[labels.scale].hardware
    flops = training_flops(model, spec.training.tokens)
    looking = assumed.hours(_monitoring_flops(grid, spec)) * hardware.processes
    hours = assumed.hours(flops)
    return RunCost(
        id=spec.id,
        arch=labels.architecture,
        scale=labels.scale,
        allocation=labels.allocation,
        seed=labels.seed,
        parameters=parameters(model).total,
        tokens=spec.training.tokens,
        steps=spec.training.steps,
        flops=flops,
        processes=hardware.processes,
        gpu_hours=hours,
        validation_gpu_hours=looking,
        wall_hours=(hours + looking) / hardware.processes,
        checkpoint_bytes=storage.checkpoint_bytes(model),
        model_bytes=storage.model_bytes(model),
        done=finished_manifest(results, spec.id) is not None,
    )


def _monitoring_flops(grid: Grid, spec: RunSpec) -> int:
    """Of the validation losses that training measures now and then, in one process."""
    trainer, held_out = grid.config.trainer, grid.data.validation_tokens
    tokens = trainer.validation_tokens if held_out is None else min(trainer.validation_tokens, held_out)
    return min(trainer.validations, spec.training.steps) * _windows_flops(
        spec.model, tokens, spec.training.sequence_length
    )


def _windows_flops(model: ModelSpec, tokens: int, length: int) -> int:
    return tokens // length * forward_flops(model, length)


def evaluation_flops(model: ModelSpec, suite: Suite, held_out: int | None) -> int | None:
    """Forward passes of one evaluation, or None where the number of tokens isn't known before it runs.

    Needle-in-a-haystack prompts and their answers fill each length: one pass over it with a cache. Benchmarks aren't
    known: their items are read when they run. `held_out`: tokens of the held-out split, None: open.
    """
    if isinstance(suite, ValidationSpec):
        known = [tokens for tokens in (suite.tokens, held_out) if tokens is not None]
        return _windows_flops(model, min(known), suite.sequence_length) if known else None
    if isinstance(suite, NeedleSpec):
        wanted = suite.samples
        prompts = len(wanted.tasks) * wanted.samples
        return prompts * sum(forward_flops(model, length) for length in wanted.lengths)
    return None


def _evaluation(grid: Grid, run: str, name: str, suite: Suite, assumed: Assumptions, results: Path) -> EvaluationCost:
    flops = evaluation_flops(grid.runs[run].model, suite, grid.data.validation_tokens)
    hours = None if flops is None else assumed.hours(flops)
    done = (results / "evaluations" / run / f"{name}.json").is_file()
    return EvaluationCost(run=run, name=name, suite=suite.suite, flops=flops, gpu_hours=hours, done=done)


def _tables(grid: Grid, runs: list[RunCost], evaluations: list[EvaluationCost]) -> list[TableCost]:
    costs = {run.id: run for run in runs}
    measured = {(item.run, item.name): item for item in evaluations}
    needs: dict[str, tuple[set[str], set[tuple[str, str]]]] = {
        name: ({cell.run for cell in cells}, set(grid.evaluations(name))) for name, cells in grid.experiments.items()
    }
    searched = [cell for cells in grid.needles.values() for cell in cells]
    if searched:
        needs["niah"] = ({cell.run for cell in searched}, set(grid.needle_evaluations(searched)))
    if grid.novelty:
        needs["novelty"] = ({task.run for task in grid.novelty.values() if task.run}, set())
    tables = []
    for name, (needed, scores) in needs.items():
        elsewhere = set().union(*(others for other, (others, _) in needs.items() if other != name))
        tables.append(
            TableCost(
                name=name,
                title=TITLES.get(name, name),
                runs=len(needed),
                shared=len(needed & elsewhere),
                runs_done=sum(costs[run].done for run in needed),
                evaluations=len(scores),
                evaluations_done=sum(measured[score].done for score in scores),
                gpu_hours=training_hours(costs[run] for run in sorted(needed)),
                evaluation_gpu_hours=sum(measured[score].gpu_hours or 0.0 for score in sorted(scores)),
            )
        )
    return tables


def training_hours(runs: Iterable[RunCost]) -> float:
    """GPU-hours of whole runs, their validation included."""
    return sum(run.gpu_hours + run.validation_gpu_hours for run in runs)


def _chain(
    grid: Grid, assumed: Assumptions, runs: list[RunCost], evaluations: list[EvaluationCost], tokenised: bool
) -> list[Link]:
    """The stages that wait for each other, with the longest job of each: however many GPUs, it takes as long."""

    def evaluation_of(run: RunCost, *, left: bool) -> float:
        return max(
            (item.gpu_hours or 0.0 for item in evaluations if item.run == run.id and not (left and item.done)),
            default=0.0,
        )

    longest = max(runs, key=lambda run: run.wall_hours + evaluation_of(run, left=False))
    behind = max(runs, key=lambda run: (0.0 if run.done else run.wall_hours) + evaluation_of(run, left=True))
    tokens, rate = grid.data.train_tokens, assumed.tokenizing_rate
    tokenising = tokens / rate / 3600 if tokens and rate else None
    everything = all(run.done for run in runs)
    return [
        Link("tokenise", grid.data.name, tokenising, 0.0 if tokenised or everything else tokenising),
        Link("train", longest.id, longest.wall_hours, 0.0 if behind.done else behind.wall_hours),
        Link("evaluate", longest.id, evaluation_of(longest, left=False), evaluation_of(behind, left=True)),
        Link("tabulate", ", ".join(grid.tables), 0.0, 0.0),
    ]


def _disk(grid: Grid, runs: list[RunCost], data: dict[str, Any] | None) -> Disk:
    largest = max(run.checkpoint_bytes for run in runs)
    if data is not None:
        width = storage.token_bytes(data["vocab_size"])
        tokens: int | None = width * (data["train"]["tokens"] + data["validation"]["tokens"])
    else:
        tokens = storage.corpus_bytes(grid.data)
    return Disk(
        tokens=tokens,
        tokens_measured=data is not None,
        tokens_joining=2 * tokens if tokens and data is None and grid.config.data.jobs > 1 else None,
        models=sum(run.model_bytes for run in runs),
        checkpoints_one_run=storage.CHECKPOINTS_AT_ONCE * largest,
        checkpoints_all_runs=storage.CHECKPOINTS_AT_ONCE * sum(run.checkpoint_bytes for run in runs if not run.done),
    )
