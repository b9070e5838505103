import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import record_files

DEPTHS = (0.0, 0.5, 1.0)
WriteNeedles = Callable[..., tuple[list[Path], dict[str, Any]]]


@pytest.fixture
def needle_files(tmp_path: Path) -> WriteNeedles:
    """Writes the needle evaluations of a uniform and a tapered run, and gives the view that they stand in."""

    def write(
        scores: dict[str, tuple[float, float]],
        *,
        samples: int = 30,
        scale: str = "1.3b",
        seeds: tuple[int, ...] = (0,),
        details: dict[str, Any] | None = None,
        suites: tuple[str, ...] = ("niah",),
    ) -> tuple[list[Path], dict[str, Any]]:
        """`scores`: metric → share of the needles found by uniform and by tapered, at each of three depths alike."""
        paths, cells = [], []
        for place, (label, allocation) in enumerate({"uniform": "uniform", "tapered": "cosine-1.5-0.5"}.items()):
            for seed in seeds:
                labels = {"architecture": "transformer", "scale": scale, "allocation": allocation, "seed": seed}
                run = f"transformer_{scale}_{allocation}_s{seed}-0123abcd"
                cells.append({**labels, "label": label, "run": run, "width": 128, "layers": 6})
                for suite in suites:
                    content = evaluation(
                        suite, run, labels, {name: pair[place] for name, pair in scores.items()}, samples
                    )
                    content["details"] |= details or {}
                    path = tmp_path / "results/evaluations" / run / f"{suite}-4567cdef.json"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(json.dumps(content))
                    paths.append(path)
        view = {"experiment": "main", "toy": scale.endswith("toy"), "config": "test", "cells": cells}
        return paths, view | {"sequence_length": 4096}

    return write


@pytest.fixture
def view_file(tmp_path: Path) -> Callable[[list[Path], dict[str, Any]], str]:
    """Writes the file that the commands are given: these result files, and the one experiment that they stand in."""

    def write(files: list[Path], view: dict[str, Any]) -> str:
        common = {"config": view["config"], "toy": view["toy"]}
        settings = {"name": view["config"], "toy": view["toy"]}
        content = {
            "kind": "view",
            **common,
            "experiments": [view],
            "files": list(map(str, files)),
            "settings": settings,
        }
        path = tmp_path / "view.json"
        path.write_text(json.dumps(content))
        return str(path)

    return write


def evaluation(suite: str, run: str, labels: dict[str, Any], scores: dict[str, float], samples: int) -> dict[str, Any]:
    """An evaluation's file. Zero-shot ones hold one accuracy."""
    values = scores if suite == "niah" else {"piqa": 0.5}
    each = samples // len(DEPTHS)
    rows = {
        name: [{"depth": depth, "found": round(value * each), "needed": each} for depth in DEPTHS]
        for name, value in scores.items()
    }
    return record_files.evaluation(
        suite,
        {},
        run={"id": run, **labels},
        metrics={name: {"value": value, "stderr": 0.0, "items": samples} for name, value in values.items()},
        details={"needles": rows, "rope_scaling": {"kind": "none", "lengths": {}}, "generator": "own"},
    )
