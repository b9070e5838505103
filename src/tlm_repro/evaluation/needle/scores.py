"""Scores of needle-in-a-haystack answers by task, length and depth, as in RULER. Doesn't import torch."""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from tlm_repro.evaluation.needle.samples import NeedleSample, metric_name
from tlm_repro.records.evaluation import Metric


def matches(answer: str, values: Sequence[str]) -> list[bool]:
    """Whether the answer contains each value, ignoring case: RULER's `string_match_all` for single values."""
    answer = answer.lower()
    return [value.lower() in answer for value in values]


def mean_metric(scores: Sequence[float]) -> Metric:
    """The mean score with its standard error; None for one sample."""
    count = len(scores)
    mean = math.fsum(scores) / count
    if count < 2:
        return Metric(value=mean, stderr=None, items=count)
    variance = math.fsum((score - mean) ** 2 for score in scores) / (count - 1)
    return Metric(value=mean, stderr=math.sqrt(variance / count), items=count)


def summarise(
    samples: Sequence[NeedleSample], answers: Sequence[str]
) -> tuple[dict[str, Metric], dict[str, list[dict[str, Any]]]]:
    """Scores by task and length, and the needles that were retrieved by depth.

    Returns:
        metrics: `niah_<task>_<length>` → the mean over samples of the share of values in the answer.
        depths: the same names → for each nominal depth, the needles that were retrieved and those that were queried.
    """
    scores: dict[str, list[float]] = defaultdict(list)
    counts: dict[str, dict[float, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for sample, answer in zip(samples, answers, strict=True):
        name, hits = metric_name(sample.task, sample.length), matches(answer, sample.values)
        scores[name].append(sum(hits) / len(hits))
        for depth, hit in zip(sample.depths, hits, strict=True):
            counts[name][depth][0] += hit
            counts[name][depth][1] += 1
    metrics = {name: mean_metric(values) for name, values in scores.items()}
    depths = {
        name: [{"depth": depth, "found": hits, "needed": needed} for depth, (hits, needed) in sorted(rows.items())]
        for name, rows in counts.items()
    }
    return metrics, depths
