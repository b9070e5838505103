"""Who leads when: quarters and differences by hand, files without a curve, and what the figure draws."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exhibits import evidence

from tlm_repro.records.evaluation import TrainingCurve
from tlm_repro.records.view import ExperimentView
from tlm_repro.reporting import formats
from tlm_repro.reporting.evidence import Evidence
from tlm_repro.reporting.exhibits import curves
from tlm_repro.reporting.exhibits.curves import Curves
from tlm_repro.reporting.results import frames

STEPS = 8


def curve(losses: list[float], step: int = 1) -> dict[str, Any]:
    steps = [step * (place + 1) for place in range(len(losses))]
    held_out = {"tokens": [100 * steps[-1]], "loss": [losses[-1] + 0.1]}
    return {"step": steps, "tokens": [100 * each for each in steps], "loss": losses, "validation": held_out}


def case(found: dict[tuple[str, int], dict[str, Any] | None], toy: bool = True) -> Evidence:
    """(label, seed) → curve; training takes 7 FLOPs a token."""
    cells, models, held = [], [], {}
    for (label, seed), content in found.items():
        run = f"{label}-{seed}"
        labels = {"architecture": "titans", "scale": "small", "seed": seed, "run": run, "width": 64, "layers": 4}
        cells.append({**labels, "label": label, "allocation": "uniform" if label == "uniform" else "cosine-1.5-0.5"})
        models.append({"run": run, "parameters": 9, "forward_flops": 1, "training_flops": 5600, "tokens": 800})
        if content:
            held[run] = TrainingCurve.model_validate(content)
    view = ExperimentView(experiment="main", toy=toy, config="test", cells=cells)
    results = frames([], models)
    return evidence(replace(results, curves=held), view)


UNIFORM = [4.0, 3.8, 3.6, 3.5, 3.4, 3.3, 3.2, 3.1]
BEHIND_THEN_AHEAD = [0.3, 0.1, 0.01, -0.01, -0.1, -0.2, -0.3, -0.3]


def moved(shift: float = 0.0) -> dict[str, Any]:
    return curve([loss + change + shift for loss, change in zip(UNIFORM, BEHIND_THEN_AHEAD, strict=True)])


ONE = {("uniform", 0): curve(UNIFORM), ("tapered", 0): moved()}


def test_quarters_by_hand() -> None:
    rows = Curves().table(case(ONE))
    assert list(rows["tokens"]) == [200, 400, 600, 800]
    assert list(rows["training_flops"]) == [1400, 2800, 4200, 5600]
    assert list(rows["uniform"]) == pytest.approx([3.9, 3.55, 3.35, 3.15])
    assert list(rows["difference"]) == pytest.approx([0.2, 0.0, -0.15, -0.3])
    # Two points 0.2 apart: standard deviation 0.2/√2, of their mean 0.1
    assert rows.loc[0, "difference_interval"] == pytest.approx(1.959964 * 0.1)
    assert list(rows["leader"]) == ["uniform", "unclear", "tapered", "tapered"]


def test_over_seeds_the_interval_is_student_s() -> None:
    seeds = {("uniform", seed): curve(UNIFORM) for seed in range(3)}
    seeds |= {("tapered", seed): moved(shift) for seed, shift in enumerate((-0.1, 0.0, 0.1))}
    last = Curves().table(case(seeds)).iloc[-1]
    assert last["difference"] == pytest.approx(-0.3)
    assert last["difference_interval"] == pytest.approx(4.302653 * 0.1 / math.sqrt(3))
    assert (last["seeds"], last["basis"], last["leader"]) == (3, "seeds", "tapered")


def test_only_runs_with_the_same_steps_are_compared() -> None:
    assert Curves().table(case({**ONE, ("tapered", 0): None})).empty
    assert Curves().table(case({**ONE, ("tapered", 0): curve(UNIFORM, step=2)})).empty
    partly = {**ONE, ("uniform", 1): curve(UNIFORM), ("tapered", 1): None}
    assert set(Curves().table(case(partly))["seeds"]) == {1}
    assert Curves().table(evidence(case(ONE).results)).empty


def test_files_without_curves_make_a_table_that_says_so(tmp_path: Path) -> None:
    table = Curves().table(case({**ONE, ("tapered", 0): None}))
    paths = formats.write(table, Curves().sheet(table), tmp_path / "curves")
    assert [path.stat().st_size > 0 for path in paths] == [True] * 3
    assert "no training curve in these evaluation files" in paths[1].read_text()
    assert paths[0].read_text().startswith("architecture,scale,label")


def test_the_sheet_says_that_a_lead_rests_on_one_run() -> None:
    sheet = Curves().sheet(Curves().table(case(ONE)))
    text = sheet.text
    assert formats.latex(sheet).isascii()
    assert list(text["Leads"]) == ["uniform (one run)", "unclear (one run)", "tapered (one run)", "tapered (one run)"]
    assert text.loc[1, "Until tokens"] == "400 (50 %)"


def test_the_figure_draws_both_curves_and_their_difference() -> None:
    above, below = Curves().figure(case(ONE)).axes[:2]
    lines = {line.get_label(): line for line in above.lines}
    assert list(lines["uniform"].get_ydata()) == UNIFORM
    assert list(lines["tapered"].get_xdata()) == [100 * (step + 1) for step in range(STEPS)]
    held_out = [line for line in above.lines if line.get_marker() == "o"]
    assert [float(line.get_ydata()[0]) for line in held_out] == pytest.approx([3.2, 2.9])
    means = [np.mean(BEHIND_THEN_AHEAD[:7]), np.mean(BEHIND_THEN_AHEAD[1:])]
    assert list(below.lines[0].get_ydata())[3:5] == pytest.approx(means)
    forward = above.child_axes[0]._functions[0]
    assert forward(800) == 5600


def test_a_figure_without_curves_says_so() -> None:
    figure = Curves().figure(case({**ONE, ("tapered", 0): None}))
    assert [text.get_text() for text in figure.texts if text.get_text() == curves.NO_CURVES]
    assert not any(axes.get_visible() for axes in figure.axes)


@pytest.mark.parametrize("values", [[1.0], [1.0, 2.0, 6.0], list(range(30))])
def test_the_moving_mean_is_over_what_is_there(values: list[float]) -> None:
    half = (min(9, len(values)) - 1) // 2
    expected = [np.mean(values[max(0, place - half) : place + half + 1]) for place in range(len(values))]
    assert curves.moving_mean(np.array(values, dtype=float)) == pytest.approx(expected)
