"""Wilson's interval and Student's quantiles against scipy's own and simulation; standard errors by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from tlm_repro.statistics.intervals import ratio_stderr, student_quantile, wilson


@pytest.mark.parametrize(("successes", "samples"), [(0, 500), (3, 10), (250, 500), (499, 500), (500, 500), (1, 2)])
def test_wilson_is_scipys_for_whole_successes(successes, samples):
    for coverage in (0.95, 0.999):
        reference = stats.binomtest(successes, samples).proportion_ci(coverage, method="wilson")
        found = wilson(successes / samples, samples, coverage)
        assert found == pytest.approx((reference.low, reference.high), abs=1e-12)


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_wilson_covers_a_mean_of_partial_credits(share):
    """Scores of 0, 1/4, … 1, as of four needles that are found one by one or all together."""
    generator = np.random.default_rng(0)
    for needles in (4, 1):
        means = (generator.binomial(needles, share, size=(2000, 100)) / needles).mean(axis=1)
        bounds = np.array([wilson(mean, 100) for mean in means])
        assert ((bounds[:, 0] <= share) & (share <= bounds[:, 1])).mean() >= 0.93


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 10, 63, 1000])
def test_quantiles_of_student_are_scipys(degrees):
    for probability in (0.005, 0.3, 0.5, 0.75, 0.975, 0.9999):
        expected = stats.t.ppf(probability, degrees)
        assert student_quantile(probability, degrees) == pytest.approx(expected, rel=1e-11, abs=1e-14)


def test_standard_error_of_a_ratio():
    assert ratio_stderr([1, 0, 1, 1], [1, 1, 1, 1]) == pytest.approx(math.sqrt(0.1875 * 4 / 3 / 4))
    # Pages of the same loss per word say that there is no spread, whatever their lengths.
    assert ratio_stderr([-6, -9, -30], [2, 3, 10]) == pytest.approx(0)
    # By hand: ratio 2, residuals −1 and 1, Σb = 5.
    assert ratio_stderr([3, 7], [2, 3]) == pytest.approx(math.sqrt(2 / 1 * 2) / 5)
    assert ratio_stderr([3], [2]) is None
