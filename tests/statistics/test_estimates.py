"""Means, paired differences and intervals against scipy's own tests, closed forms and simulation."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import signal, stats

from tlm_repro.statistics import estimates
from tlm_repro.statistics.blocks import MOST, Blocks
from tlm_repro.statistics.measurement import Measurement

FIRST = [2.71, 2.69, 2.73, 2.70]
SECOND = [2.74, 2.75, 2.75, 2.72]


def seeds(values, stderr=0.004):
    return {seed: Measurement(value, stderr) for seed, value in enumerate(values)}


def test_mean_and_standard_error_over_seeds():
    found = estimates.mean("val_loss", seeds(FIRST))
    assert found.mean == pytest.approx(np.mean(FIRST))
    assert found.stderr == pytest.approx(stats.sem(FIRST))
    low, high = stats.t.interval(0.95, len(FIRST) - 1, np.mean(FIRST), stats.sem(FIRST))
    assert found.half_width == pytest.approx((high - low) / 2)
    assert (found.seeds, found.basis) == (4, "seeds")


def test_paired_difference_is_scipys_paired_t_test():
    found = estimates.difference("val_loss", seeds(FIRST), seeds(SECOND))
    reference = stats.ttest_rel(FIRST, SECOND).confidence_interval(0.95)
    assert found.mean - found.half_width == pytest.approx(reference.low)
    assert found.mean + found.half_width == pytest.approx(reference.high)
    assert found.sign == -1


def test_pairing_uses_the_common_seeds_only():
    found = estimates.difference("val_loss", {1: Measurement(2.0), 2: Measurement(9.0)}, {1: Measurement(1.5, 0.1)})
    assert (found.mean, found.seeds) == (0.5, 1)
    assert estimates.difference("val_loss", {1: Measurement(2.0)}, {2: Measurement(2.0)}) is None


def test_one_seed_combines_the_evaluations_errors():
    found = estimates.difference("val_loss", {0: Measurement(2.8, 0.003)}, {0: Measurement(2.7, 0.004)})
    assert found.stderr == pytest.approx(0.005)
    assert found.half_width == pytest.approx(1.959964 * 0.005)
    assert "one run" in estimates.BASIS_TEXT[found.basis]
    assert found.sign == 1


def measured(losses, **text):
    """One run's measurement of these losses of windows."""
    blocks = replace(Blocks.of(losses, 128), **text)
    return Measurement(float(np.mean(losses)), blocks.stderr or math.nan, items=len(losses), blocks=blocks)


def paired(first, second, coverage=0.95):
    return estimates.difference("val_loss", {0: measured(first)}, {0: measured(second)}, coverage)


LOSSES = np.random.default_rng(0).normal(3, 0.3, MOST)


@pytest.mark.parametrize(("shift", "sign"), [(0.0, 0), (0.25, 1), (-0.25, -1)])
def test_the_same_losses_but_for_a_constant_differ_by_exactly_that(shift, sign):
    found = paired(LOSSES + shift, LOSSES)
    assert (found.mean, found.stderr, found.half_width) == pytest.approx((shift, 0, 0), abs=1e-15)
    assert (found.sign, found.seeds, found.basis) == (sign, 1, "blocks")
    assert estimates.p_value(found) == (pytest.approx(0) if shift else 1)


@pytest.mark.parametrize("coverage", [0.95, 0.999])
def test_one_seed_is_scipys_paired_t_test_over_blocks(coverage):
    other = LOSSES + np.random.default_rng(1).normal(0.01, 0.02, MOST)
    found, reference = paired(LOSSES, other, coverage), stats.ttest_rel(LOSSES, other)
    assert found.interval == pytest.approx(tuple(reference.confidence_interval(coverage)))
    assert estimates.p_value(found) == pytest.approx(reference.pvalue)
    assert found.rests_on == (
        f"rests on one run each: evaluation noise only, paired over {MOST} blocks of the same text; "
        "another seed can turn it"
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (measured(LOSSES), Measurement(3.1, 0.03)),
        (measured(LOSSES), measured(LOSSES, data="other")),
        (measured(LOSSES), measured(LOSSES[:5])),
    ],
)
def test_without_common_blocks_one_seed_takes_the_errors_as_independent(one, other):
    found = estimates.difference("val_loss", {0: one}, {0: other})
    assert found.half_width == pytest.approx(1.959964 * math.hypot(one.stderr, other.stderr))
    assert "rests on one run each" in found.rests_on
    assert "independent" in found.rests_on


def test_a_single_block_decides_nothing():
    assert (paired(LOSSES[:1] + 1, LOSSES[:1]).basis, paired(LOSSES[:1] + 1, LOSSES[:1]).sign) == ("unknown", 0)


def test_several_seeds_are_the_unit_whatever_their_blocks():
    blocks = Blocks.of(LOSSES, 128)
    first, second = (
        {seed: replace(one, blocks=blocks) for seed, one in seeds(found).items()} for found in (FIRST, SECOND)
    )
    assert estimates.difference("val_loss", first, second) == estimates.difference(
        "val_loss", seeds(FIRST), seeds(SECOND)
    )


def autoregressive(generator, trials, documents, windows, correlation, spread):
    """(trials, documents × windows): stationary noise within a document, independent between documents."""
    noise = generator.normal(0, spread, (trials, documents, windows))
    noise[:, :, 1:] *= math.sqrt(1 - correlation**2)
    return signal.lfilter([1], [1, -correlation], noise, axis=2).reshape(trials, -1)


