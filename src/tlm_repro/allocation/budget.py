"""Exact budgets: whole units that add up to a total and follow a curve as closely as they can."""

import itertools
import math
from collections.abc import Sequence

from tlm_repro.errors import ConfigError

# Fractions are compared in steps of 1 / RESOLUTION: mathematical libraries differ in a curve's last bits, but a tie
# must be a tie everywhere. A power of two, so that no fraction met in practice lies halfway between two steps.
RESOLUTION = 2**30


def nearest(value: float) -> int:
    """The nearest whole number; halves go up, and a half that floating point missed by a hair is a half."""
    return math.floor(round(value * RESOLUTION) / RESOLUTION + 0.5)


def apportion(shares: Sequence[float], total: int) -> list[int]:
    """Splits `total` units in proportion to `shares` by largest remainder (Hamilton's method).

    Each result is its quota, share × total ÷ sum of shares, rounded down or up; no other whole numbers with this total
    deviate less from the quotas in sum. Equal remainders are served from the end where the shares never fall, from the
    start otherwise. A rising curve thus keeps rising, a falling one keeps falling, and a share of zero gets nothing.

    Raises:
        ConfigError: a share or the total is negative, or there are units but no positive share.
    """
    if total < 0 or any(share < 0 for share in shares):
        raise ConfigError(f"can't split {total} units over {list(shares)}: neither may be negative")
    sum_of_shares = math.fsum(shares)
    if sum_of_shares == 0:
        if total > 0:
            raise ConfigError(f"can't split {total} units over {list(shares)}: at least one share must be positive")
        return [0] * len(shares)
    quotas = [divmod(round(share * total / sum_of_shares * RESOLUTION), RESOLUTION) for share in shares]
    units = [whole for whole, _ in quotas]
    rising = all(left <= right for left, right in itertools.pairwise(quotas))
    served = sorted(range(len(shares)), key=lambda i: (-quotas[i][1], -i if rising else i))
    for i in served[: total - sum(units)]:
        units[i] += 1
    return units
