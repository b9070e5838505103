"""Fits against NumPy's own and against simulated truth; gains by hand; what the figure draws."""

import math

import numpy as np
import pytest
from exhibits import evidence, numbers
from scipy import stats

from tlm_repro.records.view import ExperimentView
from tlm_repro.reporting import formats
from tlm_repro.reporting.exhibits import scaling
from tlm_repro.reporting.exhibits.scaling import Scaling
from tlm_repro.reporting.results import frames
from tlm_repro.statistics.measurement import Measurement

RATIOS = (1.0, 1.25, 1.375, 1.5, 1.625, 1.75)


def points(losses, *, stderr=0.01, seeds=1, resolution=math.nan):
    """Ratio → seed → loss, from (seeds, ratios)."""
    rows = np.reshape(losses, (seeds, len(RATIOS)))
    return {
        ratio: {seed: Measurement(float(rows[seed, place]), stderr, resolution) for seed in range(seeds)}
        for place, ratio in enumerate(RATIOS)
    }


def parabola(curvature: float, best: float = 1.5) -> np.ndarray:
    return 2.7 + curvature * (np.array(RATIOS) - best) ** 2


def test_the_fit_is_numpy_s_weighted_one() -> None:
    losses = parabola(0.5) + np.random.default_rng(0).normal(0, 0.001, len(RATIOS))
    found = scaling.fit(points(losses))
    weights = np.full(len(RATIOS), 1 / 0.01)
    c, b, a = np.polyfit(np.array(RATIOS) - 1, losses, 2, w=weights)
    covariance = np.polyfit(np.array(RATIOS) - 1, losses, 2, w=weights, cov="unscaled")[1]
    assert found.coefficients == pytest.approx((a, b, c))
    assert found.covariance == pytest.approx(covariance[::-1, ::-1])
    assert found.curvature.half_width == pytest.approx(stats.norm.ppf(0.975) * math.sqrt(covariance[0, 0]))
    assert found.minimum.mean == pytest.approx(1 - b / (2 * c))


def test_points_that_no_quadratic_meets_widen_the_intervals() -> None:
    kinked = parabola(0.5) + 0.05 * np.array([1, -1, 1, -1, 1, -1])
    smooth, rough = scaling.fit(points(parabola(0.5))), scaling.fit(points(kinked))
    residuals = kinked - np.polyval(np.polyfit(RATIOS, kinked, 2), RATIOS)
    inflation = math.sqrt((residuals**2).sum() / 0.01**2 / 3)
    assert rough.curvature.stderr == pytest.approx(inflation * smooth.curvature.stderr)


@pytest.mark.parametrize("seeds", [1, 5])
def test_intervals_of_the_minimum_hold_the_truth_as_often_as_they_say(seeds: int) -> None:
    """Noise of 0.01 nats a loss on a clear U with its minimum at 1.45; of 300 at 95 %, 285 ± 4 are expected."""
    rng, held = np.random.default_rng(1), 0
    for _ in range(300):
        losses = parabola(1.0, 1.45) + rng.normal(0, 0.01, (seeds, len(RATIOS)))
        low, high = scaling.fit(points(losses, seeds=seeds)).minimum.interval
        held += low <= 1.45 <= high
    assert 273 <= held <= 299


def test_no_minimum_is_named_where_there_is_no_u() -> None:
    """Noise alone names one in at most 2.5 % of cases, those whose curvature is above 0 by chance."""
    rng = np.random.default_rng(2)
    named = [scaling.fit(points(rng.normal(2.7, 0.01, len(RATIOS)))).minimum is not None for _ in range(400)]
    assert sum(named) <= 0.04 * 400
    hill = scaling.fit(points(parabola(-0.5)))
    assert (hill.minimum, hill.why) == (None, scaling.FLAT)
    beyond = scaling.fit(points(parabola(0.5, best=2.2), stderr=0.001))
    assert (beyond.minimum, beyond.why) == (None, scaling.OUTSIDE)


def test_there_is_no_fit_without_enough_ratios_or_errors() -> None:
    whole = points(parabola(0.5))
    assert scaling.fit({ratio: whole[ratio] for ratio in RATIOS[:3]}) is None
    assert scaling.fit(points(parabola(0.5), stderr=math.nan)) is None
    assert scaling.fit({}) is None


