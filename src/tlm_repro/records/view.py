"""A view file: which cells an exhibit shows, and which result files it reads."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field

from tlm_repro.artifacts.fingerprint import fingerprint
from tlm_repro.errors import ArtifactError, ConfigError
from tlm_repro.records.base import FINGERPRINTED, RUN_FOLDER, Mismatch, Record, check_equal
from tlm_repro.spec.benchmarks import Benchmark
from tlm_repro.spec.run import RunLabels


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
    curve: str | None = None  # of the allocation; None where it isn't known
    parameters: dict[str, float | tuple[float, ...]] = Field(default={})  # all of the curve's, defaults included

    def check(self) -> None:
        labels = RunLabels(architecture=self.architecture, scale=self.scale, allocation=self.allocation, seed=self.seed)
        if self.run.rpartition("-")[0] != labels.title:
            raise Mismatch("run", self.run, f"Its labels make it '{labels.title}-<fingerprint>'.")


Cells = dict[int, Cell]  # seed → cell


class ExperimentView(Record):
    """An experiment as the grid expands it: which run stands in which cell."""

    experiment: Literal["sweep", "motivation", "main", "allocations"]
    toy: bool
    config: str
    cells: tuple[Cell, ...]
    sequence_length: int | None = None  # of training, in tokens; None where it isn't known

    def check(self) -> None:
        places = [(cell.architecture, cell.scale, cell.label, cell.seed) for cell in self.cells]
        for number, place in enumerate(places):
            if place in places[:number]:
                raise Mismatch(f"cells.{number}", place, "An earlier cell has this place.")

    def groups(self, by: Literal["label", "allocation"] = "label") -> dict[tuple[str, str], dict[str, Cells]]:
        """(architecture, scale) → label or allocation → seed → cell, in the order of the cells."""
        groups: dict[tuple[str, str], dict[str, Cells]] = {}
        for cell in self.cells:
            names = groups.setdefault((cell.architecture, cell.scale), {})
            names.setdefault(cell.label if by == "label" else cell.allocation, {})[cell.seed] = cell
        return groups


class Shapes(Record):
    """What Figure 3 draws: L, D, and by allocation the per-layer widths and the curve."""

    layers: int
    width: int
    widths: dict[str, tuple[int, ...]]
    curves: dict[str, str] = Field(default={})


class Shown(Record):
    """An exhibit in a configuration: its file name, the class behind it, and the text beneath it.

    `declared` is the class's own name. `fields` are the values in it, of one member of a family.
    """

    name: str
    declared: str
    caption: str
    table: bool
    figure: bool
    fields: dict[str, str] = Field(default={})
    file: str | None = None  # where the class stands, if that isn't this package


class View(Record):
    """`results/views/<name>-<fingerprint>.json`: experiments, and the evaluation and novelty files to read."""

    kind: Literal["view"]
    config: str
    toy: bool
    experiments: tuple[ExperimentView, ...]
    files: tuple[Path, ...]
    shapes: Shapes | None = None  # Figure 3's
    benchmarks: tuple[Benchmark, ...] = ()  # columns of Table 2 after the paper's
    exhibits: tuple[Shown, ...] = ()  # one, or all in the report's view
    settings: dict[str, Any] | None = None  # the report's: the whole configuration

    @classmethod
    def from_values(cls, values: Any, path: Path) -> Self:
        """The view with these contents. Raises ArtifactError that names `path` and the key."""
        view = super().from_values(values, path)
        name = FINGERPRINTED.match(path.name)
        if name and (own := fingerprint(values)) != name["fingerprint"]:
            raise ArtifactError(
                f"{path}: the whole file: its fingerprint is {own}, its name has {name['fingerprint']}. Delete the "
                "file and run `snakemake views`."
            )
        return view

    def check(self) -> None:
        runs = {cell.run for view in self.experiments for cell in view.cells}
        for number, view in enumerate(self.experiments):
            check_equal(f"experiments.{number}.config", view.config, self.config, "The view has")
            check_equal(f"experiments.{number}.toy", view.toy, self.toy, "The view has")
        for number, file in enumerate(self.files):
            if file in self.files[:number]:
                raise Mismatch(f"files.{number}", str(file), "It is listed before.")
            if RUN_FOLDER.search(file.parent.name) and file.parent.name not in runs:
                raise Mismatch(f"files.{number}", str(file), "It is of a run that no cell has.")

    @property
    def by_experiment(self) -> dict[str, ExperimentView]:
        return {view.experiment: view for view in self.experiments}

    @property
    def exhibit(self) -> Shown:
        """The exhibit whose view it is. Raises ConfigError for the view of several, or of none."""
        if len(self.exhibits) != 1:
            raise ConfigError(
                f"--view: the file is the view of {len(self.exhibits) or 'no'} exhibits. "
                "Pass that of one table or figure: results/views/<name>-*.json"
            )
        return self.exhibits[0]

    def configuration(self) -> dict[str, Any]:
        """Raises ConfigError where it has none."""
        if self.settings is None:
            raise ConfigError("--view: the file has no 'settings'. Pass results/views/report-*.json")
        return self.settings
