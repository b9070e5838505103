"""Scores with their standard errors, from per-item results.

lm-eval has no standard error for word perplexity, and it bootstraps LAMBADA's perplexity with 100,000 resamples
although there is a closed form. All standard errors are therefore computed here.
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
UNUSABLE_WEIGHTS = "the model's weights are unusable; check its training log"

Scores = tuple[dict[str, Metric], dict[str, Any]]  # metrics, details


def summarise(
    column: str,
    metric: str,
    result: dict[str, Any],
    samples: list[dict[str, Any]],
    aggregate: Callable[[list[Any]], float],
) -> Metric:
    """One metric of a task, from lm-eval's aggregate and its per-item samples.

    The standard error has a closed form for means and perplexities. For any other metric it is the jackknife's.

    Args:
        metric: lm-eval's name of the metric with the filter of answers, such as `acc,none`.
        aggregate: lm-eval's function from per-item values to the metric.

    Raises:
        EvaluationError: a log-likelihood of an item is NaN, or the score isn't finite.
    """
    name, _, answer_filter = metric.partition(",")
    samples = [sample for sample in samples if sample["filter"] == answer_filter]
    responses = [response for sample in samples for response in sample["filtered_resps"]]
    if any(math.isnan(likelihood(response)) for response in responses if not isinstance(response, str | list)):
        # An accuracy would hide it.
        raise EvaluationError(f"a log-likelihood of {column} is not a number: {UNUSABLE_WEIGHTS}")
    value = float(result[metric])
    if not math.isfinite(value):
        raise EvaluationError(f"{column}: lm-eval's metric '{metric}' is {value} on these items. Choose another metric")
    per_item = [sample[name] for sample in samples]
    return Metric(value=value, stderr=standard_error(name, value, per_item, aggregate), items=len(samples))


def standard_error(
    metric: str, value: float, per_item: list[Any], aggregate: Callable[[list[Any]], float]
) -> float | None:
    """The standard error of a metric over items; None for a single item."""
    pairs = [item if isinstance(item, tuple) else (item, 1) for item in per_item]
    if metric_scale(metric) == "perplexity":  # word perplexity has pairs of (log-likelihood, words)
        stderr = ratio_stderr(*zip(*pairs, strict=True))
        return None if stderr is None else stderr * value  # d exp(-x) = -exp(-x) dx
    if all(isinstance(item, int | float) for item in per_item) and math.isclose(value, fmean(per_item), abs_tol=1e-12):
        return ratio_stderr(*zip(*pairs, strict=True))
    return jackknife_stderr(per_item, aggregate)


def jackknife_stderr(per_item: list[Any], aggregate: Callable[[list[Any]], float]) -> float | None:
    """The standard error by the jackknife over at most `JACKKNIFE_GROUPS` groups of items.

    None for a single item, or if the metric can't be computed without one of the groups.
    """
    groups = min(len(per_item), JACKKNIFE_GROUPS)
    if groups < 2:
        return None
    try:
        values = [
            float(aggregate([item for index, item in enumerate(per_item) if index % groups != group]))
            for group in range(groups)
        ]
    except (ArithmeticError, ValueError):
        return None
    stderr = math.sqrt((groups - 1) * pvariance(values))
    return stderr if math.isfinite(stderr) else None


def likelihood(response: float | tuple[float, bool]) -> float:
    """The log-likelihood in lm-eval's response, which may also say whether the continuation is the greedy one."""
    return response[0] if isinstance(response, tuple) else response