def case(toy: bool = True):
    """A sweep with two seeds whose cosine is a parabola, and a pair at two scales."""
    rows, models, cells = [], [], {"sweep": [], "main": []}

    def add(experiment, scale, label, allocation, losses, parameters):
        for seed, loss in enumerate(losses):
            run = f"{experiment} {scale} {label} {seed}"
            labels = {"architecture": "transformer", "scale": scale, "allocation": allocation, "seed": seed, "run": run}
            cells[experiment].append({**labels, **numbers(allocation), "label": label, "width": 64, "layers": 4})
            rows.append(
                {**labels, "suite": "validation", "metric": "val_loss", "value": loss, "stderr": 0.01, "items": 9}
            )
            models.append({"run": run, "parameters": parameters})

    for ratio, loss in zip(RATIOS, parabola(0.5, 1.45), strict=True):
        name = "uniform" if ratio == 1 else f"cosine-{ratio}-{2 - ratio}"
        add("sweep", "small", name, name, (loss, loss + 0.1 + 0.01 * (ratio - 1)), 1000)
    for scale, losses, parameters in (("small", (3.0, 2.9), 1000), ("large", (2.5, 2.45), 9000)):
        for label, allocation, loss in zip(("uniform", "tapered"), ("uniform", "cosine-1.5-0.5"), losses, strict=True):
            add("main", scale, label, allocation, (loss, loss + 0.3), parameters)
    views = [ExperimentView(experiment=name, toy=toy, config="test", cells=found) for name, found in cells.items()]
    return evidence(frames(rows, models), *views)


def test_rows_are_the_fits_ours_and_the_paper_s_and_the_pairs() -> None:
    frame = Scaling().table(case())
    ours, cosine, linear, sigmoid, small, large = (row for _, row in frame.iterrows())
    assert (ours["source"], ours["label"], ours["ratios"], ours["seeds"]) == ("ours", "cosine", 6, 2)
    assert ours["curvature"] == pytest.approx(0.5)
    assert ours["minimum"] == pytest.approx(1.45 - 0.005)  # the second seed's slope is 0.01 more: b rises by 0.005
    assert [row["source"] for row in (cosine, linear, sigmoid)] == ["paper"] * 3
    assert cosine["minimum"] == pytest.approx(1.5, abs=0.06)
    assert sigmoid["why"] == scaling.FLAT
    assert (small["gain"], large["gain"]) == pytest.approx((0.1, 0.05))
    assert (small["parameters"], large["parameters"]) == (1000, 9000)


def test_the_published_cosine_has_its_minimum_near_one_and_a_half() -> None:
    """Table 1: 2.79 nats for uniform, then 2.72, 2.68, 2.67, 2.68, 2.74."""
    found = scaling.fit(points([2.79, 2.72, 2.68, 2.67, 2.68, 2.74], resolution=0.005))
    sweep = scaling.paper_sweep()
    assert found.coefficients == pytest.approx(
        scaling.fit(scaling.losses(sweep[0], scaling.sweeps(*sweep)["transformer", "440m"]["cosine"])).coefficients
    )
    low, high = found.minimum.interval
    assert low < 1.5 < high
    assert found.basis == "rounding"


def test_the_sheet_says_why_there_is_no_best_ratio() -> None:
    sheet = Scaling().sheet(Scaling().table(case()))
    text = sheet.text
    assert formats.latex(sheet).isascii()
    assert text.loc[3, "Best ratio"] == scaling.FLAT
    assert text.loc[4, "Gain (nats)"].startswith("+0.1000 ± 0.0000")
    assert text.loc[1, "Best ratio"].startswith("1.45 ± 0.0")


def test_the_figure_draws_gains_and_the_fit_through_the_losses() -> None:
    ours, paper, pairs = Scaling().figure(case()).axes
    points_drawn = ours.containers[0][0]
    expected = parabola(0.5, 1.45)[0] - parabola(0.5, 1.45)[1:] - 0.005 * (np.array(RATIOS[1:]) - 1)
    assert list(points_drawn.get_ydata()) == pytest.approx(expected.tolist())
    curve = next(line for line in ours.lines if len(line.get_xdata()) == 100)
    assert np.interp(1.5, curve.get_xdata(), curve.get_ydata()) == pytest.approx(expected[2], abs=1e-4)
    assert [label.get_text() for label in paper.get_legend().get_texts()][2] == "sigmoid"
    assert list(pairs.containers[0][0].get_xdata()) == pytest.approx([1000, 9000])


def test_models_of_one_size_stand_side_by_side() -> None:
    found = case()
    results, views = found.results, found.views
    small = ExperimentView(
        **{**views["main"].model_dump(), "cells": [c for c in views["main"].cells if c.scale == "small"]}
    )
    (panel,) = Scaling().figure(evidence(results, small)).axes
    assert [label.get_text() for label in panel.get_xticklabels()] == ["1 k"]
    assert panel.get_xscale() == "linear"


def test_without_a_sweep_or_pairs_there_is_nothing_to_show() -> None:
    found = case()
    assert Scaling().table(evidence(found.results)).empty
    assert set(Scaling().table(evidence(found.results, found.views["main"]))["kind"]) == {"scale"}
