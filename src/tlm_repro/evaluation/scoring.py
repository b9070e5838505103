"""Scores with their standard errors, from per-item results.

lm-eval has no standard error for word perplexity, and bootstraps LAMBADA's perplexity with 100,000 resamples where a
closed form does: all are computed here.
"""

import math
from dataclasses import dataclass
from typing import Any

from tlm_repro.errors import EvaluationError
from tlm_repro.statistics.intervals import ratio_stderr

PERPLEXITIES = {"perplexity", "word_perplexity"}
UNUSABLE = "the model's weights are not usable; look at its training log"


@dataclass(frozen=True)
class Metric:
    """A score over `items` items. `stderr` is its standard error with items as the sampling unit; None for one item."""

    value: float
    stderr: float | None
    items: int


Scores = tuple[dict[str, Metric], dict[str, Any]]  # metrics, details


def summarise(column: str, metric: str, result: dict[str, Any], samples: list[dict[str, Any]]) -> Metric:
    """One metric of a task from lm-eval's aggregate and its per-item samples.

    Raises:
        EvaluationError: a log-likelihood behind it isn't a number, or the score isn't finite.
    """
    likelihoods = [likelihood(response) for sample in samples for response in sample["filtered_resps"]]
    if any(math.isnan(value) for value in likelihoods):  # an accuracy would hide it
        raise EvaluationError(f"a log-likelihood behind {column} is not a number: {UNUSABLE}")
    value = float(result[f"{metric},none"])
    per_item = [sample[metric] for sample in samples]
    # Word perplexity has pairs of (log-likelihood, words).
    pairs = [item if isinstance(item, tuple) else (item, 1) for item in per_item]
    stderr = ratio_stderr(*zip(*pairs, strict=True))
    if stderr is not None and metric in PERPLEXITIES:
        stderr *= value  # d exp(-x) = -exp(-x) dx
    return Metric(value=value, stderr=stderr, items=len(samples))


def likelihood(response: float | tuple[float, bool]) -> float:
    """The log-likelihood in lm-eval's response to a request, which may say too whether the continuation is greedy."""
    return response[0] if isinstance(response, tuple) else response
