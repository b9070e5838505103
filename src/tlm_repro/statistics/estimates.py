"""Means, paired differences and their intervals, over seeds where there are several.

Effects are taken where they add up: in nats for losses and perplexities, in percentage points for accuracies. Scores of
needle-in-a-haystack are often near 0 or 100 %, where symmetric intervals mislead: theirs are score intervals.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tlm_repro.spec.benchmarks import Scale
from tlm_repro.spec.metrics import NEEDLES, PERPLEXITIES
from tlm_repro.statistics.intervals import COVERAGE, wilson
from tlm_repro.statistics.measurement import Measurement

Basis = Literal["seeds", "blocks", "evaluation", "rounding", "tokens", "unknown"]


BASIS_TEXT: dict[Basis, str] = {
    "seeds": "spread over seeds",
    "blocks": "rests on one run each: evaluation noise only, paired over blocks of the same text; "
    "another seed can turn it",
    "evaluation": "rests on one run each: evaluation noise only, taken as independent",
    "rounding": "resolution of the printed values",
    "tokens": "noise of the sampled tokens",
    "unknown": "rests on one run each, whose evaluation gives no standard error",
}


@dataclass(frozen=True)
class Estimate:
    """A mean or a difference. `half_width` is that of its 95 % interval (of its rounding interval for printed values).

    `stderr` and `half_width` are NaN where nothing is known of them. `bounds` is the interval where it isn't symmetric.
    `blocks` is how many blocks of text a difference is paired over, 0 where it isn't.
    """

    mean: float
    stderr: float
    half_width: float
    seeds: int
    basis: Basis
    bounds: tuple[float, float] | None = None
    blocks: int = 0

    @property
    def rests_on(self) -> str:
        """What the uncertainty of a difference rests on, in words."""
        return BASIS_TEXT[self.basis].replace("over blocks", f"over {self.blocks} blocks")

    @property
    def interval(self) -> tuple[float, float]:
        """(low, high) of the interval; NaN where nothing is known of it."""
        return self.bounds or (self.mean - self.half_width, self.mean + self.half_width)

    @property
    def sign(self) -> int:
        """+1 or −1 where the interval excludes zero, else 0.

        Rounding keeps order, so printed values that differ at all differ in truth: there the interval is open.
        """
        if self.bounds is not None:
            return int(self.bounds[0] > 0) - int(self.bounds[1] < 0)
        slack = 1e-6 if self.basis == "rounding" else 0.0
        excludes_zero = abs(self.mean) + slack > self.half_width and abs(self.mean) > slack
        return int(math.copysign(1, self.mean)) if excludes_zero else 0


def p_value(effect: Estimate) -> float:
    """Two-sided p of no effect: Student's over seeds or blocks of text, else normal.

    Printed values are in order or equal: 0 or 1.
    """
    if effect.basis == "rounding":
        return 0.0 if effect.sign else 1.0
    if math.isnan(effect.stderr):
        return 1.0
    if effect.stderr == 0:
        return 0.0 if effect.mean else 1.0
    ratio = abs(effect.mean) / effect.stderr
    units = {"seeds": effect.seeds, "blocks": effect.blocks}.get(effect.basis, 0)
    student = units and effect.bounds is None
    return two_sided(ratio, units - 1 if student else None)


def two_sided(ratio: float, freedom: int | None = None) -> float:
    """Chance of a ratio at least as far from zero: Student's with these degrees of freedom, normal for None."""
    from scipy import special  # a third of the time that scipy.stats takes, with the same bits

    return float(2 * (special.ndtr(-ratio) if freedom is None else special.stdtr(freedom, -ratio)))


def quantile(coverage: float, freedom: int | None = None) -> float:
    """Half width of a central interval in standard errors: Student's with these degrees of freedom, normal for None."""
    from scipy import special

    share = (1 + coverage) / 2
    return float(special.ndtri(share) if freedom is None else special.stdtrit(freedom, share))


