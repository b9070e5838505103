"""The rows of `metrics.jsonl`: one line of JSON for each optimiser step of a run."""

import json
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from tlm_repro.records.base import Positive, Record

METRICS = "metrics.jsonl"


class MetricsRow(Record):
    """`results/checkpoints/<run>/metrics.jsonl`, and the same file in the run's product: one step.

    `tokens` counts those of all steps so far. Losses are in nats per token: `loss` is the mean of the step's batch,
    None where the batch was skipped; `validation_loss` is there after the steps that were validated. Two runs of the
    same spec on the same machine differ in `tokens_per_second` and `mfu` alone.
    """

    step: Positive
    tokens: Positive
    loss: float | None
    learning_rate: float | None = None
    grad_norm: float | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None
    skipped: bool = False
    validation_loss: float | None = None

    def line(self) -> str:
        return f"{json.dumps(self.content(), allow_nan=False)}\n"


def parse_rows(lines: Iterable[bytes]) -> list[MetricsRow]:
    """The rows among lines; a line that is being written, or that a kill cut short, is left out."""
    rows = []
    for line in lines:
        try:
            rows.append(MetricsRow.model_validate_json(line, strict=True))
        except ValidationError:
            continue
    return rows


def read_rows(path: Path, last_step: int | None = None) -> list[MetricsRow]:
    """The rows of a metrics file up to `last_step`; none where there is no file."""
    rows = parse_rows(path.read_bytes().splitlines()) if path.exists() else []
    return [row for row in rows if last_step is None or row.step <= last_step]
