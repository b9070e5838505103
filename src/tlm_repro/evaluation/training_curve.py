"""A run's training curve, thinned for figures. The evaluation file has it, so figures don't need the model's folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tlm_repro.records.metrics import MetricsRow, read_rows

POINTS = 200


def training_curve(path: Path) -> dict[str, Any] | None:
    """Columns of at most `POINTS` points: `step` and `tokens` at the end of each, `loss` the mean of its steps in nats.

    `validation` has at most as many held-out losses measured during training, the last one included. Runs of the same
    length are thinned at the same steps. None if no step has a loss.
    """
    rows = read_rows(path)
    split = np.array_split(np.arange(len(rows)), max(1, min(POINTS, len(rows))))
    parts = [[rows[index] for index in part if rows[index].loss is not None] for part in split]
    parts = [part for part in parts if part]  # a skipped batch has no loss
    if not parts:
        return None
    validation = thin([row for row in rows if row.validation_loss is not None])
    return {
        "step": [part[-1].step for part in parts],
        "tokens": [part[-1].tokens for part in parts],
        "loss": [float(np.mean([row.loss for row in part])) for part in parts],
        "validation": {
            "tokens": [row.tokens for row in validation],
            "loss": [row.validation_loss for row in validation],
        },
    }


def thin(rows: Sequence[MetricsRow]) -> list[MetricsRow]:
    """At most `POINTS` of the rows, evenly spaced, the last one included."""
    indices = np.linspace(0, len(rows) - 1, min(POINTS, len(rows))).round().astype(int)
    return [rows[index] for index in np.unique(indices)]
