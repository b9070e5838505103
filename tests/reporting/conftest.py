import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import record_files
from exhibits import numbers

from tlm_repro.reporting.exhibit import Exhibit
from tlm_repro.reporting.registry import describe

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
        suites: tuple[str, ...] = ("niah",),
        **how: Any,
    ) -> tuple[list[Path], dict[str, Any]]:
        """`scores`: metric → share of the needles found by uniform and by tapered. Each metric has its own file.

        `how` goes to `record_files.needles`.
        """
        paths, cells = [], []
        for place, (label, allocation) in enumerate({"uniform": "uniform", "tapered": "cosine-1.5-0.5"}.items()):
            for seed in seeds:
                run = record_files.run(scale, allocation, seed)
                labels = {name: value for name, value in run.items() if name != "id"}
                cells.append(
                    {**labels, **numbers(allocation), "label": label, "run": run["id"], "width": 128, "layers": 6}
                )
                contents = {
                    "niah": [
                        record_files.needles({name: pair[place]}, run=run, samples=samples, **how)
                        for name, pair in scores.items()
                    ],
                    "zero_shot": [record_files.zero_shot({"piqa": 0.5}, run=run)],
                }
                written = [content for suite in suites for content in contents[suite]]
                paths += [record_files.write_evaluation(tmp_path / "results", content) for content in written]
        view = {"experiment": "main", "toy": scale.endswith("toy"), "config": "test", "cells": cells}
        return paths, view | {"sequence_length": 4096}

    return write


@pytest.fixture
def view_file(tmp_path: Path) -> Callable[..., str]:
    """Writes the file that the commands are given: these result files, the one experiment that they stand in, exhibits.

    An exhibit is given as (class, values of its fields).
    """

    def write(files: list[Path], view: dict[str, Any], *exhibits: tuple[type[Exhibit], dict[str, str]]) -> str:
        common = {"config": view["config"], "toy": view["toy"]}
        settings = {"name": view["config"], "toy": view["toy"]}
        content = {
            "kind": "view",
            **common,
            "experiments": [view],
            "files": list(map(str, files)),
            "settings": settings,
            "exhibits": [describe(exhibit(), fields).model_dump() for exhibit, fields in exhibits],
        }
        path = tmp_path / "view.json"
        path.write_text(json.dumps(content))
        return str(path)

    return write
