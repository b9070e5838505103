import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlm_repro.architectures.hope_attention import HopeOptions, split_width
from tlm_repro.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "periods", "rate", "fast"),
    [
        ({}, (1, 2, 4, 8), None, 0),
        ({"update": "optimizer", "periods": None}, (1, 2, 4, 8), None, 0),
        ({"periods": [8, 1]}, (8, 1), None, 0),
        ({"update": "in_context"}, (64, 256, 1024, 0), 1e-4, 3),
        ({"update": "in_context", "periods": [16, 16, 0], "max_learning_rate": 0.2}, (16, 16, 0), 0.2, 2),
        ({"update": "in_context", "periods": [0]}, (0,), 1e-4, 0),
    ],
)
def test_what_is_left_out_gets_the_values_of_the_mode(
    given: dict[str, Any], periods: tuple[int, ...], rate: float | None, fast: int
) -> None:
    options = HopeOptions.from_values(given, "here")
    assert (options.periods, options.max_learning_rate, options.fast_levels) == (periods, rate, fast)
    assert HopeOptions.from_json(options.to_json()) == options


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"update": "sometimes"}, r"update: Input should be 'optimizer' or 'in_context' \(seen: 'sometimes'\)"),
        ({"update": ["in_context"]}, "update: Input should be"),
        ({"periods": []}, "periods: no level is left"),
        ({"periods": [1, 0]}, "a period of 0 optimiser steps"),
        ({"periods": [1, -2]}, "a period of -2 optimiser steps"),
        ({"update": "in_context", "periods": []}, "no level is left"),
        ({"update": "in_context", "periods": [4, 8]}, "the last level has the period 8: it must be static"),
        ({"update": "in_context", "periods": [8, 4, 0]}, "none is shorter than the one before"),
        ({"update": "in_context", "periods": [0, 4, 0]}, "periods are tokens, 1 or more"),
        ({"update": "in_context", "periods": [-4, 4, 0]}, "periods are tokens, 1 or more"),
        ({"update": "in_context", "max_learning_rate": 0}, "max_learning_rate: Input should be greater than 0"),
        ({"max_learning_rate": 0.1}, "max_learning_rate: only levels that change in context have one"),
        ({"period": [1]}, "period: Extra inputs are not permitted"),
    ],
)
def test_hope_options_that_do_not_fit_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        HopeOptions.from_values(given, "here")


@pytest.mark.parametrize(
    ("width", "levels", "parts"),
    [
        (3712, 4, (928, 928, 928, 928)),
        (96, 4, (24, 24, 24, 24)),
        (40, 4, (16, 8, 8, 8)),
        (24, 4, (6, 6, 6, 6)),  # less than 8 for each
        (77, 4, (20, 19, 19, 19)),
        (5, 5, (1,) * 5),
        (7, 1, (7,)),
    ],
)
def test_widths_split_as_written_by_hand(width: int, levels: int, parts: tuple[int, ...]) -> None:
    assert split_width(width, levels) == parts


@given(st.integers(1, 5000), st.integers(1, 12))
def test_split_widths_are_exact_and_even(width: int, levels: int) -> None:
    if width < levels:
        with pytest.raises(ConfigError, match=f"{width} can't be split over {levels} levels"):
            split_width(width, levels)
        return
    parts = split_width(width, levels)
    eights = width % 8 == 0 and width >= 8 * levels
    assert (sum(parts), len(parts), min(parts) >= 1) == (width, levels, True)
    assert max(parts) - min(parts) in ((0, 8) if eights else (0, 1))
    assert list(parts) == sorted(parts, reverse=True)
    assert not eights or all(part % 8 == 0 for part in parts)


@pytest.mark.process
def test_options_need_no_torch() -> None:
    code = "import sys, tlm_repro.architectures.registry; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
