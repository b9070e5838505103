"""Layer widths against hand-worked cases, formulas written independently and an exhaustive search."""

import itertools
import json
import math
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tlm_repro.allocation.curves import CURVES
from tlm_repro.allocation.widths import label, layer_widths, summary
from tlm_repro.errors import ConfigError

RATIOS = (1.25, 1.375, 1.5, 1.625, 1.75)
RISING = ("reverse", "openelm", "vanilla", "delight")

tapers = st.sampled_from(("linear", "cosine", "sigmoid"))
depths = st.integers(2, 64)
units_of_width = st.integers(1, 520)
starts = st.one_of(st.sampled_from(RATIOS), st.integers(100, 200).map(lambda hundredths: hundredths / 100))


def formula(schedule: str, x: float, s: float, e: float) -> float:
    """The paper's three curves in other but equal forms."""
    if schedule == "linear":
        return (1 - x) * s + x * e
    if schedule == "cosine":
        return e + (s - e) * math.cos(math.pi * x / 2) ** 2
    return (s + e * math.exp(10 * (x - 0.5))) / (1 + math.exp(10 * (x - 0.5)))


def curve(schedule: str, layers: int, width: int, start: float) -> list[float]:
    """The curve in units of width, its ends at start × width and (2 − start) × width."""
    s, e = start * width, (2 - start) * width
    return [s, *(formula(schedule, layer / (layers - 1), s, e) for layer in range(1, layers - 1)), e]


def falls(widths) -> bool:
    return all(left >= right for left, right in itertools.pairwise(widths))


@pytest.mark.parametrize(
    ("schedule", "layers", "width", "parameters", "expected"),
    [
        # ratios 1.5, 1, 0.5
        ("cosine", 3, 128, {}, (192, 128, 64)),
        # 1.5, 1.25, 0.75, 0.5 = 12, 10, 6, 4 units
        ("cosine", 4, 128, {}, (192, 160, 96, 64)),
        # 12, 9.33, 6.67, 4 units: the second remainder is larger
        ("linear", 4, 128, {}, (192, 144, 112, 64)),
        # logistic(±5/3) = 0.8411, 0.1589: 12, 10.73, 5.27, 4 units
        ("sigmoid", 4, 128, {}, (192, 176, 80, 64)),
        # 14, 11.33, 8.67, 6: 13.75 and 6.25 units at the ends
        ("linear", 4, 160, {"start": 1.375, "end": 0.625}, (224, 176, 144, 96)),
        # 13.5 and 4.5 units: a half goes up at the wide end, down at the narrow one
        ("linear", 3, 144, {}, (224, 144, 64)),
        ("reverse", 3, 144, {}, (64, 144, 224)),
        # the same with 12.5 and 7.5 units
        ("linear", 3, 160, {"start": 1.25, "end": 0.75}, (208, 160, 112)),
        # 12.4 → 12 and 7.6 → 8 units at the ends; the second layer, 12.24, may not be rounded above the first
        ("cosine", 5, 160, {"start": 1.24, "end": 0.76}, (192, 192, 160, 128, 128)),
        ("cosine", 2, 128, {}, (192, 64)),
        ("cosine", 3, 128, {"start": 2, "end": 0}, (256, 128, 0)),
        ("thirds", 6, 128, {}, (192, 192, 128, 128, 64, 64)),
        ("thirds", 3, 128, {"multipliers": [0.75, 1.5, 0.75]}, (96, 192, 96)),
        ("uniform", 1, 48, {}, (48,)),
        # 0.5, 4 of mean 2.25, 16 units in all: 1.78, 14.22
        ("openelm", 2, 128, {}, (32, 224)),
        # 1 and 2 of mean 1.5: 10.67, 21.33 units
        ("delight", 2, 256, {}, (176, 336)),
        # 4, 0.5, 4, 4 of 12.5, 32 units: 10.24, 1.28, 10.24, 10.24; the spare unit goes to the largest remainder
        ("framed", 4, 128, {}, (160, 32, 160, 160)),
        # 0.5, 3.8, 3.8, 0.5 of 8.6, 43 × 4 units
        ("crown", 4, 688, {}, (160, 1216, 1216, 160)),
        # 14 units over two of three layers
        ("middle", 3, 96, {}, (144, 144, 0)),
        # 1, 0.3, 1 of 2.3, 69 units: 30, 9, 30
        ("v-shape", 3, 368, {}, (480, 144, 480)),
    ],
)
def test_hand_worked_cases(schedule, layers, width, parameters, expected):
    assert layer_widths(schedule, layers, width, **parameters) == expected


