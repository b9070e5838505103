"""The status of all runs as plain values for programs, and as a table for people."""

import time
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from tabulate import tabulate

from tlm_repro.overview.status import RunStatus, counts

UNKNOWN = "—"
EXPLAINED = ("waiting", "stalled", "interrupted", "failed")


def document(config: str, runs: list[RunStatus]) -> dict[str, Any]:
    return {"config": config, "time": time.time(), "states": counts(runs), "runs": [asdict(run) for run in runs]}


def render(config: str, runs: list[RunStatus]) -> str:
    """A row a run, then what went wrong with those that need a look."""
    states = ", ".join(f"{number} {state}" for state, number in counts(runs).items())
    columns = list(_row(runs[0]))
    align = ["left" if column in ("run", "state", "MFU") else "right" for column in columns]
    table = tabulate([_row(run) for run in runs], headers="keys", colalign=align, disable_numparse=True)
    parts = [f"{config}, {time.strftime('%Y-%m-%d %H:%M:%S')}: {len(runs)} runs, {states}", table]
    explained = [f"{run.id}: {run.state}: {run.why}\n  log: {run.log}" for run in runs if run.state in EXPLAINED]
    return "\n\n".join([*parts, *explained])


def _row(run: RunStatus) -> dict[str, str]:
    saved = UNKNOWN
    if run.checkpoint_step is not None and run.checkpoint_age_s is not None:
        saved = f"{run.checkpoint_step:,}, {span(run.checkpoint_age_s)} ago"
    return {
        "run": run.id,
        "state": run.state,
        "step": f"{run.step:,}/{run.steps:,}",
        "loss": _number(run.loss, "{:.4f}"),
        "validation": _number(run.validation_loss, "{:.4f}"),
        "tokens/s": _number(run.tokens_per_second, "{:,.0f}"),
        "MFU": _number(run.mfu, "{:.1%}") if run.mfu is not None else _unknown_mfu(run),
        "ETA": UNKNOWN if run.eta_s is None else span(run.eta_s),
        "checkpoint": saved,
        "evaluations": f"{run.evaluations_done}/{run.evaluations}",
    }


def _unknown_mfu(run: RunStatus) -> str:
    return UNKNOWN if run.tokens_per_second is None else run.mfu_note


def _number(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else form.format(value)


def span(seconds: float) -> str:
    """A duration, to the second below a day and to the hour beyond."""
    if seconds >= 86_400:
        days, rest = divmod(round(seconds), 86_400)
        return f"{days} d {rest // 3600} h"
    return str(timedelta(seconds=max(0, round(seconds))))
