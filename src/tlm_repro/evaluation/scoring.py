"""Scores with their standard errors, from per-item results.

lm-eval has no standard error for word perplexity, and bootstraps LAMBADA's perplexity with 100,000 resamples where a
closed form does: all are computed here.
"""

import math
from collections.abc import Callable
from statistics import fmean, pvariance
from typing import Any

from tlm_repro.errors import EvaluationError
from tlm_repro.records.evaluation import Metric
from tlm_repro.spec.benchmarks import metric_scale
from tlm_repro.statistics.intervals import ratio_stderr

JACKKNIFE_GROUPS = 32
UNUSABLE = "the model's weights are not usable; look at its training log"


Scores = tuple[dict[str, Metric], dict[str, Any]]  # metrics, details


def summarise(
    column: str,
    metric: str,
    result: dict[str, Any],
    samples: list[dict[str, Any]],
    aggregate: Callable[[list[Any]], float],
) -> Metric:
    """One metric of a task from lm-eval's aggregate and its per-item samples.

    The standard error has a closed form for means and perplexities; for any other metric it is a jackknife's.

    Args:
        metric: lm-eval's name with the filter of answers: `acc,none`.
        aggregate: lm-eval's function from the values of items to the metric.

    Raises:
        EvaluationError: a log-likelihood behind it isn't a number, or the score isn't finite.
    """
    name, _, way = metric.partition(",")
    samples = [sample for sample in samples if sample["filter"] == way]
    responses = [response for sample in samples for response in sample["filtered_resps"]]
    if any(math.isnan(likelihood(response)) for response in responses if not isinstance(response, str | list)):
        raise EvaluationError(f"a log-likelihood behind {column} is not a number: {UNUSABLE}")  # accuracies hide it
    value = float(result[metric])
    if not math.isfinite(value):
        raise EvaluationError(f"{column}: lm-eval's metric '{metric}' is {value} on these items. Choose another metric")
    per_item = [sample[name] for sample in samples]
    return Metric(value=value, stderr=standard_error(name, value, per_item, aggregate), items=len(samples))


def standard_error(
    metric: str, value: float, per_item: list[Any], aggregate: Callable[[list[Any]], float]
) -> float | None:
    """Standard error of a metric over items; None for a single item."""
    pairs = [item if isinstance(item, tuple) else (item, 1) for item in per_item]
    if metric_scale(metric) == "perplexity":  # word perplexity has pairs of (log-likelihood, words)
        stderr = ratio_stderr(*zip(*pairs, strict=True))
        return None if stderr is None else stderr * value  # d exp(-x) = -exp(-x) dx
    if all(isinstance(item, int | float) for item in per_item) and math.isclose(value, fmean(per_item), abs_tol=1e-12):
        return ratio_stderr(*zip(*pairs, strict=True))
    return jackknife_stderr(per_item, aggregate)


def jackknife_stderr(per_item: list[Any], aggregate: Callable[[list[Any]], float]) -> float | None:
    """Standard error by leaving out one of at most `JACKKNIFE_GROUPS` groups of items at a time.

    None for a single item, and where the metric can't be computed without one of the groups.
    """
    groups = min(len(per_item), JACKKNIFE_GROUPS)
    if groups < 2:
        return None
    try:
        values = [
            float(aggregate([item for place, item in enumerate(per_item) if place % groups != group]))
            for group in range(groups)
        ]
    except (ArithmeticError, ValueError):
        return None
    stderr = math.sqrt((groups - 1) * pvariance(values))
    return stderr if math.isfinite(stderr) else None


def likelihood(response: float | tuple[float, bool]) -> float:
    """The log-likelihood in lm-eval's response to a request, which may say too whether the continuation is greedy."""
    return response[0] if isinstance(response, tuple) else response
