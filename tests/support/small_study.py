"""The tests' own study, and what each of its exhibits reads, written down apart from the code under test."""

from pathlib import Path
from typing import Any

import yaml

from tlm_repro.config.loading import parse
from tlm_repro.study.grid import Grid, expand

STUDY = Path(__file__).with_suffix(".yaml")
LOSS, BENCHMARKS, NEEDLES = "validation", "zero_shot", "niah"

# Exhibit → the experiments whose cells it shows, and the suites whose results it reads.
READS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "motivation": (("motivation",), (LOSS,)),
    "sweep": (("sweep",), (LOSS,)),
    "main": (("main",), (LOSS, BENCHMARKS)),
    "allocations": (("allocations",), (LOSS,)),
    "scaling": (("sweep", "main"), (LOSS,)),
    "curves": (("main",), (LOSS,)),
    "niah": (("main",), (NEEDLES,)),
    "allocation": ((), ()),
    "novelty": ((), ()),
    "novelty-pairs": ((), ()),
}


def study() -> dict[str, Any]:
    """Its configuration, as YAML has it."""
    return yaml.safe_load(STUDY.read_text())


def edited(path: str, value: Any) -> dict[str, Any]:
    """The configuration with one key set, or deleted where `value` is `...`; `path` as in `scales/440m-toy/layers`."""
    configuration = study()
    *parents, last = path.split("/")
    node: Any = configuration
    for key in parents:
        node = node[int(key)] if isinstance(node, list) else node[key]
    if value is ...:
        del node[last]
    else:
        node[last] = value
    return configuration


def study_grid(**changes: Any) -> Grid:
    """The grid of the study, some top-level keys replaced."""
    return expand(parse(study() | changes, "test"))


def runs_of(grid: Grid, *experiments: str) -> set[str]:
    """Ids of all runs of these experiments."""
    return {cell.run for name in experiments for cell in grid.experiments[name]}


def evaluations_of(grid: Grid, *experiments: str, suites: tuple[str, ...]) -> dict[str, int]:
    """Suite → how many evaluations of it the runs of these experiments have."""
    evaluated = [suite.suite for run in runs_of(grid, *experiments) for suite in grid.suites[run].values()]
    return {suite: evaluated.count(suite) for suite in suites}
