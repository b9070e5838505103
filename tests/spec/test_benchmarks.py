"""The columns of Table 2, and what each metric is shown in."""

import csv
import importlib.resources

import pytest

from tlm_repro.spec import metrics
from tlm_repro.spec.benchmarks import PAPER_BENCHMARKS, PAPER_TASKS, Benchmark, metric_scale


def test_columns_are_those_of_the_published_table():
    source = importlib.resources.files("tlm_repro.reporting") / "reference" / "table2_main.csv"
    with source.open(encoding="utf-8") as file:
        published = next(csv.reader(file))
    assert published == ["arch", "scale", "allocation", *metrics.MAIN_METRICS]


def test_the_average_is_of_eight_accuracies():
    assert (
        *("lambada_acc", "piqa", "hellaswag", "winogrande", "arc_easy", "arc_challenge", "siqa", "boolq"),
    ) == metrics.ACCURACIES
    assert metrics.PERPLEXITIES == ("val_ppl", "wikitext_ppl", "lambada_ppl")
    assert len(PAPER_TASKS) == 9


@pytest.mark.parametrize(
    ("metric", "scale"),
    [
        ("acc", "percent"),
        ("acc_norm", "percent"),
        ("exact_match,strict-match", "percent"),
        ("word_perplexity", "perplexity"),
        ("bits_per_byte", "plain"),
        ("bleu", "plain"),
    ],
)
def test_the_metric_says_how_a_score_is_shown(metric: str, scale: str):
    assert metric_scale(metric) == scale


def test_headings_have_unit_and_direction():
    assert [benchmark.heading for benchmark in PAPER_BENCHMARKS[:3]] == [
        "WikiText ppl ↓",
        "LAMBADA ppl ↓",
        "LAMBADA % ↑",
    ]
    assert Benchmark("pile", "Pile", "pile_arxiv", "bits_per_byte", "lower").heading == "Pile ↓"
