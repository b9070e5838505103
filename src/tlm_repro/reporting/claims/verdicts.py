"""A verdict: comparisons whose effect is positive when a claim holds, counted and put into words.

A claim holds where each of its comparisons is clearly as it says: each interval excludes zero, and since all must,
none of them needs a correction. It doesn't hold where one is clearly the other way. Of many comparisons a few are that
by chance, so there all are judged together, by Holm's method.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tlm_repro.records.claims import Verdict
from tlm_repro.records.view import Cells
from tlm_repro.reporting.results import Results
from tlm_repro.statistics.estimates import Estimate, difference, holm, natural_unit, p_value


@dataclass(frozen=True)
class Comparison:
    """`effect` is positive when the comparison goes as claimed."""

    name: str
    effect: Estimate
    unit: str

    def __str__(self) -> str:
        margin = "unknown" if math.isnan(self.effect.half_width) else f"{self.effect.half_width:.3f}"
        return f"{self.name}: {self.effect.mean:+.3f}".replace(": -", ": −") + f" ± {margin} {self.unit}"


@dataclass(frozen=True)
class Outcome:
    """A verdict, our number, its uncertainty, and why, in a sentence or two."""

    verdict: Verdict
    value: str
    uncertainty: str
    reason: str


def first_few(comparisons: Sequence[Comparison], most: int = 3) -> str:
    """Up to `most` comparisons in words."""
    return "; ".join([*map(str, comparisons[:most]), *(["…"] if len(comparisons) > most else [])])


def not_run(reason: str) -> Outcome:
    return Outcome("not run", "—", "—", reason)


def contrary(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Those that go the other way beyond chance, all comparisons judged together (Holm)."""
    rejected = holm([p_value(comparison.effect) for comparison in comparisons])
    return [
        comparison
        for comparison, sure in zip(comparisons, rejected, strict=True)
        if sure and comparison.effect.mean < 0
    ]


def settle(comparisons: Sequence[Comparison], allowed: int = 0) -> Verdict:
    """Reproduced: all but `allowed` are clearly as claimed. Not reproduced: more than those clearly aren't."""
    if len(contrary(comparisons)) > allowed:
        return "not reproduced"
    agreeing = sum(comparison.effect.sign > 0 for comparison in comparisons)
    return "reproduced" if agreeing >= len(comparisons) - allowed else "inconclusive"


def outcome(comparisons: Sequence[Comparison], value: str, coverage: str = "", allowed: int = 0) -> Outcome:
    """Puts the comparisons into words."""
    total = len(comparisons)
    against = [comparison for comparison in comparisons if comparison.effect.sign < 0]
    sure = contrary(comparisons)
    unclear = [comparison for comparison in comparisons if comparison.effect.sign == 0]
    parts = [f"{total - len(against) - len(unclear)} of {total} comparisons go as claimed beyond their intervals"]
    if against:
        together = "" if total == 1 else f", {len(sure)} of them when all are judged together"
        parts.append(f"{len(against)} the other way{together} ({first_few(against)})")
    if unclear:
        parts.append(f"{len(unclear)} within their intervals ({first_few(unclear)})")
    sentences = [", ".join(parts)]
    if allowed:
        sentences.append(f"The claim allows {allowed} exception")
    if coverage:
        sentences.append(coverage)
    sentences.append("Uncertainty: " + "; ".join(sorted({comparison.effect.rests_on for comparison in comparisons})))
    tightest = min(comparisons, key=lambda comparison: comparison.effect.mean)
    margin = f"least margin {tightest}"
    return Outcome(settle(comparisons, allowed), value, margin, ". ".join(sentences) + ".")


def compare(results: Results, metric: str, name: str, better: Cells, worse: Cells) -> Comparison | None:
    """The lower-is-better effect worse − better, in nats; None when no seed has both measured."""
    effect = difference(metric, results.seeds(worse, metric), results.seeds(better, metric))
    return None if effect is None else Comparison(name, effect, natural_unit(metric))
