"""The status of all runs as JSON, and as a table for a terminal."""

import time
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from tabulate import tabulate

from tlm_repro.overview.status import RunStatus, counts

UNKNOWN = "—"
STATES_WITH_REASON = ("waiting", "stalled", "interrupted", "failed")


def to_json(config: str, runs: list[RunStatus]) -> dict[str, Any]:
    """The status as plain values for JSON."""
    return {"config": config, "time": time.time(), "states": counts(runs), "runs": [asdict(run) for run in runs]}


def render(config: str, runs: list[RunStatus]) -> str:
    """A table with a row for each run, then the reasons of those that need attention."""
    states = ", ".join(f"{number} {state}" for state, number in counts(runs).items())
    columns = list(_row(runs[0]))
    align = ["left" if column in ("run", "state", "MFU") else "right" for column in columns]
    table = tabulate([_row(run) for run in runs], headers="keys", colalign=align, disable_numparse=True)
    parts = [f"{config}, {time.strftime('%Y-%m-%d %H:%M:%S')}: {len(runs)} runs, {states}", table]
    reasons = [f"{run.id}: {run.state}: {run.why}\n  log: {run.log}" for run in runs if run.state in STATES_WITH_REASON]
    return "\n\n".join([*parts, *reasons])


def _row(run: RunStatus) -> dict[str, str]:
    checkpoint = UNKNOWN
    if run.checkpoint_step is not None and run.checkpoint_age_s is not None:
        checkpoint = f"{run.checkpoint_step:,}, {duration(run.checkpoint_age_s)} ago"
    return {
        "run": run.id,
        "state": run.state,
        "step": f"{run.step:,}/{run.steps:,}",
        "loss": _format(run.loss, "{:.4f}"),
        "validation": _format(run.validation_loss, "{:.4f}"),
        "tokens/s": _format(run.tokens_per_second, "{:,.0f}"),
        "MFU": _format(run.mfu, "{:.1%}") if run.mfu is not None else _unknown_mfu(run),
        "ETA": UNKNOWN if run.eta_s is None else duration(run.eta_s),
        "checkpoint": checkpoint,
        "evaluations": f"{run.evaluations_done}/{run.evaluations}",
    }


def _unknown_mfu(run: RunStatus) -> str:
    return UNKNOWN if run.tokens_per_second is None else run.mfu_note


def _format(value: float | None, template: str) -> str:
    return UNKNOWN if value is None else template.format(value)


def duration(seconds: float) -> str:
    """A duration in whole seconds, or in whole hours from one day up."""
    if seconds >= 86_400:
        days, rest = divmod(round(seconds), 86_400)
        return f"{days} d {rest // 3600} h"
    return str(timedelta(seconds=max(0, round(seconds))))
