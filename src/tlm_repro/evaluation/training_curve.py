"""How a run's training went, thinned to what a figure needs: kept beside its held-out loss, so that no model is."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

METRICS = "metrics.jsonl"
POINTS = 200


def training_curve(path: Path) -> dict[str, Any] | None:
    """At most `POINTS` points in columns: `step` and `tokens` where each ends, `loss` the mean of its steps, in nats.

    `validation` has the held-out losses on the way, at most as many, the last among them. All runs of one length are
    thinned at the same steps. None where no step has a loss.
    """
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    split = np.array_split(np.arange(len(rows)), max(1, min(POINTS, len(rows))))
    parts = [[rows[index] for index in part if rows[index].get("loss") is not None] for part in split]
    parts = [part for part in parts if part]  # a batch that was skipped has no loss
    if not parts:
        return None
    validated = thinned([row for row in rows if row.get("validation_loss") is not None])
    return {
        "step": [part[-1]["step"] for part in parts],
        "tokens": [part[-1]["tokens"] for part in parts],
        "loss": [float(np.mean([row["loss"] for row in part])) for part in parts],
        "validation": {
            "tokens": [row["tokens"] for row in validated],
            "loss": [row["validation_loss"] for row in validated],
        },
    }


def thinned(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most `POINTS` of the rows, evenly spread, the last among them."""
    places = np.linspace(0, len(rows) - 1, min(POINTS, len(rows))).round().astype(int)
    return [rows[place] for place in np.unique(places)]
