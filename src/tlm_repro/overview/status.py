"""The status of each run of a configuration, from the workflow's folders. Reads only and doesn't import torch."""

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tlm_repro.architectures.accounting import training_flops
from tlm_repro.devices import Utilisation, utilisation
from tlm_repro.overview import progress
from tlm_repro.overview.progress import LastRows, LogEnd, SavedCheckpoint
from tlm_repro.records.attempt import Attempt
from tlm_repro.spec.run import RunSpec
from tlm_repro.study.grid import Grid

State = Literal["not started", "starting", "running", "waiting", "stalled", "interrupted", "failed", "finished"]
STATES: tuple[State, ...] = (
    "finished",
    "running",
    "starting",
    "waiting",
    "stalled",
    "interrupted",
    "failed",
    "not started",
)
PATIENCE_STEPS = 10  # a run with slow steps counts as stalled only after the time of this many steps
INTERRUPTED = "stopped by "  # start of the message of a run that a signal stopped


@dataclass(frozen=True)
class RunStatus:
    """The status of one run. Losses are in nats, ages and `eta_s` in seconds; None means unknown or missing.

    Attributes:
        mfu: model FLOPs utilisation between 0 and 1.
        mfu_note: why `mfu` is None.
        eta_s: time for the remaining optimiser steps at the current speed, without validation and saving.
        why: the reason for a state other than running or finished.
    """

    id: str
    state: State
    step: int
    steps: int
    loss: float | None
    validation_loss: float | None
    tokens_per_second: float | None
    mfu: float | None
    mfu_note: str
    eta_s: float | None
    last_row_age_s: float | None
    checkpoint_step: int | None
    checkpoint_age_s: float | None
    device: str | None
    processes: int | None
    host: str | None
    evaluations: int
    evaluations_done: int
    why: str
    log: str


@dataclass(frozen=True)
class Traces:
    """What an unfinished run left on disk."""

    rows: LastRows | None
    checkpoint: SavedCheckpoint | None
    attempt: Attempt | None
    log: LogEnd | None


def statuses(grid: Grid, results: Path, logs: Path, *, stalled_s: float, now: float | None = None) -> list[RunStatus]:
    """The status of every run of the grid, in its order.

    Args:
        results, logs: the workflow's folders.
        stalled_s: seconds without a new row after which a run counts as stalled.
        now: Unix time, for tests.
    """
    now = time.time() if now is None else now
    return [_status(grid, spec, results, logs, stalled_s, now) for spec in grid.runs.values()]


def counts(runs: list[RunStatus]) -> dict[State, int]:
    """The number of runs in each state that has any."""
    numbers = Counter(run.state for run in runs)
    return {state: numbers[state] for state in STATES if numbers[state]}


def _status(grid: Grid, spec: RunSpec, results: Path, logs: Path, stalled_s: float, now: float) -> RunStatus:
    checkpoints, log = results / "checkpoints" / spec.id, logs / "pretrain" / f"{spec.id}.log"
    manifest = progress.finished_manifest(results, spec.id)
    attempt = progress.last_attempt(checkpoints)
    rows, checkpoint = None, None
    state: State
    if manifest is not None:
        state, why, summary = "finished", "", manifest.summary
        device: str | None = manifest.device
        step, loss, validation_loss = spec.training.steps, summary.final_loss, summary.validation_loss
        speed = summary.tokens_per_second
    else:
        rows, checkpoint = progress.last_rows(checkpoints), progress.newest_checkpoint(checkpoints)
        traces = Traces(rows, checkpoint, attempt, progress.read_log(log))
        state, why = diagnosis(traces, spec, stalled_s, now)
        device = attempt.device if attempt else None
        step = rows.step if rows else checkpoint.step if checkpoint else 0
        loss, validation_loss = (rows.loss, rows.validation_loss) if rows else (None, None)
        speed = rows.tokens_per_second if rows else None
    mfu = _mfu(spec, speed, device, attempt)
    remaining_tokens = (spec.training.steps - step) * spec.training.batch_tokens
    names = grid.suites[spec.id]
    return RunStatus(
        id=spec.id,
        state=state,
        step=step,
        steps=spec.training.steps,
        loss=loss,
        validation_loss=validation_loss,
        tokens_per_second=speed,
        mfu=mfu.value,
        mfu_note=mfu.note,
        eta_s=remaining_tokens / speed if speed and state in ("running", "starting") else None,
        last_row_age_s=now - rows.written if rows else None,
        checkpoint_step=checkpoint.step if checkpoint else None,
        checkpoint_age_s=now - checkpoint.written if checkpoint else None,
        device=device,
        processes=attempt.processes if attempt else None,
        host=attempt.host if attempt else None,
        evaluations=len(names),
        evaluations_done=sum((results / "evaluations" / spec.id / f"{name}.json").is_file() for name in names),
        why=why,
        log=str(log),
    )


def _mfu(spec: RunSpec, speed: float | None, device: str | None, attempt: Attempt | None) -> Utilisation:
    if speed is None:
        return Utilisation(None, "no step measured")
    if device is None or attempt is None:
        return Utilisation(None, "devices not recorded")
    tokens = spec.training.tokens
    return utilisation(
        flops_per_token=training_flops(spec.model, tokens) / tokens,
        tokens_per_second=speed,
        device=device,
        processes=attempt.processes,
        arithmetic=attempt.arithmetic,
    )


def diagnosis(traces: Traces, spec: RunSpec, stalled_s: float, now: float) -> tuple[State, str]:
    """The state of an unfinished run, and the reason for it if there is one to give.

    An attempt overwrites the log, so an error at its end is how the last attempt failed, unless the recorded attempt
    started after it.
    """
    rows, attempt, log = traces.rows, traces.attempt, traces.log
    resumes = f"; the next attempt resumes after step {traces.checkpoint.step}" if traces.checkpoint else ""
    if log and log.error and not (attempt and attempt.started > log.written):
        return "interrupted" if log.error.startswith(INTERRUPTED) else "failed", log.error
    if attempt is None and rows is None and log is None:
        return "not started", ""
    if attempt and attempt.has_ended():
        reason = f"process {attempt.pid} ended without a message (killed, or out of memory?)"
        return "failed", reason + resumes
    start = attempt.started if attempt else log.written if log else 0.0
    stepping = rows is not None and rows.written >= start
    last_sign = max(start, rows.written if rows else 0.0)
    speed = rows.tokens_per_second if rows else None
    patience = max(stalled_s, PATIENCE_STEPS * spec.training.batch_tokens / speed if speed else 0.0)
    if log and log.waiting and (rows is None or now - rows.written > patience):
        return "waiting", "another process holds this run but writes no metrics: look for a process that was left over"
    if now - last_sign > patience:
        return "stalled", f"no new metrics for {(now - last_sign) / 60:.0f} minutes: check its log and its job{resumes}"
    return ("running" if stepping else "starting"), ""
