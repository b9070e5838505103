"""Apportionment against hand-worked cases and an exhaustive search."""

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tlm_repro.allocation.budget import apportion, nearest
from tlm_repro.errors import ConfigError

shares = st.lists(st.integers(0, 60), min_size=1, max_size=30).filter(any)


def least_deviation(quotas: list[Fraction], total: int) -> Fraction:
    """The smallest Σ|units − quota| over every way to write `total` as a sum of whole numbers from 0 up."""
    cells = itertools.product(range(total + 1), repeat=len(quotas))
    return min(
        sum((abs(unit - quota) for unit, quota in zip(units, quotas, strict=True)), Fraction(0))
        for units in cells
        if sum(units) == total
    )


@pytest.mark.parametrize(
    ("given_shares", "total", "expected"),
    [
        ([1, 1, 1], 6, [2, 2, 2]),
        ([1.7, 1.0, 0.3], 3, [2, 1, 0]),
        ([47_000, 16_000, 15_900, 12_000, 6_000, 3_100], 10, [5, 2, 1, 1, 1, 0]),  # the textbook case of the method
        ([3, 2, 2, 1], 4, [2, 1, 1, 0]),  # 1.5, 1, 1, 0.5: a falling tie is served from the start
        ([1, 2, 2, 3], 4, [0, 1, 1, 2]),  # 0.5, 1, 1, 1.5: a rising one from the end
        ([0, 1, 1, 0], 3, [0, 2, 1, 0]),
        ([], 0, []),
        ([0, 0], 0, [0, 0]),
    ],
)
def test_hand_worked_cases(given_shares, total, expected):
    assert apportion(given_shares, total) == expected


@given(st.lists(st.integers(0, 12), min_size=1, max_size=4).filter(any), st.integers(0, 7))
@settings(max_examples=60, deadline=None)
def test_no_other_split_deviates_less(small_shares, total):
    quotas = [Fraction(share * total, sum(small_shares)) for share in small_shares]
    deviation = sum(abs(unit - quota) for unit, quota in zip(apportion(small_shares, total), quotas, strict=True))
    assert deviation == least_deviation(quotas, total)


@given(shares, st.integers(0, 5000))
@settings(deadline=None)
def test_every_unit_is_handed_out_within_one_of_the_quota(some_shares, total):
    units = apportion(some_shares, total)
    assert sum(units) == total
    for unit, share in zip(units, some_shares, strict=True):
        quota = Fraction(share * total, sum(some_shares))
        assert math.floor(quota) <= unit <= math.ceil(quota)


@given(shares, st.integers(0, 5000))
@settings(deadline=None)
def test_order_is_kept_in_both_directions(some_shares, total):
    rising = apportion(sorted(some_shares), total)
    assert rising == sorted(rising)
    if len(set(some_shares)) > 1:
        falling = apportion(sorted(some_shares, reverse=True), total)
        assert falling == rising[::-1]


@pytest.mark.parametrize(
    ("tied_shares", "total", "expected"),
    [([3, 2, 2, 1], 4, [2, 1, 1, 0]), ([1, 3, 3, 5], 6, [0, 1, 2, 3]), ([2, 1, 1], 2, [1, 1, 0])],
)
@pytest.mark.parametrize("scale", [1 / 3, 1.0])
def test_a_last_bit_in_the_shares_changes_nothing(tied_shares, total, expected, scale):
    moves = (lambda x: math.nextafter(x, 0), lambda x: x, lambda x: math.nextafter(x, math.inf))
    for chosen in itertools.product(moves, repeat=len(tied_shares)):
        nudged = [move(share * scale) for move, share in zip(chosen, tied_shares, strict=True)]
        assert apportion(nudged, total) == expected


@pytest.mark.parametrize(
    ("bad_shares", "total", "message"),
    [
        ([1.0, -0.5], 4, "make all of them 0 or more"),
        ([1.0], -1, "make all of them 0 or more"),
        ([0.0, 0.0], 3, "make at least one share positive"),
        ([], 3, "make at least one share positive"),
    ],
)
def test_impossible_splits_are_refused(bad_shares, total, message):
    with pytest.raises(ConfigError, match=message):
        apportion(bad_shares, total)


@pytest.mark.parametrize(
    ("value", "expected"), [(0, 0), (0.49, 0), (0.5, 1), (2.5, 3), (1.15 * 10, 12), (0.7 * 45, 32), (7, 7)]
)
def test_nearest_rounds_halves_up_even_where_floats_fall_short(value, expected):
    assert nearest(value) == expected
