"""Every table goes through pdflatex, all in one document, as an author would put them into a paper."""

import itertools
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import record_files
from exhibits import numbers

from tlm_repro.records.evaluation import TrainingCurve
from tlm_repro.records.novelty import Novelty
from tlm_repro.records.view import ExperimentView, View
from tlm_repro.reporting import cost, formats, registry, results
from tlm_repro.reporting.evidence import Evidence
from tlm_repro.reporting.sheets import Sheet
from tlm_repro.spec.metrics import ACCURACIES

ASKED = "TLM_TEX_TESTS" in os.environ
DOCUMENT = r"""\documentclass{article}
\usepackage{booktabs}
\usepackage[table]{xcolor}
\usepackage[landscape,margin=1cm]{geometry}
\begin{document}
%s
\end{document}
"""
SWEEP = [f"{name}-{start}-{2 - start}" for name in ("cosine", "linear") for start in (1.25, 1.375, 1.5, 1.75)]
LABELS = {
    "motivation": {"uniform": "uniform", "wider-early": "thirds-1.5-1.0-0.5", "wider-late": "thirds-0.5-1.0-1.5"},
    "sweep": {label: label for label in ("uniform", *SWEEP)},
    "main": {"uniform": "uniform", "tapered": "cosine-1.5-0.5"},
    "allocations": {"uniform": "uniform", "crown": "crown", "middle-70": "middle"},
}
WIDTHS = {"crown": (32, 96, 96, 32), "middle-70": (0, 128, 128, 0)}


def measured() -> tuple[results.Results, dict[str, ExperimentView]]:
    """Two seeds of every cell, with losses, zero-shot scores and a training curve."""
    rows, models, held, views = [], {}, {}, {}
    for experiment, labels in LABELS.items():
        cells = []
        for (place, (label, allocation)), seed in itertools.product(enumerate(labels.items()), range(2)):
            run = f"{experiment}_{label}-{seed}"
            names = {"architecture": "gated_attention", "scale": "440m", "allocation": allocation, "seed": seed}
            cells.append({**names, **numbers(allocation), "label": label, "run": run, "width": 64, "layers": 4})
            loss = 2.8 - 0.01 * place + 0.003 * place * seed
            scores = {"val_loss": loss, "val_ppl": 16.0, "wikitext_ppl": 3e5, "lambada_ppl": 20.0 + place}
            scores |= dict.fromkeys((*ACCURACIES, "avg"), 0.5 + place / 50)
            for metric, value in scores.items():
                suite = "validation" if metric.startswith("val") else "zero_shot"
                found = {"metric": metric, "value": value, "stderr": 0.01, "items": 9, "suite": suite}
                rows.append({**names, "run": run, **found})
            facts = {"parameters": 1000 - place, "forward_flops": 1, "training_flops": 800, "tokens": 800, "layers": 4}
            models[run] = {**facts, "run": run, "model_width": 8, "intermediate_sizes": WIDTHS.get(label, (64,) * 4)}
            steps = range(1, 9)
            losses = [loss + 1 / step for step in steps]
            content = {"step": list(steps), "tokens": [100 * step for step in steps], "loss": losses}
            content["validation"] = {"tokens": [800], "loss": [loss]}
            held[run] = TrainingCurve.model_validate(content)
        views[experiment] = ExperimentView.model_validate(
            {"experiment": experiment, "toy": True, "config": "100 % & more_", "cells": cells}
        )
    return replace(results.frames(rows, list(models.values())), curves=held), views


def novelty(allocation: str | None, seed: int = 0) -> Novelty:
    labels = {"architecture": "transformer", "scale": "760m", "allocation": allocation, "seed": seed}
    entries = [{"mean": 0.1 * layer + seed / 100, "stderr": 0.01} for layer in range(6)]
    content: dict[str, Any] = {
        "schema": 1,
        "kind": "novelty",
        "model": {"name": "a_model & more", "run": None, "layers": 6, "parameters": 1},
        "tokens": 4096,
        "block": entries,
        "mlp": entries,
        "norm_ratio": entries,
        "correlation": {"block": {"r": 0.5, "layers": 4}, "mlp": {"r": None, "layers": 4}},
        "intervals": {"block": [0.4, 0.6], "mlp": None, "difference": None},
    }
    if allocation:
        content["model"]["run"] = {"id": f"run-{allocation}-{seed}", **labels}
    return record_files.novelty(content)


@pytest.fixture
def tables(needle_files: Any) -> dict[str, tuple[pd.DataFrame, Sheet]]:
    """Table → its numbers and its sheet, for each that there is."""
    found, views = measured()
    paths, view = needle_files({"niah_single_1_8192": (0.3, 0.9), "niah_multiquery_4096": (0.5, 0.4)})
    models = [
        novelty(None),
        *(novelty(name, seed) for name in ("uniform", "cosine-1.5-0.5") for seed in range(2)),
    ]
    evidence = Evidence(found, views, models, toy=True)
    content = {"kind": "view", "config": "test", "toy": False, "experiments": [view], "files": paths}
    needles = Evidence.load(View.model_validate(content))
    tables = {}
    for exhibit in registry.builtin():
        if exhibit.has_table:
            frame = exhibit.table(needles if "niah" in exhibit.suites else evidence)
            tables[exhibit.name] = (frame, exhibit.sheet(frame))
    costs = cost.table(needles.evaluations, toy=True)
    return tables | {"cost": (costs, cost.sheet("cost", costs))}


def test_every_table_is_tried(tables: dict[str, tuple[pd.DataFrame, Sheet]]):
    assert set(tables) == {exhibit.name for exhibit in registry.builtin() if exhibit.has_table} | {"cost"}
    assert not any(frame.empty for frame, _ in tables.values())


@pytest.mark.process
@pytest.mark.skipif(
    not (ASKED or shutil.which("pdflatex")), reason="pdflatex isn't installed: `make test-tex` installs it"
)
def test_pdflatex_sets_every_table(tables: dict[str, tuple[pd.DataFrame, Sheet]], tmp_path: Path):
    assert shutil.which("pdflatex"), "TLM_TEX_TESTS is set, but pdflatex isn't installed: `make tex`"
    for name, (frame, sheet) in tables.items():
        formats.write(frame, sheet, tmp_path / name)
    inputs = "\n".join(rf"\input{{{name}}}\clearpage" for name in tables)
    (tmp_path / "all.tex").write_text(DOCUMENT % inputs, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=300)
    assert done.returncode == 0, done.stdout[-3000:]
    pages = re.search(r"Output written on all\.pdf \((\d+) pages", done.stdout)
    assert pages is not None
    assert int(pages[1]) == len(tables)
    log = (tmp_path / "all.log").read_text(encoding="utf-8", errors="replace")
    assert "undefined" not in log
    assert "Missing character" not in log


def test_what_latex_would_read_as_a_command_is_escaped():
    text = pd.DataFrame({"a_b": ["50 % & #1", "{x}~^\\"]})
    written = formats.latex(Sheet("t", "100 %", text, text.map(lambda _: ""), ()))
    assert r"50 \% \& \#1" in written
    assert r"a\_b" in written
    assert r"caption{100 \%}" in written
