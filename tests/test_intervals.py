"""Wilson's interval against scipy's own and simulation."""

import numpy as np
import pytest
from scipy import stats

from tlm_repro.intervals import wilson


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
