"""How comparisons become a verdict: error rates by simulation, and the correction by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from tlm_repro.reporting.claims.verdicts import Comparison, outcome, settle
from tlm_repro.statistics.blocks import Blocks
from tlm_repro.statistics.estimates import Estimate, difference, estimate, holm, p_value
from tlm_repro.statistics.measurement import Measurement

SEEDS, CELLS, TRIALS = 5, 10, 600


def comparisons(values: np.ndarray) -> list[Comparison]:
    """One for each row of (cells, seeds): positive as claimed."""
    return [Comparison(str(i), estimate([Measurement(value) for value in row]), "nats") for i, row in enumerate(values)]


def rates(effects: np.ndarray) -> dict[str, float]:
    """Share of each verdict where the true effects are these, in units of the noise of one seed."""
    generator = np.random.default_rng(0)
    verdicts = [
        settle(comparisons(effects[:, None] + generator.standard_normal((len(effects), SEEDS)))) for _ in range(TRIALS)
    ]
    return {verdict: verdicts.count(verdict) / TRIALS for verdict in ("reproduced", "not reproduced", "inconclusive")}


def test_with_no_effect_anywhere_few_claims_are_contradicted_and_none_is_reproduced():
    """At most 2.5 %, the wrong side of a two-sided 5 %, and three standard errors of the simulation more."""
    found = rates(np.zeros(CELLS))
    assert found["not reproduced"] <= 0.025 + 3 * math.sqrt(0.025 * 0.975 / TRIALS)
    assert found["reproduced"] == 0


def test_without_the_correction_a_fifth_of_the_claims_would_be_contradicted_by_chance():
    generator = np.random.default_rng(0)
    alone = [
        any(comparison.effect.sign < 0 for comparison in comparisons(generator.standard_normal((CELLS, SEEDS))))
        for _ in range(TRIALS)
    ]
    expected = 1 - 0.975**CELLS
    assert np.mean(alone) == pytest.approx(expected, abs=3 * math.sqrt(expected * (1 - expected) / TRIALS))


def test_a_claim_with_one_empty_comparison_is_rarely_reproduced():
    effects = np.full(CELLS, 20.0)
    effects[-1] = 0
    assert rates(effects)["reproduced"] <= 0.025 + 3 * math.sqrt(0.025 * 0.975 / TRIALS)


def test_clear_effects_are_seen_as_what_they_are():
    assert rates(np.full(CELLS, 20.0))["reproduced"] == 1
    effects = np.full(CELLS, 20.0)
    effects[3] = -20
    assert rates(effects)["not reproduced"] == 1


def test_holm_by_hand():
    """0.005 ≤ 0.05/4 and 0.01 ≤ 0.05/3, but 0.03 > 0.05/2: that ends it, and 0.04 ≤ 0.05 isn't looked at."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == [True, False, False, True]
    assert holm([0.05]) == [True]
    assert holm([]) == []


def test_p_values_are_scipy_s():
    values = [0.3, -0.1, 0.4, 0.2]
    found = estimate([Measurement(value) for value in values])
    assert p_value(found) == pytest.approx(stats.ttest_1samp(values, 0).pvalue)
    assert p_value(Estimate(1.96, 1.0, 1.96, 1, "evaluation")) == pytest.approx(0.05, abs=1e-4)
    assert p_value(Estimate(0.1, math.nan, math.nan, 1, "unknown")) == 1
    assert p_value(Estimate(0.02, math.nan, 0.01, 1, "rounding")) == 0
    assert p_value(Estimate(0.0, math.nan, 0.01, 1, "rounding")) == 1


def test_a_paired_difference_of_one_seed_is_judged_with_the_freedom_of_its_blocks():
    """t(0.975, 4) is 2.78: 2.5 standard errors would be enough for a normal interval, and aren't for five blocks."""
    differences = np.array([1.0, 2.0, 3.0, 4.0, 5.0]) - 3 + 2.5 * math.sqrt(0.5)
    blocks = [Blocks.of(losses, 8) for losses in (differences, np.zeros(5))]
    effect = difference("val_loss", *({0: Measurement(found.mean, blocks=found)} for found in blocks))
    assert effect.mean / effect.stderr == pytest.approx(2.5)
    assert p_value(effect) == pytest.approx(stats.ttest_1samp(differences, 0).pvalue)
    found = outcome([Comparison("a", effect, "nats")], "value")
    assert found.verdict == "inconclusive"
    assert "rests on one run each: evaluation noise only, paired over 5 blocks of the same text; " in found.reason
    assert found.reason.endswith("another seed can turn it.")
    contrary = difference("val_loss", *({0: Measurement(found.mean, blocks=found)} for found in blocks[::-1]))
    assert settle([Comparison("a", contrary, "nats")]) == "inconclusive"


def test_what_is_contrary_by_chance_is_told_and_decides_nothing():
    against = [Comparison("a", Estimate(-2.1, 1.0, 1.96, 1, "evaluation"), "nats")]
    others = [Comparison("b", Estimate(0.1, 1.0, 1.96, 1, "evaluation"), "nats")] * 9
    found = outcome(against + others, "value")
    assert found.verdict == "inconclusive"
    assert "1 the other way, 0 of them when all are judged together" in found.reason
    assert settle(against) == "not reproduced"
