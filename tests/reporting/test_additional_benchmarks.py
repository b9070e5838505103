"""Scores of benchmarks beside the paper's: read, averaged without, and given a column each in Table 2."""

import statistics
from pathlib import Path
from typing import Any

import products
import pytest
import yaml
from small_study import study

from tlm_repro.config.loading import parse
from tlm_repro.config.schema import AdditionalBenchmark
from tlm_repro.records.view import ExperimentView
from tlm_repro.reporting import formats, results
from tlm_repro.reporting.evidence import Evidence
from tlm_repro.reporting.exhibits.main import Main
from tlm_repro.reporting.published import NOT_PUBLISHED
from tlm_repro.reporting.registry import views
from tlm_repro.spec.benchmarks import PAPER_TASKS, Benchmark
from tlm_repro.spec.metrics import ACCURACIES
from tlm_repro.study.grid import expand

ADDITIONAL: list[dict[str, Any]] = [
    {"task": "openbookqa", "metric": "acc_norm", "title": "OpenBookQA", "direction": "higher"},
    {"task": "pile_arxiv", "metric": "bits_per_byte", "title": "arXiv_bits & bytes", "direction": "lower"},
]


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """Table 2's, of the tests' own study with two more benchmarks."""
    folder, raw = tmp_path_factory.mktemp("study"), study()
    raw["evaluation"]["zero_shot"] = {"source": "hub", "tasks": list(PAPER_TASKS), "additional": ADDITIONAL}
    (folder / "config.yaml").write_text(yaml.safe_dump(raw))
    products.finish(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return Evidence.load(views(expand(parse(raw, "config.yaml")))["main"])


def test_the_average_stays_that_of_the_paper_s_eight_accuracies(evidence: Evidence):
    for cell in evidence.views["main"].cells:
        scores = {name: evidence.results.find(cell.run, name) for name in (*ACCURACIES, "openbookqa", "avg")}
        values = {name: measurement.value for name, measurement in scores.items() if measurement is not None}
        assert len(values) == 10
        assert values["avg"] == pytest.approx(statistics.fmean(values[name] for name in ACCURACIES))


def test_each_has_a_column_after_the_average(evidence: Evidence, tmp_path: Path):
    frame = Main().table(evidence)
    level = frame[frame["quantity"] == "level"].iloc[0]
    run = next(cell.run for cell in evidence.views["main"].cells if cell.label == level["label"])
    assert level["openbookqa"] == pytest.approx(100 * evidence.results.find(run, "openbookqa").value)  # type: ignore[union-attr]
    assert (level["pile_arxiv"], level["pile_arxiv_se"]) == (20.0, 0.5)
    sheet = Main().sheet(frame)
    assert list(sheet.text.columns[-3:]) == ["Avg % ↑", "OpenBookQA % ↑", "arXiv_bits & bytes ↓"]
    assert set(sheet.text.loc[sheet.text["Source"] == "paper", "OpenBookQA % ↑"]) == {NOT_PUBLISHED}
    formats.write(frame, sheet, tmp_path / "main")
    header = (tmp_path / "main.csv").read_text().splitlines()[0].split(",")
    assert header.index("avg") < header.index("openbookqa") < header.index("pile_arxiv")
    assert r"arXiv\_bits \& bytes" in (tmp_path / "main.tex").read_text()


@pytest.mark.parametrize(("direction", "tone"), [("higher", "better"), ("lower", "worse")])
def test_its_direction_shades_the_difference_from_uniform(evidence: Evidence, direction: str, tone: str):
    frame = Main().table(evidence)
    change = frame["quantity"] == "difference"
    frame.loc[change, ["openbookqa", "openbookqa_interval"]] = (5.0, 1.0)
    benchmark = AdditionalBenchmark.model_validate(ADDITIONAL[0] | {"direction": direction}).benchmark
    frame.attrs["benchmarks"] = (benchmark,)
    sheet = Main().sheet(frame)
    rows = (sheet.text["Allocation"] == "tapered") & (sheet.text["Source"] == "ours")
    assert set(sheet.tones.loc[rows, benchmark.heading]) == {tone}


def test_a_benchmark_whose_lower_values_are_better_is_shaded_by_that():
    rows, cells = [], []
    for label, value in {"uniform": 2.0, "tapered": 1.0}.items():
        place = {"architecture": "transformer", "scale": "toy", "seed": 0, "run": label, "allocation": label}
        cells.append({**place, "label": label, "width": 64, "layers": 4})
        rows.append({**place, "suite": "zero_shot", "metric": "arxiv", "value": value, "stderr": 0.01, "items": 9})
    view = ExperimentView.model_validate({"experiment": "main", "toy": True, "config": "test", "cells": cells})
    arxiv = Benchmark("arxiv", "arXiv", "pile_arxiv", "bits_per_byte", "lower")
    found = Evidence(results.frames(rows, []), {"main": view}, benchmarks=(arxiv,))
    frame = Main().table(found)
    assert list(frame["arxiv"]) == [2.0, 1.0, -1.0]
    sheet = Main().sheet(frame)
    tapered = sheet.text["Allocation"] == "tapered"
    assert list(sheet.tones.loc[tapered, "arXiv ↓"]) == ["better"]
    assert list(sheet.text.loc[tapered, "arXiv ↓"]) == ["1.0000 ± 0.0100"]