def test_intervals_over_blocks_hold_the_truth_as_often_as_they_say():
    """Two models of 20 documents whose windows are alike in what both find hard, and in what one finds harder."""
    generator, trials, truth = np.random.default_rng(0), 400, 0.003
    hard = autoregressive(generator, trials, 20, 100, 0.6, 0.3)
    harder = truth + autoregressive(generator, trials, 20, 100, 0.5, 0.03)
    runs = [(measured(one + other), measured(one)) for one, other in zip(hard, harder, strict=True)]
    slack = 3 * math.sqrt(0.95 * 0.05 / trials)

    def coverage(intervals):
        low, high = np.array(intervals).T
        return np.mean((low <= truth) & (truth <= high))

    by_blocks = [estimates.difference("val_loss", {0: one}, {0: other}).interval for one, other in runs]
    assert coverage(by_blocks) == pytest.approx(0.95, abs=slack)
    by_windows = stats.ttest_1samp(harder, 0, axis=1).confidence_interval()
    assert coverage(list(zip(*by_windows, strict=True))) < 0.85
    apart = [
        estimates.difference("val_loss", {0: replace(one, blocks=None)}, {0: replace(other, blocks=None)}).interval
        for one, other in runs
    ]
    assert coverage(apart) == 1


def test_one_seed_without_error_decides_nothing():
    found = estimates.difference("val_loss", {0: Measurement(9.0)}, {0: Measurement(2.7)})
    assert (found.basis, found.sign) == ("unknown", 0)
    assert math.isnan(found.half_width)


@pytest.mark.parametrize(("other", "sign"), [(2.75, 1), (2.74, 0), (2.73, -1)])
def test_rounding_keeps_order(other, sign):
    first, second = ({0: Measurement(value, resolution=0.005)} for value in (other, 2.74))
    assert estimates.difference("val_loss", first, second).sign == sign


def test_perplexities_are_compared_as_logarithms_and_averaged_geometrically():
    ratio = estimates.difference("wikitext_ppl", {0: Measurement(22.0, 0.22)}, {0: Measurement(20.0, 0.2)})
    assert ratio.mean == pytest.approx(math.log(1.1))
    assert ratio.stderr == pytest.approx(0.01 * math.sqrt(2))
    value, _ = estimates.table_value("val_ppl", estimates.mean("val_ppl", seeds([4.0, 9.0])))
    assert value == pytest.approx(6.0)


def test_accuracies_are_in_percentage_points():
    found = estimates.difference("piqa", {0: Measurement(0.70, 0.003)}, {0: Measurement(0.68, 0.004)})
    assert (found.mean, found.stderr) == (pytest.approx(2.0), pytest.approx(0.5))


def test_no_measurement_is_an_error():
    with pytest.raises(ValueError, match="no measurement"):
        estimates.mean("val_loss", {})


NEWCOMBE = [  # Newcombe (1998), Table II, method 10
    (56, 70, 48, 80, 0.0524, 0.3339),
    (9, 10, 3, 10, 0.1705, 0.8090),
    (6, 7, 2, 7, 0.0582, 0.8062),
    (5, 56, 0, 29, -0.0381, 0.1926),
    (10, 10, 0, 10, 0.6075, 1.0000),
]


@pytest.mark.parametrize(("first", "samples", "second", "others", "low", "high"), NEWCOMBE)
def test_newcombes_own_examples(first, samples, second, others, low, high):
    found = estimates.newcombe((first / samples, samples), (second / others, others))
    assert found == pytest.approx((low, high), abs=5e-5)
    measured = Measurement(first / samples, 0.0, items=samples), Measurement(second / others, 0.0, items=others)
    effect = estimates.difference("niah_single_1_4096", {0: measured[0]}, {0: measured[1]})
    assert effect.interval == pytest.approx((100 * low, 100 * high), abs=5e-3)
    assert effect.sign == (low > 0)
    assert effect.basis == "evaluation"


def scores(*values, items=10):
    return {seed: Measurement(value, 0.0, items=items) for seed, value in enumerate(values)}


def test_scores_without_spread_of_their_own_are_still_uncertain():
    """Every sample right, or none: the sample's own standard error is 0, the interval isn't."""
    found = estimates.mean("niah_single_1_4096", scores(1.0))
    assert (found.mean, found.interval[1]) == pytest.approx((100.0, 100.0))
    assert found.interval[0] == pytest.approx(100 * stats.binomtest(10, 10).proportion_ci(method="wilson").low)
    assert found.stderr > 0
    assert estimates.difference("niah_single_1_4096", scores(0.5), scores(0.4)).sign == 0


def test_a_score_over_seeds_is_never_narrower_than_their_spread_or_the_samples_allow():
    alike, apart = (estimates.mean("niah_multiquery_4096", scores(*values)) for values in ((0.5, 0.5), (0.4, 0.6)))
    wilson = stats.binomtest(5, 10).proportion_ci(method="wilson")
    assert alike.interval == pytest.approx((100 * wilson.low, 100 * wilson.high))
    assert apart.interval == (0.0, 100.0)  # t(0.975, 1) × 10 points is more than there is
    assert (apart.mean, apart.basis) == (pytest.approx(50.0), "seeds")


def test_score_differences_over_seeds_are_paired():
    found = estimates.difference("niah_multiquery_4096", scores(0.5, 0.7, 0.6), scores(0.4, 0.5, 0.6))
    reference = stats.ttest_rel([50, 70, 60], [40, 50, 60]).confidence_interval(0.95)
    assert found.interval == pytest.approx((reference.low, reference.high))
    wide = estimates.difference("niah_multiquery_4096", scores(0.5, 0.7, 0.6), scores(0.4, 0.5, 0.6), 0.99)
    reference = stats.ttest_rel([50, 70, 60], [40, 50, 60]).confidence_interval(0.99)
    assert wide.interval == pytest.approx((reference.low, reference.high))
