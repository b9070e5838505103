"""Thinned training curves: means by hand, the last point kept, skipped batches left out."""

import json
from pathlib import Path
from typing import Any

import pytest

from tlm_repro.evaluation.training_curve import training_curve


def written(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(step: int, loss: float | None, **more: float) -> dict[str, Any]:
    return {"step": step, "tokens": 10 * step, "loss": loss, **more}


def test_short_runs_are_kept_step_by_step(tmp_path: Path) -> None:
    curve = training_curve(written(tmp_path, [row(1, 3.0), row(2, 2.0, validation_loss=2.5)]))
    assert curve == {
        "step": [1, 2],
        "tokens": [10, 20],
        "loss": [3.0, 2.0],
        "validation": {"tokens": [20], "loss": [2.5]},
    }


def test_long_runs_are_averaged_over_stretches_that_end_at_the_last_step(tmp_path: Path) -> None:
    rows = [row(step, float(step), **({"validation_loss": float(step)})) for step in range(1, 1001)]
    curve = training_curve(written(tmp_path, rows))
    assert curve["step"] == list(range(5, 1001, 5))
    assert curve["tokens"][-1] == 10_000
    assert curve["loss"][:2] == pytest.approx([3.0, 8.0])  # of steps 1 … 5 and 6 … 10
    assert len(curve["validation"]["loss"]) == 200
    assert curve["validation"]["loss"][-1] == 1000


def test_skipped_batches_have_no_part_in_it_and_do_not_move_the_others(tmp_path: Path) -> None:
    rows = [row(step, None if step in (2, 6, 7, 8, 9, 10) else float(step)) for step in range(1, 1001)]
    curve = training_curve(written(tmp_path, rows))
    assert curve["step"][:2] == [5, 15]
    assert curve["loss"][:2] == pytest.approx([(1 + 3 + 4 + 5) / 4, 13.0])


def test_without_a_loss_there_is_no_curve(tmp_path: Path) -> None:
    assert training_curve(written(tmp_path, [])) is None
    assert training_curve(written(tmp_path, [row(1, None)])) is None
