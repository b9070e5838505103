"""The paper's own numbers, in the form of ours."""

from __future__ import annotations

import math
from importlib import resources
from typing import Any, Literal

from tlm_repro.records.view import Cell, ExperimentView
from tlm_repro.reporting.lazy import pd
from tlm_repro.reporting.results import Results, frames
from tlm_repro.spec.metrics import MAIN_METRICS, PERPLEXITIES

NOT_PUBLISHED = "not published here"
LOSS_RESOLUTION = 0.005  # nats: every published 440M perplexity is exp(loss rounded to 0.01 nat), so losses compare
PAPER_PANEL = f"Paper, 440M Transformer\n(error: rounding, ±{LOSS_RESOLUTION} nat)"  # title of its panels


def reference(name: Literal["table1_sweep", "figure2_motivation", "table2_main"]) -> pd.DataFrame:
    """A published table as printed: perplexities, and accuracies in percent; empty where the number isn't published."""
    source = resources.files("tlm_repro.reporting") / "reference" / f"{name}.csv"
    with source.open(encoding="utf-8") as file:
        return pd.read_csv(file)


def published_loss(perplexity: float) -> float:
    """The loss in nats behind a published 440M perplexity, to the two decimals it is known to."""
    return round(math.log(perplexity), 2)


def reference_losses(name: Literal["table1_sweep", "figure2_motivation"]) -> pd.DataFrame:
    """The paper's table with its losses in the columns of ours."""
    table = reference(name)
    losses = [published_loss(perplexity) for perplexity in table["val_ppl"]]
    return table.assign(val_loss=losses, val_loss_se=LOSS_RESOLUTION)


def published() -> tuple[Results, list[ExperimentView]]:
    """The paper's tables in the form of ours: accuracies as fractions, each value with the resolution of its print.

    A cell has the numbers of its allocation where the paper gives them.
    """
    rows: list[dict[str, Any]] = []
    cells: dict[str, list[Cell]] = {"motivation": [], "sweep": [], "main": []}

    def add(
        experiment: str,
        label: str,
        architecture: str,
        scale: str,
        values: dict[str, tuple[float, float]],
        **numbers: Any,
    ) -> None:
        run = f"published {experiment} {architecture} {scale} {label}"
        labels = {"architecture": architecture, "scale": scale, "allocation": label, "seed": 0}
        curve = "uniform" if label == "uniform" else None
        cell = {"curve": curve, **numbers, **labels, "label": label, "run": run, "width": None, "layers": None}
        cells[experiment].append(Cell.model_validate(cell))
        for metric, (value, resolution) in values.items():
            rows.append(
                {"run": run, **labels, "suite": "published", "metric": metric, "value": value, "resolution": resolution}
            )

    for experiment, name in (("motivation", "figure2_motivation"), ("sweep", "table1_sweep")):
        for row in reference(name).to_dict("records"):  # type: ignore[arg-type]
            values = {"val_loss": (published_loss(row["val_ppl"]), LOSS_RESOLUTION), "val_ppl": (row["val_ppl"], 0.005)}
            numbers: dict[str, Any] = {}
            if experiment == "sweep":
                numbers = {"curve": row["schedule"], "parameters": {end: row[end] for end in ("start", "end")}}
            add(experiment, row["allocation"], "transformer", "440m", values, **numbers)
    for row in reference("table2_main").to_dict("records"):
        printed = {metric: row[metric] for metric in MAIN_METRICS if not math.isnan(row[metric])}
        values = {metric: printed_value(metric, value) for metric, value in printed.items()}
        add("main", row["allocation"], row["arch"], row["scale"], values)
    views = [
        ExperimentView.model_validate({"experiment": name, "toy": False, "config": "published", "cells": chosen})
        for name, chosen in cells.items()
    ]
    return frames(rows, []), views


def printed_value(metric: str, value: float) -> tuple[float, float]:
    """(value in file units, half its last digit): perplexities and the average have two decimals, accuracies one."""
    if metric in PERPLEXITIES:
        return value, 0.005
    return value / 100, (0.00005 if metric == "avg" else 0.0005)