def test_the_440m_model_of_the_paper():
    widths = layer_widths("cosine", 24, 3712, start=1.5, end=0.5)
    assert widths[0] == 5568
    assert widths[-1] == 1856
    assert sum(widths) == 24 * 3712
    assert widths == layer_widths("cosine", 24, 3712)


@given(tapers, depths, units_of_width, starts)
@settings(max_examples=300)
def test_tapers_keep_budget_step_order_and_curve(schedule, layers, units, start):
    width = 16 * units
    widths = layer_widths(schedule, layers, width, start=start, end=2 - start)
    assert sum(widths) == layers * width
    assert all(each % 16 == 0 and each >= 0 for each in widths)
    assert falls(widths)
    for each, wanted in zip(widths, curve(schedule, layers, width, start), strict=True):
        assert abs(each - wanted) < 16
    assert abs(widths[0] - start * width) <= 8 + 1e-6
    assert abs(widths[-1] - (2 - start) * width) <= 8 + 1e-6


@given(tapers, depths, st.integers(1, 64), st.sampled_from(RATIOS))
def test_ends_are_exact_where_the_width_is_a_multiple_of_128(schedule, layers, multiple, start):
    width = 128 * multiple
    widths = layer_widths(schedule, layers, width, start=start, end=2 - start)
    assert (widths[0], widths[-1]) == (start * width, (2 - start) * width)


@given(tapers, st.integers(2, 6), st.integers(1, 8), starts)
@settings(max_examples=150)
def test_no_other_falling_widths_with_these_ends_deviate_less(schedule, layers, units, start):
    width = 16 * units
    widths = layer_widths(schedule, layers, width, start=start, end=2 - start)
    wanted = curve(schedule, layers, width, start)

    def deviation(candidate):
        return math.fsum(abs(each - goal) for each, goal in zip(candidate, wanted, strict=True))

    steps = range(widths[0], widths[-1] - 1, -16)
    candidates = [
        (widths[0], *inner, widths[-1])
        for inner in itertools.combinations_with_replacement(steps, layers - 2)
        if sum(inner) == (layers - 2) * width
    ]
    assert deviation(widths) == pytest.approx(min(map(deviation, candidates)), abs=1e-6)


@given(st.sampled_from(sorted(CURVES)), st.integers(2, 20), st.integers(1, 80))
@settings(max_examples=300)
def test_every_schedule_keeps_the_budget(schedule, thirds_of_layers, multiple):
    layers, width = 3 * thirds_of_layers, 32 * multiple
    widths = layer_widths(schedule, layers, width)
    assert len(widths) == layers
    assert sum(widths) == layers * width
    assert all(each % 16 == 0 and each >= 0 for each in widths)
    shape = CURVES[schedule]
    if not shape.pinned_ends:
        multipliers = shape.multipliers(layers)
        scale = width * layers / math.fsum(multipliers)
        assert all(abs(each - scale * value) < 16 for each, value in zip(widths, multipliers, strict=True))
        assert all(each == 0 for each, value in zip(widths, multipliers, strict=True) if value == 0)
    if schedule in RISING:
        assert falls(widths[::-1])
    if schedule == "vanilla-reversed":
        assert falls(widths)


@given(depths, units_of_width, starts)
def test_reverse_mirrors_the_cosine_taper(layers, units, start):
    taper = layer_widths("cosine", layers, 16 * units, start=start, end=2 - start)
    assert layer_widths("reverse", layers, 16 * units, start=2 - start, end=start) == taper[::-1]