def holm(p_values: Sequence[float], level: float = 1 - COVERAGE) -> list[bool]:
    """Which hypotheses are rejected when all are judged together: Holm (1979), Scandinavian Journal of Statistics 6.

    The chance of one false rejection among them, whatever their dependence, is at most `level`.
    """
    rejected, count = [False] * len(p_values), len(p_values)
    for rank, index in enumerate(sorted(range(count), key=lambda index: p_values[index])):
        if p_values[index] > level / (count - rank):
            break
        rejected[index] = True
    return rejected


def one_run(bases: Iterable[str]) -> list[str]:
    """What differences with these bases rest on where they have a single seed, a sentence each."""
    given, single = set(bases), ("blocks", "evaluation", "unknown")
    return [f"A difference {text}." for basis, text in BASIS_TEXT.items() if basis in given and basis in single]


def scale_of(metric: str) -> Scale:
    """How values of the paper's metrics are shown and compared."""
    if metric == "val_loss":
        return "plain"
    return "perplexity" if metric in PERPLEXITIES else "percent"


def natural_unit(metric: str) -> str:
    """The unit in which effects on one of the paper's metrics are given."""
    return "points" if scale_of(metric) == "percent" else "nats"


def natural(scale: Scale, measured: Measurement) -> Measurement:
    """The measurement where differences add up: a perplexity as its logarithm, a share in percent, others as is."""
    if scale == "plain":
        return measured
    value, factor = measured.value, 100.0
    if scale == "perplexity":
        value, factor = math.log(value), 1 / value
    else:
        value = factor * value
    return replace(measured, value=value, stderr=factor * measured.stderr, resolution=factor * measured.resolution)


def mean(metric: str, measured: Mapping[int, Measurement], scale: Scale | None = None) -> Estimate:
    """Mean over seeds in the metric's natural unit; with one seed, the evaluation's own standard error stands in.

    `scale` is that of a metric that isn't the paper's. Raises ValueError when there is no seed at all.
    """
    values = [natural(scale or scale_of(metric), measurement) for measurement in measured.values()]
    over_seeds = estimate(values)
    return mean_score(over_seeds, values) if metric.startswith(NEEDLES) else over_seeds


def difference(
    metric: str,
    first: Mapping[int, Measurement],
    second: Mapping[int, Measurement],
    coverage: float = COVERAGE,
    scale: Scale | None = None,
) -> Estimate | None:
    """first − second in the metric's natural unit, paired by seed; None when no seed has both.

    With one seed in common the unit is a block of the text that both runs read, where their evaluations keep the losses
    of the same blocks. Else the two standard errors are combined as if independent, √(se² + se²), which overstates the
    noise of two models that read the same text. Two needle scores of one seed have Newcombe's interval. `coverage` is
    that of the interval, `scale` that of a metric that isn't the paper's.
    """
    seeds = sorted(first.keys() & second.keys())
    shown = scale or scale_of(metric)
    pairs = [(natural(shown, first[seed]), natural(shown, second[seed])) for seed in seeds]
    if not pairs:
        return None
    if len(pairs) == 1 and metric.startswith(NEEDLES) and min(measured.items for measured in pairs[0]) > 0:
        return score_difference(*pairs[0], coverage)
    if len(pairs) == 1 and (by_block := block_difference(*pairs[0], coverage)) is not None:
        return by_block
    paired = [
        Measurement(one.value - other.value, math.hypot(one.stderr, other.stderr), one.resolution + other.resolution)
        for one, other in pairs
    ]
    return estimate(paired, coverage)


def block_difference(first: Measurement, second: Measurement, coverage: float = COVERAGE) -> Estimate | None:
    """first − second with Student's interval over blocks of text; None where they don't have the same two or more.

    Two models that read the same text find the same parts of it hard, which cancels in the differences block by block.
    What remains is the noise of this text alone: what other seeds would give isn't in it.
    """
    blocks = first.blocks.minus(second.blocks) if first.blocks and second.blocks else None
    if blocks is None or blocks.stderr is None:
        return None
    count = len(blocks.windows)
    half = quantile(coverage, count - 1) * blocks.stderr
    return Estimate(blocks.mean, blocks.stderr, half, 1, "blocks", blocks=count)


