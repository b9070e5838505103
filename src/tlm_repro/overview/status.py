"""How far each run of a configuration is, from what the workflow's folders say. Reads only; no torch here."""

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tlm_repro.architectures.accounting import training_flops
from tlm_repro.devices import Utilisation, utilisation
from tlm_repro.overview import progress
from tlm_repro.overview.progress import Log, Rows, Saved
from tlm_repro.spec.run import RunSpec
from tlm_repro.study.grid import Grid
from tlm_repro.training.attempt import Attempt

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
# A run whose steps are slow is given the time of so many of them before it counts as stalled.
PATIENCE_STEPS = 10
INTERRUPTED = "stopped by "  # how the message of a run begins that a signal stopped


@dataclass(frozen=True)
class RunStatus:
    """One run. Losses in nats; `mfu` between 0 and 1; ages and `eta_s` in seconds; None: not known, or not there.

    `eta_s` counts optimiser steps at the speed of the last ones, neither validation nor saving. `why` says what a
    state other than running or finished comes from, `mfu_note` why there is no MFU.
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
class Found:
    """What lies on disk of one unfinished run."""

    rows: Rows | None
    saved: Saved | None
    attempt: Attempt | None
    log: Log | None


def statuses(grid: Grid, results: Path, logs: Path, *, stalled_s: float, now: float | None = None) -> list[RunStatus]:
    """Every run of the grid, in its order.

    Args:
        results, logs: the workflow's folders.
        stalled_s: seconds without a new row after which a run counts as stalled.
        now: Unix time, for tests.
    """
    now = time.time() if now is None else now
    return [_status(grid, spec, results, logs, stalled_s, now) for spec in grid.runs.values()]


def counts(runs: list[RunStatus]) -> dict[State, int]:
    """Runs in each state, those of none left out."""
    found = Counter(run.state for run in runs)
    return {state: found[state] for state in STATES if found[state]}


def _status(grid: Grid, spec: RunSpec, results: Path, logs: Path, stalled_s: float, now: float) -> RunStatus:
    checkpoints, log = results / "checkpoints" / spec.id, logs / "pretrain" / f"{spec.id}.log"
    manifest = progress.finished_manifest(results, spec.id)
    attempt = progress.last_attempt(checkpoints)
    rows, saved = None, None
    state: State
    if manifest is not None:
        state, why, summary, device = "finished", "", manifest["summary"], manifest.get("device")
        step, loss, validated = spec.training.steps, summary.get("final_loss"), summary.get("validation_loss")
        speed = summary.get("tokens_per_second")
    else:
        rows, saved = progress.last_rows(checkpoints), progress.newest_checkpoint(checkpoints)
        found = Found(rows, saved, attempt, progress.read_log(log))
        state, why = diagnosis(found, spec, stalled_s, now)
        device = attempt.device if attempt else None
        step = rows.step if rows else saved.step if saved else 0
        loss, validated = (rows.loss, rows.validation_loss) if rows else (None, None)
        speed = rows.tokens_per_second if rows else None
    mfu = _mfu(spec, speed, device, attempt)
    left = (spec.training.steps - step) * spec.training.batch_tokens
    names = grid.suites[spec.id]
    return RunStatus(
        id=spec.id,
        state=state,
        step=step,
        steps=spec.training.steps,
        loss=loss,
        validation_loss=validated,
        tokens_per_second=speed,
        mfu=mfu.value,
        mfu_note=mfu.note,
        eta_s=left / speed if speed and state in ("running", "starting") else None,
        last_row_age_s=now - rows.written if rows else None,
        checkpoint_step=saved.step if saved else None,
        checkpoint_age_s=now - saved.written if saved else None,
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


def diagnosis(found: Found, spec: RunSpec, stalled_s: float, now: float) -> tuple[State, str]:
    """The state of an unfinished run, and why where that isn't plain.

    An attempt starts its log anew, so an error at the end of a log is how the last attempt ended, unless the one that
    writes rows has begun since.
    """
    rows, attempt, log = found.rows, found.attempt, found.log
    resumes = f"; the next attempt resumes after step {found.saved.step}" if found.saved else ""
    if log and log.error and not (attempt and attempt.started > log.written):
        return "interrupted" if log.error.startswith(INTERRUPTED) else "failed", log.error
    if attempt is None and rows is None and log is None:
        return "not started", ""
    if attempt and attempt.gone():
        reason = f"process {attempt.pid} is gone and left no message (killed, or out of memory?)"
        return "failed", reason + resumes
    begun = attempt.started if attempt else log.written if log else 0.0
    stepping = rows is not None and rows.written >= begun
    active = max(begun, rows.written if rows else 0.0)
    speed = rows.tokens_per_second if rows else None
    patience = max(stalled_s, PATIENCE_STEPS * spec.training.batch_tokens / speed if speed else 0.0)
    if log and log.waiting and (rows is None or now - rows.written > patience):
        return "waiting", "another process holds this run and writes no rows: look for one that was left behind"
    if now - active > patience:
        return "stalled", f"no new row for {(now - active) / 60:.0f} minutes: look at its log and its job{resumes}"
    return ("running" if stepping else "starting"), ""
