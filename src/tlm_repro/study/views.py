"""What each table and figure shows: its cells, and the files that it reads.

The workflow writes each view to a file and gives that to the command which renders: on a command line, the cells and
paths of many seeds wouldn't fit (Linux takes 128 KiB for one string). A file is named after its content: never stale.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tlm_repro.artifacts.fingerprint import fingerprint
from tlm_repro.study.grid import Cell, Grid

EVERYTHING = ("claims", "report")  # views of all experiments


def views(grid: Grid) -> dict[str, dict[str, Any]]:
    """Name → content, plain values. A table and a figure of one name share a view; so do `novelty` and its pairs."""
    cells = grid.experiments
    found = {name: _view(grid, {name: cells[name]}, grid.evaluations(name)) for name in cells}
    for trend, experiments in grid.trends.items():
        found[trend] = _view(grid, {name: cells[name] for name in experiments}, grid.validations(experiments))
    maps = {"niah": cells["main"], **grid.needles} if grid.needles else {}
    for name, chosen in maps.items():
        found[name] = _view(grid, {"main": chosen}, grid.needle_evaluations(chosen))
    if grid.runs:
        found["allocation"] = _view(grid) | {"shapes": shapes(grid)}
    if grid.novelty:
        found["novelty"] = _view(grid, novelty=grid.novelty)
    evaluations = [(run, name) for run, suites in grid.suites.items() for name in suites]
    found |= {name: _view(grid, cells, evaluations, grid.novelty) for name in EVERYTHING}
    found["report"]["settings"] = grid.config.model_dump(mode="json")
    return found


def only_by_training(grid: Grid, results: Path) -> list[str]:
    """The novelty measurements, by file name, that only a new training of a finished run could give.

    A clone that pulled evaluations alone has finished runs without their models. To train those again for the sake of a
    table would cost what all others cost: that happens on request alone (`snakemake novelty`). A run that isn't
    evaluated either is still to be trained, and its novelty with it.
    """

    def finished(run: str) -> bool:
        return all((results / f"evaluations/{run}/{name}.json").exists() for name in grid.suites[run])

    return [
        file
        for file, task in grid.novelty.items()
        if task.run
        and not (results / f"novelty/{file}.json").exists()
        and not (results / f"models/{task.run}/manifest.json").exists()
        and finished(task.run)
    ]


def without(grid: Grid, novelty: Collection[str]) -> Grid:
    """The grid without these novelty measurements."""
    return replace(grid, novelty={file: task for file, task in grid.novelty.items() if file not in novelty})


def file_name(name: str, content: Mapping[str, Any]) -> str:
    """`<name>-<fingerprint>.json`, under results/views."""
    return f"{name}-{fingerprint(content)}.json"


def _view(
    grid: Grid,
    experiments: Mapping[str, Sequence[Cell]] | None = None,
    evaluations: Iterable[tuple[str, str]] = (),
    novelty: Iterable[str] = (),
) -> dict[str, Any]:
    length = grid.config.training.sequence_length
    common = {"config": grid.config.name, "toy": grid.config.toy}
    return {
        "kind": "view",
        **common,
        "experiments": [
            {"experiment": name, **common, "sequence_length": length, "cells": [vars(cell) for cell in cells]}
            for name, cells in (experiments or {}).items()
        ],
        "files": [
            *(f"results/evaluations/{run}/{name}.json" for run, name in evaluations),
            *(f"results/novelty/{name}.json" for name in novelty),
        ],
    }


def shapes(grid: Grid) -> dict[str, Any]:
    """Per-layer widths of the paper's allocations at the first experiment's scale and architecture (Figure 3).

    Those of experiment `allocations` stand in its own figure.
    """
    first = next(iter(grid.experiments.values()))[0]
    labels = (first.scale, first.architecture)
    cells = [cell for name, cells in grid.experiments.items() if name != "allocations" for cell in cells]
    alike = [grid.runs[cell.run] for cell in cells if (cell.scale, cell.architecture) == labels]
    return {
        "layers": first.layers,
        "width": first.width,
        "widths": {run.labels.allocation: list(run.model.intermediate_sizes) for run in alike},
    }
