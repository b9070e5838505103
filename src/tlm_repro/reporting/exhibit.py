"""The contract of an exhibit: a table, a figure or both, as one class in one file.

The registry searches the files of `reporting/exhibits` and those that a configuration names under `reporting.exhibits`.
Every parse of the workflow imports them. So import heavy modules inside functions, or take NumPy and pandas from
`reporting.lazy`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from string import Formatter
from typing import TYPE_CHECKING, ClassVar

from tlm_repro.reporting.lazy import pd
from tlm_repro.reporting.results import is_missing
from tlm_repro.reporting.sheets import Sheet, number, sheet, toneless

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tlm_repro.records.view import Cell
    from tlm_repro.reporting.evidence import Evidence
    from tlm_repro.study.grid import Grid


class Exhibit:
    """A subclass states its name and what it reads, and overrides `table`, `figure` or both.

    Its files are called `name`. Fields of a cell in braces, such as `niah-{architecture}-{scale}`, make the class a
    family: one member for each combination of their values, which sees only the cells that have these values.
    """

    name: ClassVar[str]
    title: ClassVar[str]  # a few words, for lists
    caption: ClassVar[str]  # stands beneath it; may have the fields of the name
    order: ClassVar[int] = 1000  # lower ones come first

    experiments: ClassVar[tuple[str, ...]] = ()  # whose cells it shows; those that a configuration lacks are left out
    suites: ClassVar[tuple[str, ...]] = ("validation",)  # evaluations of those cells that it reads
    novelty: ClassVar[bool] = False  # reads all novelty measurements
    shapes: ClassVar[bool] = False  # shows the widths of the paper's allocations

    def applies(self, grid: Grid) -> bool:
        """Whether a configuration has what this exhibit shows. By default: all that it reads."""
        if self.experiments and not self._reads_suites(grid):
            return False
        return (bool(grid.novelty) or not self.novelty) and (bool(grid.runs) or not self.shapes)

    def _reads_suites(self, grid: Grid) -> bool:
        cells = [cell for name in self.experiments for cell in grid.experiments.get(name, ())]
        measured = {grid.suites[run][name].suite for run, name in grid.evaluations(cells, self.suites)}
        return bool(cells) and measured == set(self.suites)

    def table(self, evidence: Evidence) -> pd.DataFrame:
        """The numbers, in full precision: the CSV file.

        Raises ArtifactError, naming the run, for a cell without its evaluation.
        """
        raise NotImplementedError

    def sheet(self, frame: pd.DataFrame) -> Sheet:
        """The table as people read it: the Markdown and LaTeX files, and the report."""
        rows = [toneless({str(key): plain(value) for key, value in row.items()}) for row in frame.to_dict("records")]
        words = [str(column) for column in frame.columns if not pd.api.types.is_numeric_dtype(frame[column])]
        return sheet(self.name, rows, self.caption, words)

    def figure(self, evidence: Evidence) -> Figure:
        """The drawing. Equal evidence gives equal bytes; `style.blank` stamps toy runs."""
        raise NotImplementedError

    @property
    def has_table(self) -> bool:
        return type(self).table is not Exhibit.table

    @property
    def has_figure(self) -> bool:
        return type(self).figure is not Exhibit.figure

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of a cell that tell the members of a family apart; none for a single exhibit."""
        return tuple(field for _, field, _, _ in Formatter().parse(self.name) if field is not None)

    def members(self, experiments: Mapping[str, Sequence[Cell]]) -> Iterator[dict[str, str]]:
        """The values of `fields` of each member, in the order of the cells; one without any for a single exhibit."""
        if not self.fields:
            yield {}
            return
        cells = [cell for name in self.experiments for cell in experiments.get(name, ())]
        values = [tuple(str(getattr(cell, field)) for field in self.fields) for cell in cells]
        for distinct in dict.fromkeys(values):
            yield dict(zip(self.fields, distinct, strict=True))


def plain(value: object) -> str:
    """A value of a table as text: floats to four decimals, an empty cell for a missing one."""
    if is_missing(value):
        return ""
    return number(value, digits=4) if isinstance(value, float) else str(value)