@given(st.integers(1, 100), units_of_width)
def test_uniform_is_constant(layers, units):
    assert layer_widths("uniform", layers, 16 * units) == (16 * units,) * layers


def test_equal_ends_give_the_uniform_model():
    assert layer_widths("cosine", 12, 208, start=1, end=1) == (208,) * 12


@pytest.mark.parametrize(
    ("schedule", "layers", "width", "parameters", "message"),
    [
        (
            "cosin",
            24,
            128,
            {},
            "unknown schedule 'cosin'; did you mean 'cosine'? Choose one of uniform, linear, cosine",
        ),
        ("V_shape", 24, 128, {}, "unknown schedule 'V_shape'; did you mean 'v-shape'?"),
        ("xyz", 24, 128, {}, "unknown schedule 'xyz': choose one of uniform"),
        (
            "cosine",
            24,
            128,
            {"strat": 1.5},
            "'cosine': unknown parameter 'strat'; did you mean 'start'? Choose one of start, end",
        ),
        ("cosine", 24, 128, {"sharpness": 8}, "'cosine': unknown parameter 'sharpness': choose one of start, end"),
        ("uniform", 24, 128, {"start": 1}, "'uniform' takes no parameters: remove 'start'"),
        ("cosine", 24, 100, {}, "width 100 is not a multiple of 16: use 96 or 112"),
        ("cosine", 24, 8, {}, "width 8 is not a multiple of 16: use 16"),
        ("cosine", 24, 0, {}, "width is 0: give a multiple of 16 from 16 up"),
        ("cosine", 24, 128.0, {}, "width is 128.0: give a multiple of 16"),
        ("cosine", 0, 128, {}, "layers is 0: give a whole number from 1 up"),
        ("cosine", 2.5, 128, {}, "layers is 2.5: give a whole number"),
        ("cosine", True, 128, {}, "layers is True: give a whole number"),
        ("cosine", 1, 128, {}, "'cosine' needs at least 2 layers, not 1"),
        (
            "cosine",
            24,
            128,
            {"start": 1.5, "end": 0.6},
            "start 1.5 and end 0.6 average to 1.05, but the ratios must average to 1: use end 0.5 or start 1.4",
        ),
        ("linear", 24, 128, {"start": 1.75}, "start 1.75 and end 0.5 average to 1.125"),
        (
            "linear",
            24,
            128,
            {"start": 3, "end": 0.5},
            "average to 1.75, but the ratios must average to 1: use start 1.5",
        ),
        ("linear", 24, 128, {"start": 3, "end": 3}, "use two ratios that add up to 2"),
        ("linear", 24, 128, {"start": 2.5, "end": -0.5}, "end is -0.5: give a number from 0 to 1000000"),
        ("linear", 24, 128, {"start": float("nan")}, "start is nan: give a number"),
        ("linear", 24, 128, {"start": float("inf")}, "start is inf: give a number"),
        ("linear", 24, 128, {"start": "1.5"}, "start is '1.5': give a number"),
        ("linear", 24, 128, {"start": True}, "start is True: give a number"),
        ("sigmoid", 24, 128, {"sharpness": 0}, "sharpness 0.0 must be above 0"),
        ("thirds", 8, 128, {}, "divisible by 3, not 8: use 6 or 9"),
        ("thirds", 2, 128, {}, "'thirds' needs at least 3 layers, not 2"),
        ("thirds", 6, 128, {"multipliers": [1.5, 1.0]}, "multipliers is [1.5, 1.0]: give 3 numbers, for example"),
        ("thirds", 6, 128, {"multipliers": 1.0}, "multipliers is 1.0: give 3 numbers"),
        ("thirds", 6, 128, {"multipliers": [2.5, 1.0, -0.5]}, "multipliers is -0.5: give a number from 0"),
        ("thirds", 6, 128, {"multipliers": [1.5, 1.0, 1.0]}, "average to 1.16667, but they must average to 1"),
        (
            "thirds",
            6,
            48,
            {"multipliers": [0.75, 1.5, 0.75]},
            "multiplier 0.75 × width 48 is 36, not a multiple of 16: use a width that is a multiple of 64",
        ),
        ("thirds", 6, 3712, {"multipliers": [1.3, 1.0, 0.7]}, "multiple of 160, or other multipliers"),
        ("openelm", 6, 128, {"start": 0, "end": 0}, "'openelm' gives every layer width 0: raise one of start, end"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_remedy(schedule, layers, width, parameters, message):
    with pytest.raises(ConfigError) as caught:
        layer_widths(schedule, layers, width, **parameters)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("schedule", "parameters", "expected"),
    [
        ("uniform", {}, "uniform"),
        ("cosine", {}, "cosine-1.5-0.5"),
        ("cosine", {"start": 1.5, "end": 0.5}, "cosine-1.5-0.5"),
        ("linear", {"start": 1.25, "end": 0.75}, "linear-1.25-0.75"),
        ("linear", {"start": 1, "end": 1}, "linear-1.0-1.0"),
        ("sigmoid", {"start": 1.375, "end": 0.625}, "sigmoid-1.375-0.625"),
        ("cosine", {"start": 2, "end": -0.0}, "cosine-2.0-0.0"),
        ("sigmoid", {"sharpness": 10}, "sigmoid-1.5-0.5"),
        ("sigmoid", {"sharpness": 8}, "sigmoid-1.5-0.5-k8"),
        ("thirds", {}, "thirds-1.5-1.0-0.5"),
        ("thirds", {"multipliers": [0.75, 1.5, 0.75]}, "thirds-0.75-1.5-0.75"),
        ("reverse", {}, "reverse"),
        ("reverse", {"start": 0.25, "end": 1.75}, "reverse-start0.25-end1.75"),
        ("openelm", {"start": 0.5, "end": 3}, "openelm-end3"),
        ("crown", {"peak": 3.8}, "crown"),
        ("v-shape", {"bottleneck": 0.00001}, "v-shape-bottleneck0.00001"),
    ],
)
def test_labels_are_canonical(schedule, parameters, expected):
    assert label(schedule, **parameters) == expected


def test_labels_refuse_what_widths_refuse():
    with pytest.raises(ConfigError, match="must average to 1"):
        label("cosine", start=1.5, end=0.6)
    with pytest.raises(ConfigError, match="did you mean 'linear'"):
        label("liner")


def test_summary_counts_what_moved():
    result = summary((192, 160, 96, 64), 128, model_width=10)
    assert result.total == 512
    assert result.mean == 128
    assert result.ratios == (1.5, 1.25, 0.75, 0.5)
    assert result.moved_width == 64 + 32
    assert result.moved_parameters == 3 * 10 * (64 + 32)
    assert result.layers_without_mlp == 0
    assert summary((128, 128), 128).moved_width == 0
    assert summary((128, 128), 128).moved_parameters is None


def test_summary_is_plain_json():
    result = json.loads(json.dumps(summary((192, 64), 128).to_dict()))
    assert result["widths"] == [192, 64]
    assert result["ratios"] == [1.5, 0.5]
    assert result["moved_width"] == 64
    assert result["moved_parameters"] is None


def test_summary_text_lists_each_layer_and_the_totals():
    lines = summary(layer_widths("cosine", 4, 2048), 2048, model_width=512).to_text().splitlines()
    assert lines[1].split() == ["0", "3072", "1.500", "#" * 40]
    assert lines[3].split() == ["2", "1536", "0.750", "#" * 20]
    assert lines[5] == "sum 8,192 = 4 layers × 2,048; uniform 2,048"
    assert lines[6] == "moved: 1,536 of width (18.8% of the budget) = 2,359,296 parameters at model width 512"
    assert "layers without an MLP: 1" in summary((144, 144, 0), 96).to_text().splitlines()


@pytest.mark.process
def test_widths_need_neither_torch_nor_numpy():
    code = "import sys, tlm_repro.allocation.widths; print(*{'torch', 'numpy', 'transformers'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == ""
