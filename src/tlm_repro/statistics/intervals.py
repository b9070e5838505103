"""Standard errors and intervals that evaluation files and tables both state. Without torch and SciPy: half a second."""

import math
from collections.abc import Sequence
from statistics import NormalDist

COVERAGE = 0.95


def wilson(share: float, samples: int, coverage: float = COVERAGE) -> tuple[float, float]:
    """Wilson's score interval (1927) of the mean of `samples` scores, each between 0 and 1.

    Scores may be partial credit: s² ≤ s for s in [0, 1], so their variance is at most p(1 − p), which only scores of 0
    and 1 alone reach. The interval takes that variance and so is never too narrow on account of partial credit.
    """
    z = NormalDist().inv_cdf((1 + coverage) / 2)
    share = min(max(share, 0.0), 1.0)
    scale = 1 + z**2 / samples
    centre = (share + z**2 / (2 * samples)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / samples + z**2 / (4 * samples**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def student_quantile(probability: float, degrees: int) -> float:
    """The quantile of Student's t with so many degrees of freedom, 1 or more.

    By bisection of the angle θ = atan(t / √degrees), in which the distribution is a finite sum (Abramowitz and Stegun
    1964, 26.7.3 and 26.7.4).
    """
    if probability < 0.5:
        return -student_quantile(1 - probability, degrees)
    low, high = 0.0, math.pi / 2
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if _student_coverage(middle, degrees) < 2 * probability - 1 else (low, middle)
    return math.sqrt(degrees) * math.tan(middle)


def _student_coverage(angle: float, degrees: int) -> float:
    """The probability of |t| ≤ √degrees · tan(angle)."""
    sine, cosine = math.sin(angle), math.cos(angle)
    term = total = 0.0 if degrees == 1 else cosine if degrees % 2 else 1.0
    for power in range(2 + degrees % 2, degrees, 2):
        term *= (power - 1) / power * cosine**2
        total += term
    return 2 / math.pi * (angle + sine * total) if degrees % 2 else sine * total


def ratio_stderr(numerators: Sequence[float], denominators: Sequence[float]) -> float | None:
    """Standard error of Σa/Σb over independent pairs (a, b), to first order; where all b = 1, that of a mean.

    None for a single pair.
    """
    count, total = len(numerators), math.fsum(denominators)
    if count < 2:
        return None
    ratio = math.fsum(numerators) / total
    squares = math.fsum((a - ratio * b) ** 2 for a, b in zip(numerators, denominators, strict=True))
    return math.sqrt(count / (count - 1) * squares) / total
