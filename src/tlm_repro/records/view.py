"""A view file: which cells an exhibit shows, and which result files it reads."""

from pathlib import Path
from typing import Any, Literal

from tlm_repro.errors import ConfigError
from tlm_repro.records.base import Record


class Cell(Record):
    """One run's place in an experiment. `width` is the baseline D, None where it isn't known (the paper's own rows)."""

    label: str
    architecture: str
    scale: str
    allocation: str
    seed: int
    run: str
    width: int | None
    layers: int | None
    published_scale: str | None = None  # whose published values stand beside it, where that isn't `scale`


Cells = dict[int, Cell]  # seed → cell


class ExperimentView(Record):
    """An experiment as the grid expands it: which run stands in which cell."""

    experiment: Literal["sweep", "motivation", "main", "allocations"]
    toy: bool
    config: str
    cells: tuple[Cell, ...]
    sequence_length: int | None = None  # of training, in tokens; None where it isn't known

    def groups(self, by: Literal["label", "allocation"] = "label") -> dict[tuple[str, str], dict[str, Cells]]:
        """(architecture, scale) → label or allocation → seed → cell, in the order of the cells."""
        found: dict[tuple[str, str], dict[str, Cells]] = {}
        for cell in self.cells:
            names = found.setdefault((cell.architecture, cell.scale), {})
            names.setdefault(cell.label if by == "label" else cell.allocation, {})[cell.seed] = cell
        return found


class Shapes(Record):
    """What Figure 3 draws: L, D, and the per-layer widths of each allocation."""

    layers: int
    width: int
    widths: dict[str, tuple[int, ...]]


class View(Record):
    """`results/views/<name>-<fingerprint>.json`: experiments, and the evaluation and novelty files to read."""

    kind: Literal["view"]
    config: str
    toy: bool
    experiments: tuple[ExperimentView, ...]
    files: tuple[Path, ...]
    shapes: Shapes | None = None  # Figure 3's alone
    settings: dict[str, Any] | None = None  # the report's alone: the whole configuration

    @property
    def by_experiment(self) -> dict[str, ExperimentView]:
        return {view.experiment: view for view in self.experiments}

    @property
    def single(self) -> ExperimentView:
        """Raises ConfigError unless it is of one experiment."""
        if len(self.experiments) != 1:
            seen = ", ".join(self.by_experiment) or "none"
            raise ConfigError(
                f"--view: one experiment is expected, the file has {seen}: pass that of this table or figure"
            )
        return self.experiments[0]

    def figure_3(self) -> Shapes:
        """Raises ConfigError where it has no widths."""
        if self.shapes is None:
            raise ConfigError("--view: the file has no 'shapes': pass results/views/allocation-*.json")
        return self.shapes

    def configuration(self) -> dict[str, Any]:
        """Raises ConfigError where it has none."""
        if self.settings is None:
            raise ConfigError("--view: the file has no 'settings': pass results/views/report-*.json")
        return self.settings
