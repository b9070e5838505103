"""Standard errors and intervals that evaluation files and tables both state. Without torch and SciPy: half a second."""

import math
from collections.abc import Sequence
from statistics import NormalDist

LEVEL = 0.95


def wilson(share: float, samples: int, coverage: float = LEVEL) -> tuple[float, float]:
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
