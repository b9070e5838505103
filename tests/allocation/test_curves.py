"""Shapes against closed forms worked by hand and the properties that their sources state."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlm_repro.allocation.curves import CURVES
from tlm_repro.errors import ConfigError

TAPERS = ("linear", "cosine", "sigmoid")


def shape(name: str, layers: int, **parameters) -> list[float]:
    return CURVES[name].multipliers(layers, **parameters)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("linear", [1.5, 1.25, 1.0, 0.75, 0.5]),
        ("cosine", [1.5, 1 + math.sqrt(2) / 4, 1.0, 1 - math.sqrt(2) / 4, 0.5]),
        # 1 / (1 + e^−5), 1 / (1 + e^−2.5), 1/2, … from tables of the logistic function
        ("sigmoid", [1.4933071491, 1.4241418200, 1.0, 0.5758581800, 0.5066928509]),
    ],
)
def test_taper_at_quarters_of_depth(name, expected):
    assert shape(name, 5) == pytest.approx(expected, abs=1e-9)


def test_cosine_at_thirds_of_depth_is_rational():
    assert shape("cosine", 4) == pytest.approx([1.5, 1.25, 0.75, 0.5])
    assert shape("cosine", 4, start=1.75, end=0.25) == pytest.approx([1.75, 1.375, 0.625, 0.25])


@given(st.sampled_from(TAPERS), st.integers(2, 60), st.floats(1, 2))
def test_tapers_are_antisymmetric_about_mid_depth_and_never_rise(name, layers, start):
    values = shape(name, layers, start=start, end=2 - start)
    for first, last in zip(values, values[::-1], strict=True):
        assert first + last == pytest.approx(2)
    assert all(left >= right - 1e-12 for left, right in itertools.pairwise(values))


@given(st.sampled_from(("openelm", "vanilla-reversed")), st.integers(2, 60), st.floats(0, 5), st.floats(0, 5))
def test_linear_scalings_never_leave_the_interval_of_their_ends(name, layers, start, end):
    values = shape(name, layers, start=start, end=end)
    assert (values[0], values[-1]) == (start, end)
    low, high = sorted((start, end))
    assert all(max(low - 1e-12, 0) <= value <= high + 1e-12 for value in values)


def test_sharpness_bends_the_sigmoid_from_a_line_to_a_step():
    gentle = shape("sigmoid", 6, sharpness=1e-6)
    assert gentle == pytest.approx([1.0] * 6, abs=1e-6)
    assert shape("sigmoid", 6, sharpness=5000.0) == pytest.approx([1.5] * 3 + [0.5] * 3)


def test_uniform_is_one_everywhere():
    assert shape("uniform", 1) == [1.0]
    assert shape("uniform", 7) == [1.0] * 7


def test_thirds_gives_each_group_its_multiplier():
    assert shape("thirds", 6) == [1.5, 1.5, 1.0, 1.0, 0.5, 0.5]
    assert shape("thirds", 3, multipliers=(0.75, 1.5, 0.75)) == [0.75, 1.5, 0.75]


def test_reverse_is_the_cosine_taper_read_backwards():
    assert shape("reverse", 9) == pytest.approx(shape("cosine", 9)[::-1])
    assert shape("reverse", 9, start=0.25, end=1.75) == pytest.approx(shape("cosine", 9, start=1.75, end=0.25)[::-1])


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [("openelm", 0.5, 4.0), ("vanilla", 1.0, 4.0), ("vanilla-reversed", 4.0, 0.5), ("delight", 1.0, 2.0)],
)
def test_linear_scalings_run_between_their_published_ends_in_equal_steps(name, first, last):
    values = shape(name, 8)
    assert (values[0], values[-1]) == pytest.approx((first, last))
    steps = [right - left for left, right in itertools.pairwise(values)]
    assert steps == pytest.approx([(last - first) / 7] * 7)


def test_framed_rises_inside_a_frame_of_the_widest():
    assert shape("framed", 8) == pytest.approx([4.0, 0.5, 1.2, 1.9, 2.6, 3.3, 4.0, 4.0])


def test_crown_peaks_on_the_two_middle_layers():
    assert shape("crown", 8) == pytest.approx([0.5, 1.6, 2.7, 3.8, 3.8, 2.7, 1.6, 0.5])
    assert shape("crown", 7) == pytest.approx([0.5, 1.6, 2.7, 3.8, 2.7, 1.6, 0.5])
    assert shape("crown", 3, edge=1.0, peak=2.0) == pytest.approx([1.0, 2.0, 1.0])


@pytest.mark.parametrize(
    ("layers", "before", "filled", "after"), [(10, 1, 7, 2), (20, 3, 14, 3), (24, 3, 17, 4), (1, 0, 1, 0)]
)
def test_middle_leaves_thirty_per_cent_of_the_layers_bare(layers, before, filled, after):
    assert shape("middle", layers) == [0.0] * before + [1.0] * filled + [0.0] * after


def test_v_shape_is_narrowest_at_three_quarters_and_geometric_on_both_sides():
    values = shape("v-shape", 16)
    assert values.index(min(values)) == 11  # layer 12 of 16, counted from 1
    assert values[11] == pytest.approx(0.3)
    assert values[0] == values[-1] == 1.0
    falling = [right / left for left, right in itertools.pairwise(values[:12])]
    rising = [right / left for left, right in itertools.pairwise(values[11:])]
    assert falling == pytest.approx([0.3 ** (1 / 11)] * 11)
    assert rising == pytest.approx([0.3 ** (-1 / 4)] * 4)


@given(st.integers(3, 40), st.floats(0.01, 0.99))
def test_v_shape_has_its_waist_inside_whatever_the_depth(layers, position):
    values = shape("v-shape", layers, position=position)
    assert 0 < values.index(min(values)) < layers - 1
    assert min(values) == pytest.approx(0.3)


@pytest.mark.parametrize("name", CURVES)
def test_every_schedule_works_at_its_least_depth_and_says_so_below(name):
    schedule = CURVES[name]
    values = schedule.multipliers(schedule.minimum_layers)
    assert len(values) == schedule.minimum_layers
    assert all(math.isfinite(value) for value in values)
    with pytest.raises(ConfigError, match=f"'{name}' needs at least {schedule.minimum_layers} layers"):
        schedule.multipliers(schedule.minimum_layers - 1)


@pytest.mark.parametrize("name", CURVES)
def test_every_schedule_names_its_source_and_suits_a_run_id(name):
    schedule = CURVES[name]
    assert schedule.name == name
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert schedule.title
    assert schedule.source
    assert all(parameter.meaning for parameter in schedule.parameters.values())
    if schedule.pinned_ends:
        assert schedule.defaults["start"] + schedule.defaults["end"] == 2


@pytest.mark.parametrize(
    ("name", "layers", "parameters", "message"),
    [
        ("sigmoid", 8, {"sharpness": 0.0}, "sharpness 0.0 must be above 0"),
        (
            "reverse",
            8,
            {"start": 1.5, "end": 0.5},
            "start 1.5 can't exceed end 0.5: swap them, or use schedule 'cosine'",
        ),
        ("thirds", 8, {}, "divisible by 3, not 8: use 6 or 9"),
        ("thirds", 6, {"multipliers": (1.5, 1.0, 1.0)}, "average to 1.16667, but they must average to 1"),
        ("middle", 8, {"fraction": 0.0}, "fraction 0.0 must be above 0 and at most 1"),
        ("middle", 8, {"fraction": 1.5}, "fraction 1.5 must be above 0 and at most 1"),
        ("v-shape", 8, {"bottleneck": 0.0}, "bottleneck 0.0 must be above 0"),
        ("v-shape", 8, {"position": 1.0}, "position 1.0 must lie between 0 and 1"),
    ],
)
def test_unusable_parameters_are_refused(name, layers, parameters, message):
    with pytest.raises(ConfigError, match=message):
        shape(name, layers, **parameters)
