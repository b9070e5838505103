"""The scorer against RULER's own definition, and intervals against an independent implementation."""

import pytest

from tlm_repro.evaluation.needle.samples import NeedleSample
from tlm_repro.evaluation.needle.scores import matches, mean_metric, summarise

CASES = [
    ("exact", " 1234567.", ("1234567",)),
    ("missing", " 7654321.", ("1234567",)),
    ("inside a longer number", "91234567890", ("1234567",)),
    ("case", "it is 6F9619FF-8B86-4011-B42D-00C04FC964FF", ("6f9619ff-8b86-4011-b42d-00c04fc964ff",)),
    ("cut in two", "123 4567", ("1234567",)),
    ("empty", "", ("1234567",)),
    ("four of four", "1000001, 1000002, 1000003, and 1000004", ("1000001", "1000002", "1000003", "1000004")),
    ("one of four", "1000001", ("1000001", "1000002", "1000003", "1000004")),
    ("three of four, in another order", "1000004 1000002 1000001", ("1000001", "1000002", "1000003", "1000004")),
    ("none of four", "1000009", ("1000001", "1000002", "1000003", "1000004")),
]


def string_match_all(preds, refs):
    """RULER's metric, as scripts/eval/synthetic/constants.py there defines it, in percent."""
    total = 0.0
    for pred, ref in zip(preds, refs, strict=True):
        total += sum(1.0 if one.lower() in pred.lower() else 0.0 for one in ref) / len(ref)
    return round(total / len(preds) * 100, 2)


def samples_of(cases):
    return [
        NeedleSample("multiquery", 4096, number, "", 1, values, values, tuple(n / 10 for n in range(len(values))))
        for number, (_, _, values) in enumerate(cases)
    ]


@pytest.mark.parametrize("case", CASES, ids=[name for name, *_ in CASES])
def test_a_case_scores_as_ruler_scores_it(case):
    _, answer, values = case
    hits = matches(answer, values)
    assert 100 * sum(hits) / len(hits) == string_match_all([answer], [values])


def test_the_mean_of_a_cell_is_ruler_s():
    answers, values = [answer for _, answer, _ in CASES], [values for *_, values in CASES]
    metrics, _ = summarise(samples_of(CASES), answers)
    assert round(100 * metrics["niah_multiquery_4096"].value, 2) == string_match_all(answers, values)
    assert metrics["niah_multiquery_4096"].items == len(CASES)


def test_needles_are_counted_where_they_were_hidden():
    cases = [("", "1000001 1000003", ("1000001", "1000002", "1000003")), ("", "1000002", ("1000002",))]
    _, depths = summarise(samples_of(cases), [answer for _, answer, _ in cases])
    assert depths["niah_multiquery_4096"] == [
        {"depth": 0.0, "found": 2, "needed": 2},
        {"depth": 0.1, "found": 0, "needed": 1},
        {"depth": 0.2, "found": 1, "needed": 1},
    ]


def test_the_standard_error_is_that_of_a_mean():
    # Deviations from 0.5: −0.5, 0.5, 0, 0; variance 0.5/3; error √(0.5/3/4).
    metric = mean_metric([0.0, 1.0, 0.5, 0.5])
    assert (metric.value, metric.items) == (0.5, 4)
    assert metric.stderr == pytest.approx((0.5 / 12) ** 0.5)
    assert mean_metric([1.0]).stderr is None
