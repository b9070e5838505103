"""The tapers of Table 1, recognised by the numbers of their cells: curve, ratio and other parameters."""

from __future__ import annotations

import math

from tlm_repro.allocation.curves import CURVES
from tlm_repro.records.view import Cell, Cells, ExperimentView
from tlm_repro.reporting.results import Results

CURVE_NAMES = ("cosine", "linear", "sigmoid")
Tapers = dict[tuple[str, float], Cells]  # (curve, ratio of the first layer's width to D) → cells


def ends(cell: Cell) -> tuple[float, float]:
    """Width ÷ D of the first and the last layer; NaN for an allocation that isn't given by these two."""
    if cell.curve == "uniform":
        return 1.0, 1.0
    curve = CURVES.get(cell.curve or "")
    start, end = (cell.parameters.get(name) for name in ("start", "end"))
    if curve is None or not curve.pinned_ends or not isinstance(start, float) or not isinstance(end, float):
        return math.nan, math.nan
    return start, end


def is_plain(cell: Cell) -> bool:
    """Whether it is a taper of Table 1: one of its curves, ends that add up to 2, everything else at its default."""
    if cell.curve not in CURVE_NAMES:
        return False
    defaults = CURVES[cell.curve].defaults
    others = {name: value for name, value in cell.parameters.items() if name not in ("start", "end")}
    return math.isclose(sum(ends(cell)), 2) and all(value == defaults[name] for name, value in others.items())


def plain_tapers(results: Results, view: ExperimentView | None) -> dict[tuple[str, str], Tapers]:
    """(architecture, scale) → the plain tapers of an experiment whose validation losses are known."""
    tapers: dict[tuple[str, str], Tapers] = {}
    for group, allocations in (view.groups(by="allocation") if view else {}).items():
        chosen = tapers.setdefault(group, {})
        for cells in allocations.values():
            cell = next(iter(cells.values()))
            if cell.curve is not None and is_plain(cell) and results.seeds(cells, "val_loss"):
                chosen[cell.curve, ends(cell)[0]] = cells
    return tapers
