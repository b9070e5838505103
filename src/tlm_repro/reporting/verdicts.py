"""A verdict: comparisons whose effect is positive when a claim holds, counted and put into words.

A comparison counts, either way, only where its interval excludes zero.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tlm_repro.reporting.results import Cells, Results
from tlm_repro.reporting.statistics import BASIS_TEXT, Estimate, difference, natural_unit

Verdict = Literal["reproduced", "not reproduced", "inconclusive", "not run"]


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


def some(comparisons: Sequence[Comparison], most: int = 3) -> str:
    """The first few comparisons in words."""
    return "; ".join([*map(str, comparisons[:most]), *(["…"] if len(comparisons) > most else [])])


def not_run(reason: str) -> Outcome:
    return Outcome("not run", "—", "—", reason)


def settle(comparisons: Sequence[Comparison], allowed: int = 0) -> Verdict:
    """Reproduced: all but `allowed` are clearly as claimed. Not reproduced: more than those clearly aren't."""
    signs = [comparison.effect.sign for comparison in comparisons]
    if signs.count(-1) > allowed:
        return "not reproduced"
    return "reproduced" if signs.count(1) >= len(signs) - allowed else "inconclusive"


def outcome(comparisons: Sequence[Comparison], value: str, coverage: str = "", allowed: int = 0) -> Outcome:
    """Puts the comparisons into words."""
    total = len(comparisons)
    against = [comparison for comparison in comparisons if comparison.effect.sign < 0]
    unclear = [comparison for comparison in comparisons if comparison.effect.sign == 0]
    parts = [f"{total - len(against) - len(unclear)} of {total} comparisons go as claimed beyond their intervals"]
    if against:
        parts.append(f"{len(against)} the other way ({some(against)})")
    if unclear:
        parts.append(f"{len(unclear)} within their intervals ({some(unclear)})")
    sentences = [", ".join(parts)]
    if allowed:
        sentences.append(f"The claim allows {allowed} exception")
    if coverage:
        sentences.append(coverage)
    bases = sorted({comparison.effect.basis for comparison in comparisons})
    sentences.append("Uncertainty: " + "; ".join(BASIS_TEXT[basis] for basis in bases))
    tightest = min(comparisons, key=lambda comparison: comparison.effect.mean)
    margin = f"least margin {tightest}"
    return Outcome(settle(comparisons, allowed), value, margin, ". ".join(sentences) + ".")


def compare(results: Results, metric: str, name: str, better: Cells, worse: Cells) -> Comparison | None:
    """The lower-is-better effect worse − better, in nats; None when no seed has both measured."""
    effect = difference(metric, results.seeds(worse, metric), results.seeds(better, metric))
    return None if effect is None else Comparison(name, effect, natural_unit(metric))
