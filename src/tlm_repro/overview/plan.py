"""The cost of a configuration before it runs: FLOPs, GPU-hours, disk, and what is finished. Doesn't import torch.

GPU-hours are FLOPs in closed form ÷ (peak of a device × an assumed utilisation). The peak comes from a data sheet, the
utilisation from the user.
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
from tlm_repro.records.manifests import DataSummary
from tlm_repro.reporting.registry import members
from tlm_repro.reporting.registry import tables as tables_of
from tlm_repro.spec.evaluation import NeedleSpec, ValidationSpec
from tlm_repro.spec.run import ModelSpec, RunSpec
from tlm_repro.study.grid import Grid, Suite


@dataclass(frozen=True)
class Assumptions:
    """The assumptions that convert FLOPs to hours and costs.

    Attributes:
        peak_flops: peak FLOP/s of one device.
        mfu: the share of the peak that training uses.
        tokenizing_rate: tokens per second of the whole tokenising stage; None: not estimated.
    """

    device: str
    arithmetic: Arithmetic
    peak_flops: float
    peak_source: str
    mfu: float
    price_per_gpu_hour: float | None = None
    tokenizing_rate: float | None = None

    def hours(self, flops: float) -> float:
        """Hours on one device."""
        return flops / (self.peak_flops * self.mfu) / 3600


@dataclass(frozen=True)
class RunCost:
    """One training run.

    Attributes:
        gpu_hours: of the optimiser steps.
        validation_gpu_hours: of periodic validation, while the other processes idle.
        wall_hours: of both, on `processes` devices.
    """

    id: str
    arch: str
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
    """One evaluation of one run, on one device. `flops` and `gpu_hours` are None if the items aren't known."""

    run: str
    name: str
    suite: str
    flops: int | None
    gpu_hours: float | None
    done: bool


@dataclass(frozen=True)
class TableCost:
    """The cost of one table or figure alone. Of its `runs`, `shared` ones are also read by others."""

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
    """One stage of the longest chain: its `hours` and those `left` to wait for. None: not estimated."""

    stage: str
    what: str
    hours: float | None
    left: float | None


@dataclass(frozen=True)
class Disk:
    """Sizes in bytes.

    Attributes:
        tokens: of the tokenised corpus; None if a budget is open and nothing is tokenised.
        tokens_measured: whether `tokens` is the size of existing files.
        tokens_joining: while the parts of several jobs are joined; None with one job, or if the corpus is tokenised.
        checkpoints_one_run: of the largest run.
        checkpoints_all_runs: of all unfinished runs, training at the same time.
    """

    tokens: int | None
    tokens_measured: bool
    tokens_joining: int | None
    models: int
    checkpoints_one_run: int
    checkpoints_all_runs: int


@dataclass(frozen=True)
class Plan:
    """The cost of everything in a configuration, each run and evaluation once."""

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


def check_assumptions(
    grid: Grid,
    *,
    device: str,
    mfu: float,
    peak_tflops: float | None = None,
    price_per_gpu_hour: float | None = None,
    tokenizing_rate: float | None = None,
) -> Assumptions:
    """Checks the user's assumptions. Raises ConfigError for a value out of range or a device without a known peak."""
    if not 0 < mfu <= 1:
        raise ConfigError(f"--mfu {mfu}: give a share of the peak above 0 and at most 1, such as 0.4")
    for name, value in {"--peak-tflops": peak_tflops, "--tokenizing-rate": tokenizing_rate}.items():
        if value is not None and value <= 0:
            raise ConfigError(f"{name} {value}: give a number above 0")
    if price_per_gpu_hour is not None and price_per_gpu_hour < 0:
        raise ConfigError(f"--price-per-gpu-hour {price_per_gpu_hour}: give a price of 0 or more")
    arithmetic = grid.config.training.precision
    row = find_device(device)
    name = row.name if row else device
    if peak_tflops is not None:
        peak, source = peak_tflops * 1e12, "given with --peak-tflops"
    else:
        peak, source = peak_flops(device, arithmetic), row.source if row else ""
    return Assumptions(name, arithmetic, peak, source, mfu, price_per_gpu_hour, tokenizing_rate)


def make_plan(grid: Grid, assumptions: Assumptions, results: Path) -> Plan:
    """The plan of everything in `grid`. The workflow's folder `results` shows what is finished."""
    data = data_summary(grid.data, results)
    runs = [_run_cost(grid, spec, assumptions, results) for spec in grid.runs.values()]
    evaluations = [
        _evaluation_cost(grid, run, name, suite, assumptions, results)
        for run, suites in grid.suites.items()
        for name, suite in suites.items()
    ]
    return Plan(
        config=grid.config.name,
        toy=grid.config.toy,
        assumptions=assumptions,
        runs=runs,
        evaluations=evaluations,
        tables=_table_costs(grid, runs, evaluations),
        novelty=len(grid.novelty),
        novelty_done=sum((results / "novelty" / f"{name}.json").is_file() for name in grid.novelty),
        data=grid.data.name,
        data_done=data is not None,
        chain=_longest_chain(grid, assumptions, runs, evaluations, data is not None),
        disk=_disk(grid, runs, data),
    )


def _run_cost(grid: Grid, spec: RunSpec, assumptions: Assumptions, results: Path) -> RunCost:
    labels, model = spec.labels, spec.model
    hardware = grid.config.scales[labels.scale].hardware
    flops = training_flops(model, spec.training.tokens)
    validation_hours = assumptions.hours(_validation_flops(grid, spec)) * hardware.processes
    hours = assumptions.hours(flops)
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
        validation_gpu_hours=validation_hours,
        wall_hours=(hours + validation_hours) / hardware.processes,
        checkpoint_bytes=storage.checkpoint_bytes(model),
        model_bytes=storage.model_bytes(model),
        done=finished_manifest(results, spec.id) is not None,
    )


