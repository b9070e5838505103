"""Scores of benchmarks beside the paper's, as reporting reads them."""

import statistics
from pathlib import Path
from typing import Any

import products
import pytest
import yaml
from small_study import study

from tlm_repro.reporting import results
from tlm_repro.spec.metrics import ACCURACIES

ADDITIONAL: list[dict[str, Any]] = [
    {"task": "openbookqa", "metric": "acc_norm", "title": "OpenBookQA", "direction": "higher"},
    {"task": "pile_arxiv", "metric": "bits_per_byte", "title": "arXiv", "direction": "lower", "column": "arxiv"},
]


def test_a_tenth_benchmark_is_read_and_the_average_stays_that_of_the_paper_s_eight(tmp_path: Path):
    raw = study()
    tasks = [
        *("wikitext", "lambada_openai", "piqa", "hellaswag", "winogrande"),
        *("arc_easy", "arc_challenge", "social_iqa", "boolq"),
    ]
    raw["evaluation"]["zero_shot"] = {"source": "hub", "tasks": tasks, "additional": ADDITIONAL}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(raw))
    products.finish(tmp_path)
    loaded = results.load(tmp_path.glob("results/evaluations/*/*.json"))
    runs = loaded.metrics.loc[loaded.metrics["metric"] == "openbookqa", "run"]
    assert len(runs) > 0
    for run in runs:
        scores = {name: loaded.find(run, name) for name in (*ACCURACIES, "openbookqa", "arxiv", "avg")}
        values = {name: measurement.value for name, measurement in scores.items() if measurement is not None}
        assert values["arxiv"] == 20.0
        assert values["avg"] == pytest.approx(statistics.fmean(values[name] for name in ACCURACIES))
