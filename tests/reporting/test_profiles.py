"""The correlation of a profile with depth against scipy and simulation."""

import numpy as np
import pytest
from scipy import stats

from tlm_repro.records.novelty import Mean
from tlm_repro.reporting import profiles


def test_depth_correlation_against_scipy_and_simulation():
    rng = np.random.default_rng(0)
    depth = np.arange(1, 13)
    profile = 0.01 * depth + rng.normal(0, 0.05, 12)
    errors = np.full(12, 0.004)
    r, stderr = profiles.depth_correlation(depth, profile, errors)
    assert r == pytest.approx(stats.pearsonr(depth, profile).statistic)
    drawn = [stats.pearsonr(depth, profile + rng.normal(0, errors)).statistic for _ in range(2000)]
    assert stderr == pytest.approx(np.std(drawn), rel=0.08)


def test_profile_correlation_drops_ends_and_missing_layers():
    means = [5.0, 0.1, 0.2, None, 0.35, 0.3, -5.0]
    profile = [None if mean is None else Mean(mean=mean, stderr=0.01) for mean in means]
    found = profiles.profile_correlation(profile, 0.9)
    _, stderr = profiles.depth_correlation([1, 2, 4, 5], [0.1, 0.2, 0.35, 0.3], [0.01] * 4)
    assert (found.mean, found.stderr) == (0.9, pytest.approx(stderr))
    assert profiles.profile_correlation(profile, None) is None
