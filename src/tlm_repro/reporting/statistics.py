"""Means, paired differences and their intervals, over seeds where there are several.

Effects are taken where they add up: in nats for losses and perplexities, in percentage points for accuracies.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

from tlm_repro.reporting.results import PERPLEXITIES, Cosine, Measurement

LEVEL = 0.95
Basis = Literal["seeds", "evaluation", "rounding", "tokens", "unknown"]

BASIS_TEXT: dict[Basis, str] = {
    "seeds": "spread over seeds",
    "evaluation": "rests on one run: evaluation noise only",
    "rounding": "resolution of the printed values",
    "tokens": "noise of the sampled tokens",
    "unknown": "rests on one run, whose evaluation gives no standard error",
}


@dataclass(frozen=True)
class Estimate:
    """A mean or a difference. `half_width` is that of its 95 % interval (of its rounding interval for printed values).

    `stderr` and `half_width` are NaN where nothing is known of them.
    """

    mean: float
    stderr: float
    half_width: float
    seeds: int
    basis: Basis

    @property
    def sign(self) -> int:
        """+1 or −1 where the interval excludes zero, else 0.

        Rounding keeps order, so printed values that differ at all differ in truth: there the interval is open.
        """
        slack = 1e-6 if self.basis == "rounding" else 0.0
        return int(np.sign(self.mean)) if abs(self.mean) + slack > self.half_width and abs(self.mean) > slack else 0


def natural_unit(metric: str) -> str:
    """The unit in which effects on `metric` are given."""
    return "nats" if metric == "val_loss" or metric in PERPLEXITIES else "points"


def natural(metric: str, measured: Measurement) -> Measurement:
    """The measurement in its natural unit: a perplexity as its logarithm, an accuracy in percent."""
    if metric == "val_loss":
        return measured
    if metric in PERPLEXITIES:
        value = measured.value
        return Measurement(math.log(value), measured.stderr / value, measured.resolution / value)
    return Measurement(100 * measured.value, 100 * measured.stderr, 100 * measured.resolution)


def mean(metric: str, measured: Mapping[int, Measurement]) -> Estimate:
    """Mean over seeds in the metric's natural unit; with one seed, the evaluation's own standard error stands in.

    Raises ValueError when there is no seed at all.
    """
    values = [natural(metric, measurement) for measurement in measured.values()]
    return estimate(values)


def difference(metric: str, first: Mapping[int, Measurement], second: Mapping[int, Measurement]) -> Estimate | None:
    """first − second in the metric's natural unit, paired by seed; None when no seed has both.

    With one seed in common the two standard errors are combined as if independent, √(se² + se²): the per-window losses
    that a paired estimate would need aren't kept. That overstates the noise of two models read on the same windows.
    """
    paired = []
    for seed in sorted(first.keys() & second.keys()):
        one, other = natural(metric, first[seed]), natural(metric, second[seed])
        paired.append(
            Measurement(
                one.value - other.value, math.hypot(one.stderr, other.stderr), one.resolution + other.resolution
            )
        )
    return estimate(paired) if paired else None


def estimate(values: list[Measurement]) -> Estimate:
    """Mean, standard error and Student t interval of one value a seed; `BASIS_TEXT` says what one alone rests on."""
    if not values:
        raise ValueError("no measurement to take the mean of")
    numbers = np.array([value.value for value in values])
    centre, count = float(numbers.mean()), len(values)
    if count > 1:
        stderr = float(numbers.std(ddof=1)) / math.sqrt(count)
        return Estimate(centre, stderr, float(stats.t.ppf((1 + LEVEL) / 2, count - 1)) * stderr, count, "seeds")
    only = values[0]
    if not math.isnan(only.resolution):
        return Estimate(centre, math.nan, only.resolution, 1, "rounding")
    if not math.isnan(only.stderr):
        return normal_interval(centre, only.stderr, 1, "evaluation")
    return Estimate(centre, math.nan, math.nan, 1, "unknown")


def normal_interval(centre: float, stderr: float, seeds: int, basis: Basis) -> Estimate:
    """An estimate whose 95 % interval is normal; without a standard error (NaN) nothing is known of it."""
    if math.isnan(stderr):
        return Estimate(centre, math.nan, math.nan, seeds, "unknown")
    return Estimate(centre, stderr, float(stats.norm.ppf((1 + LEVEL) / 2)) * stderr, seeds, basis)


def level(metric: str, found: Estimate) -> tuple[float, float]:
    """(value, standard error) in the unit of the tables: perplexity (geometric mean over seeds), nats or percent."""
    if metric not in PERPLEXITIES:
        return found.mean, found.stderr
    perplexity = math.exp(found.mean)
    return perplexity, perplexity * found.stderr


def depth_correlation(depth: Sequence[float], profile: Sequence[float], errors: Sequence[float]) -> tuple[float, float]:
    """Pearson r of a profile over layers with their depth, and the standard error that the profile's errors give it.

    The layers are all that the model has, not a sample, so only the noise of the cosines counts:
    ∂r/∂m = x/(‖x‖‖m‖) − r·m/‖m‖², with x and m centred.
    """
    position = np.asarray(depth) - np.mean(depth)
    centred = np.asarray(profile) - np.mean(profile)
    norms = float(np.linalg.norm(position)), float(np.linalg.norm(centred))
    r = float(position @ centred) / (norms[0] * norms[1])
    gradient = position / (norms[0] * norms[1]) - r * centred / norms[1] ** 2
    return r, float(np.sqrt(np.sum((gradient * np.asarray(errors)) ** 2)))


def profile_correlation(profile: Sequence[Cosine | None], r: float | None) -> Estimate | None:
    """Pearson r with depth of the interior layers that have the module; None when the file gives no r."""
    layers = [(index, layer) for index, layer in enumerate(profile) if layer and 0 < index < len(profile) - 1]
    if r is None or len(layers) < 3:
        return None
    depth, means = [float(index) for index, _ in layers], [layer.mean for _, layer in layers]
    errors = [math.nan if layer.stderr is None else layer.stderr for _, layer in layers]
    return normal_interval(r, depth_correlation(depth, means, errors)[1], 1, "tokens")