def newcombe(first: tuple[float, int], second: tuple[float, int], coverage: float = COVERAGE) -> tuple[float, float]:
    """Interval of first − second, each (score in [0, 1], samples), from their two Wilson intervals.

    Method 10, hybrid score, of Newcombe (1998), "Interval estimation for the difference between independent
    proportions", Statistics in Medicine 17, 873–890. Two models read the same samples and tend to find the same
    needles; taking them as independent then gives too wide an interval.
    """
    (p, _), (q, _) = first, second
    (p_low, p_high), (q_low, q_high) = wilson(*first, coverage), wilson(*second, coverage)
    return p - q - math.hypot(p - p_low, q_high - q), p - q + math.hypot(p_high - p, q - q_low)


def mean_score(over_seeds: Estimate, values: Sequence[Measurement]) -> Estimate:
    """A mean needle score, in percent, with its Wilson interval; over seeds never narrower than their own spread.

    All seeds read the same samples, so those count once: a sample's mean over seeds is one more score in [0, 1].
    """
    samples = min(value.items for value in values)
    if samples == 0:
        return over_seeds
    low, high = (100 * bound for bound in wilson(over_seeds.mean / 100, samples))
    if over_seeds.seeds > 1:
        low, high = (
            min(low, over_seeds.mean - over_seeds.half_width),
            max(high, over_seeds.mean + over_seeds.half_width),
        )
    return bounded(over_seeds.mean, max(0.0, low), min(100.0, high), over_seeds.seeds, COVERAGE)


def score_difference(first: Measurement, second: Measurement, coverage: float) -> Estimate:
    """The difference of two needle scores in percent, in points, each over one run's samples."""
    low, high = newcombe((first.value / 100, first.items), (second.value / 100, second.items), coverage)
    return bounded(first.value - second.value, 100 * low, 100 * high, 1, coverage)


def bounded(centre: float, low: float, high: float, seeds: int, coverage: float) -> Estimate:
    """An estimate with an interval of its own; its standard error is what a normal one as wide would have."""
    half = (high - low) / 2
    basis: Basis = "seeds" if seeds > 1 else "evaluation"
    return Estimate(centre, half / quantile(coverage), half, seeds, basis, (low, high))


def estimate(values: Sequence[Measurement], coverage: float = COVERAGE) -> Estimate:
    """Mean, standard error and Student t interval of one value a seed; `BASIS_TEXT` says what one alone rests on."""
    if not values:
        raise ValueError("no measurement to take the mean of")
    import numpy as np

    numbers = np.array([value.value for value in values])
    centre, count = float(numbers.mean()), len(values)
    if count > 1:
        stderr = float(numbers.std(ddof=1)) / math.sqrt(count)
        return Estimate(centre, stderr, quantile(coverage, count - 1) * stderr, count, "seeds")
    only = values[0]
    if not math.isnan(only.resolution):
        return Estimate(centre, math.nan, only.resolution, 1, "rounding")
    if not math.isnan(only.stderr):
        return normal_interval(centre, only.stderr, 1, "evaluation", coverage)
    return Estimate(centre, math.nan, math.nan, 1, "unknown")


def normal_interval(centre: float, stderr: float, seeds: int, basis: Basis, coverage: float = COVERAGE) -> Estimate:
    """An estimate whose interval is normal; without a standard error (NaN) nothing is known of it."""
    if math.isnan(stderr):
        return Estimate(centre, math.nan, math.nan, seeds, "unknown")
    return Estimate(centre, stderr, quantile(coverage) * stderr, seeds, basis)


def table_value(metric: str, value: Estimate, scale: Scale | None = None) -> tuple[float, float]:
    """(value, standard error) in the unit of the tables: perplexity (geometric mean over seeds), nats or percent."""
    if (scale or scale_of(metric)) != "perplexity":
        return value.mean, value.stderr
    perplexity = math.exp(value.mean)
    return perplexity, perplexity * value.stderr
