"""Exact budgets: whole units that add up to a total and follow a curve as closely as possible."""

import itertools
import math
from collections.abc import Sequence

from tlm_repro.errors import ConfigError

# Fractions are compared in steps of 1 / RESOLUTION. Mathematical libraries differ in a curve's last bits, but a tie
# must be a tie on every machine. It is a power of two, so no fraction that occurs in practice lies halfway between two
# steps.
RESOLUTION = 2**30


def nearest(value: float) -> int:
    """The nearest whole number. Halves are rounded up, also those that floating point misses by a few bits."""
    return math.floor(round(value * RESOLUTION) / RESOLUTION + 0.5)


def apportion(shares: Sequence[float], total: int) -> list[int]:
    """Splits `total` units in proportion to `shares` by largest remainder (Hamilton's method).

    Each result is its quota, share × total ÷ sum of shares, rounded down or up. No other whole numbers with this total
    have a smaller summed deviation from the quotas. Equal remainders are served from the end if the shares never fall,
    otherwise from the start. A rising curve therefore stays rising, a falling one falling, and a zero share gets
    nothing.

    Raises:
        ConfigError: a share or the total is negative, or there are units but no positive share.
    """
    if total < 0 or any(share < 0 for share in shares):
        raise ConfigError(f"can't split {total} units over {list(shares)}: make all of them 0 or more")
    sum_of_shares = math.fsum(shares)
    if sum_of_shares == 0:
        if total > 0:
            raise ConfigError(f"can't split {total} units over {list(shares)}: make at least one share positive")
        return [0] * len(shares)
    quotas = [divmod(round(share * total / sum_of_shares * RESOLUTION), RESOLUTION) for share in shares]
    units = [whole for whole, _ in quotas]
    rising = all(left <= right for left, right in itertools.pairwise(quotas))
    served = sorted(range(len(shares)), key=lambda i: (-quotas[i][1], -i if rising else i))
    for i in served[: total - sum(units)]:
        units[i] += 1
    return units