def _validation_flops(grid: Grid, spec: RunSpec) -> int:
    """FLOPs of the periodic validation during training, in one process."""
    trainer, held_out = grid.config.trainer, grid.data.validation_tokens
    tokens = trainer.validation_tokens if held_out is None else min(trainer.validation_tokens, held_out)
    return min(trainer.validations, spec.training.steps) * _windows_flops(
        spec.model, tokens, spec.training.sequence_length
    )


def _windows_flops(model: ModelSpec, tokens: int, length: int) -> int:
    return tokens // length * forward_flops(model, length)


def evaluation_flops(model: ModelSpec, suite: Suite, held_out: int | None) -> int | None:
    """FLOPs of one evaluation's forward passes, or None if the number of tokens isn't known before it runs.

    Needle-in-a-haystack prompts and answers fill each length, which takes one pass with a cache. Benchmarks can't be
    estimated, because their items are read when they run. `held_out`: tokens of the held-out split; None: open.
    """
    if isinstance(suite, ValidationSpec):
        limits = [tokens for tokens in (suite.tokens, held_out) if tokens is not None]
        return _windows_flops(model, min(limits), suite.sequence_length) if limits else None
    if isinstance(suite, NeedleSpec):
        samples = suite.samples
        prompts = len(samples.tasks) * samples.samples
        return prompts * sum(forward_flops(model, length) for length in samples.lengths)
    return None


def _evaluation_cost(
    grid: Grid, run: str, name: str, suite: Suite, assumptions: Assumptions, results: Path
) -> EvaluationCost:
    flops = evaluation_flops(grid.runs[run].model, suite, grid.data.validation_tokens)
    hours = None if flops is None else assumptions.hours(flops)
    done = (results / "evaluations" / run / f"{name}.json").is_file()
    return EvaluationCost(run=run, name=name, suite=suite.suite, flops=flops, gpu_hours=hours, done=done)


def _table_costs(grid: Grid, runs: list[RunCost], evaluations: list[EvaluationCost]) -> list[TableCost]:
    run_costs = {run.id: run for run in runs}
    evaluation_costs = {(item.run, item.name): item for item in evaluations}
    needs: dict[str, tuple[set[str], set[tuple[str, str]]]] = {}
    titles, planned = {}, set[Any]()
    for name, exhibit in members(grid).items():
        cells = [cell for chosen in exhibit.cells.values() for cell in chosen]
        novelty = {task.file: task.run for task in grid.novelty.values()} if exhibit.exhibit.novelty else {}
        needed_runs = {cell.run for cell in cells} | {run for run in novelty.values() if run}
        needed_evaluations = set(grid.evaluations(cells, exhibit.exhibit.suites))
        needed: set[Any] = needed_runs | needed_evaluations | novelty.keys()
        if exhibit.shown.table and not needed <= planned:  # else the tables before it have paid for all of it
            needs[name], titles[name] = (needed_runs, needed_evaluations), exhibit.title
            planned |= needed
    tables = []
    for name, (table_runs, scores) in needs.items():
        other_runs = set().union(*(others for other, (others, _) in needs.items() if other != name))
        tables.append(
            TableCost(
                name=name,
                title=titles[name],
                runs=len(table_runs),
                shared=len(table_runs & other_runs),
                runs_done=sum(run_costs[run].done for run in table_runs),
                evaluations=len(scores),
                evaluations_done=sum(evaluation_costs[score].done for score in scores),
                gpu_hours=training_hours(run_costs[run] for run in sorted(table_runs)),
                evaluation_gpu_hours=sum(evaluation_costs[score].gpu_hours or 0.0 for score in sorted(scores)),
            )
        )
    return tables


def training_hours(runs: Iterable[RunCost]) -> float:
    """GPU-hours of training runs, validation included."""
    return sum(run.gpu_hours + run.validation_gpu_hours for run in runs)


def _longest_chain(
    grid: Grid, assumptions: Assumptions, runs: list[RunCost], evaluations: list[EvaluationCost], tokenised: bool
) -> list[Link]:
    """The longest chain of jobs that depend on each other. More GPUs can't shorten it."""

    def evaluation_hours(run: RunCost, *, left: bool) -> float:
        return max(
            (item.gpu_hours or 0.0 for item in evaluations if item.run == run.id and not (left and item.done)),
            default=0.0,
        )

    longest = max(runs, key=lambda run: run.wall_hours + evaluation_hours(run, left=False))
    longest_left = max(runs, key=lambda run: (0.0 if run.done else run.wall_hours) + evaluation_hours(run, left=True))
    tokens, rate = grid.data.train_tokens, assumptions.tokenizing_rate
    hours = tokens / rate / 3600 if tokens and rate else None
    all_done = all(run.done for run in runs)
    return [
        Link("tokenise", grid.data.name, hours, 0.0 if tokenised or all_done else hours),
        Link("train", longest.id, longest.wall_hours, 0.0 if longest_left.done else longest_left.wall_hours),
        Link("evaluate", longest.id, evaluation_hours(longest, left=False), evaluation_hours(longest_left, left=True)),
        Link("tabulate", ", ".join(tables_of(grid)), 0.0, 0.0),
    ]


def _disk(grid: Grid, runs: list[RunCost], data: DataSummary | None) -> Disk:
    largest = max(run.checkpoint_bytes for run in runs)
    if data is not None:
        width = storage.token_bytes(data.vocab_size)
        tokens: int | None = width * (data.train.tokens + data.validation.tokens)
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
