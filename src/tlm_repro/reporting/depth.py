"""What a novelty file says about depth: correlations with their intervals, and the last third of the layers."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from scipy import stats

from tlm_repro.novelty.late_layers import late_layers
from tlm_repro.reporting.results import Cosine, Novelty
from tlm_repro.reporting.statistics import Estimate, normal_interval, profile_correlation
from tlm_repro.statistics.intervals import LEVEL

Profile = Literal["block", "mlp", "norm_ratio"]


def correlations(found: Novelty) -> tuple[Estimate | None, Estimate | None, Estimate | None]:
    """(r_block, r_MLP, r_MLP − r_block), None where one isn't defined.

    Intervals are the file's own, from resampled blocks of tokens. A file without them has those of
    `profile_correlation`, which take all cosines as independent.
    """
    block = profile_correlation(found.block, found.correlation.block.r)
    mlp = profile_correlation(found.mlp, found.correlation.mlp.r)
    difference = None
    if block is not None and mlp is not None:
        difference = normal_interval(mlp.mean - block.mean, math.hypot(mlp.stderr, block.stderr), 1, "tokens")
    own = found.intervals
    if own is None:
        return block, mlp, difference
    return resampled(block, own.block), resampled(mlp, own.mlp), resampled(difference, own.difference)


def resampled(estimate: Estimate | None, bounds: tuple[float, float] | None) -> Estimate | None:
    """The estimate with these bounds where there are any; its standard error is what a normal interval as wide has."""
    if estimate is None or bounds is None:
        return estimate
    half = (bounds[1] - bounds[0]) / 2
    stderr = half / float(stats.norm.ppf((1 + LEVEL) / 2))
    return Estimate(estimate.mean, stderr, half, estimate.seeds, estimate.basis, bounds)


def late(found: Novelty, profile: Profile) -> tuple[float, float] | None:
    """(mean, standard error) of a profile over `late_layers` that have it; None where none has.

    All layers read the same tokens, so their errors are taken as going together: the mean's is the mean of theirs,
    which is the most that it can be.
    """
    values: Sequence[Cosine | None] = getattr(found, profile) or ()
    chosen = [value for layer in late_layers(len(values)) if (value := values[layer]) is not None]
    if not chosen:
        return None
    errors = [math.nan if value.stderr is None else value.stderr for value in chosen]
    return float(np.mean([value.mean for value in chosen])), float(np.mean(errors))
