"""The registry of exhibits: discovers their classes, checks them, and writes the view of each."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, get_args

from tlm_repro.artifacts.fingerprint import fingerprint
from tlm_repro.errors import ConfigError
from tlm_repro.records.evaluation import EVALUATIONS
from tlm_repro.records.view import Cell, ExperimentView, Shapes, Shown, View
from tlm_repro.reporting import exhibits as package
from tlm_repro.reporting.evidence import Evidence, has_fields
from tlm_repro.reporting.exhibit import Exhibit
from tlm_repro.reporting.lazy import pd
from tlm_repro.reporting.sheets import Sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tlm_repro.config.schema import Config
    from tlm_repro.study.grid import Grid

RESERVED = ("claims", "report", "views")  # other files of results/views, and the job that writes them
NAME = re.compile(r"[a-z0-9_.-]+")
EXPERIMENTS = get_args(ExperimentView.model_fields["experiment"].annotation)
SUITES = tuple(EVALUATIONS)


@cache
def builtin() -> tuple[Exhibit, ...]:
    """The exhibits of this package: every `Exhibit` in the modules of `reporting/exhibits`."""
    names = [f"{package.__name__}.{module.name}" for module in pkgutil.iter_modules(package.__path__)]
    return tuple(cls() for name in names for cls in declared(importlib.import_module(name)))


def declared(module: ModuleType) -> list[type[Exhibit]]:
    """The exhibits that a module itself defines, in the order of the file."""
    classes = [value for value in vars(module).values() if inspect.isclass(value) and issubclass(value, Exhibit)]
    return [cls for cls in classes if cls.__module__ == module.__name__ and "name" in vars(cls)]


@cache
def load_file(path: str) -> tuple[Exhibit, ...]:
    """The exhibits of a user's file.

    Raises ConfigError, naming the file, where it is missing, can't be imported or declares no usable exhibit.
    """
    place = f"reporting.exhibits: {path}"
    name = f"tlm_repro_exhibits_{fingerprint(path)}"
    specification = importlib.util.spec_from_file_location(name, path)
    if specification is None or specification.loader is None:
        raise ConfigError(f"{place}: not a Python file. Name a file that ends in .py")
    if not Path(path).is_file():
        raise ConfigError(f"{place}: no such file. Name one relative to where the workflow runs")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module  # where dataclasses and pickles look for it
    try:
        specification.loader.exec_module(module)
    except Exception as error:  # whatever a user's file raises
        raise ConfigError(
            f"{place}: it can't be imported ({type(error).__name__}: {error}). Correct the file"
        ) from None
    classes = declared(module)
    if not classes:
        raise ConfigError(
            f"{place}: no exhibit. Define a subclass of tlm_repro.reporting.exhibit.Exhibit that has a name"
        )
    for cls in classes:
        if problem := next(problems(cls), None):
            raise ConfigError(f"{place}: {cls.__name__}: {problem}")
    return tuple(cls() for cls in classes)


def problems(cls: type[Exhibit]) -> Iterator[str]:
    """What a class lacks of the contract of an exhibit."""
    for attribute in ("name", "title", "caption"):
        value = getattr(cls, attribute, None)
        if not isinstance(value, str) or not value:
            yield f"{attribute} is {value!r}. Give it a text"
            return
    exhibit = cls()
    try:
        fields = exhibit.fields
    except ValueError as error:
        yield f"name is {cls.name!r} ({error}). Put fields of a cell in braces, such as {{scale}}"
        return
    if unknown := [field for field in fields if field not in Cell.model_fields]:
        yield f"name has the field '{unknown[0]}'. A cell has {', '.join(Cell.model_fields)}"
    if not NAME.fullmatch(re.sub(r"\{.*?\}", "x", cls.name)):
        yield f"name is {cls.name!r}. Use lower-case letters, digits, '_', '.' and '-'"
    try:
        cls.caption.format(**dict.fromkeys(fields, ""))
    except (KeyError, IndexError, ValueError) as error:
        yield f"caption has a field that name hasn't ({error!r}). Double braces that are meant as text"
    for attribute, allowed in (("experiments", EXPERIMENTS), ("suites", SUITES)):
        values = getattr(cls, attribute)
        if not isinstance(values, tuple) or not set(values) <= set(allowed):
            yield f"{attribute} is {values!r}. Give a tuple of {', '.join(allowed)}"
            return
    if fields and not cls.experiments:
        yield "a name with fields needs cells. Name experiments"
    if not exhibit.has_table and not exhibit.has_figure:
        yield "it has neither a table nor a figure. Override one of these methods"


def catalogue(config: Config) -> list[tuple[Exhibit, str | None]]:
    """Every exhibit that a configuration knows with the user's file that it comes from, in the order of reports.

    Raises ConfigError for a file that can't be used and for a name that is taken.
    """
    entries: list[tuple[Exhibit, str | None]] = [(exhibit, None) for exhibit in builtin()]
    entries += [(exhibit, file) for file in config.reporting.exhibits for exhibit in load_file(file)]
    sources = dict.fromkeys(RESERVED, "this package")
    for exhibit, file in entries:
        if exhibit.name in sources:
            raise ConfigError(
                f"reporting.exhibits: {file}: {type(exhibit).__name__}: the name '{exhibit.name}' is taken by "
                f"{sources[exhibit.name]}. Rename it"
            )
        sources[exhibit.name] = file or "this package"
    return sorted(entries, key=lambda entry: (entry[0].order, entry[0].name))


@dataclass(frozen=True)
class Member:
    """An exhibit of a configuration: one file name. `cells` has those that it shows, by experiment."""

    exhibit: Exhibit
    shown: Shown
    cells: Mapping[str, Sequence[Cell]]

    @property
    def name(self) -> str:
        return self.shown.name

    @property
    def title(self) -> str:
        return self.exhibit.title.format(**self.shown.fields)


def members(grid: Grid) -> dict[str, Member]:
    """Name → exhibit, of all that a configuration has, families resolved. Raises ConfigError as `catalogue` does."""
    resolved: dict[str, Member] = {}
    for exhibit, file in catalogue(grid.config):
        if not exhibit.applies(grid):
            continue
        present = {name: cells for name, cells in grid.experiments.items() if name in exhibit.experiments}
        for fields in exhibit.members(present):
            shown = describe(exhibit, fields, file)
            if shown.name in resolved:
                raise ConfigError(
                    f"reporting.exhibits: {file}: {type(exhibit).__name__}: its member '{shown.name}' is called like "
                    "another exhibit. Rename it"
                )
            cells = {name: [cell for cell in cells if has_fields(cell, fields)] for name, cells in present.items()}
            resolved[shown.name] = Member(exhibit, shown, cells)
    return resolved


def describe(exhibit: Exhibit, fields: Mapping[str, str], file: str | None = None) -> Shown:
    """What a view says of an exhibit, or of the member of a family with these values."""
    return Shown(
        name=exhibit.name.format(**fields),
        declared=exhibit.name,
        caption=exhibit.caption.format(**fields),
        table=exhibit.has_table,
        figure=exhibit.has_figure,
        fields=dict(fields),
        file=file,
    )


def tables(grid: Grid) -> list[str]:
    """Names of the tables of a configuration."""
    return [name for name, member in members(grid).items() if member.shown.table]


def figures(grid: Grid) -> list[str]:
    """Names of the figures of a configuration."""
    return [name for name, member in members(grid).items() if member.shown.figure]


def table_of(shown: Shown, evidence: Evidence) -> tuple[pd.DataFrame, Sheet]:
    """The numbers of an exhibit and how people read them. Raises ConfigError for an exhibit without a table."""
    exhibit = find(shown)
    if not exhibit.has_table:
        raise ConfigError(f"--view: exhibit '{shown.name}' has no table. Pass the view of one that has")
    frame = exhibit.table(part_of(exhibit, shown, evidence))
    return frame, replace(exhibit.sheet(frame), name=shown.name)


def figure_of(shown: Shown, evidence: Evidence) -> Figure:
    """The drawing of an exhibit. Raises ConfigError for an exhibit without a figure."""
    exhibit = find(shown)
    if not exhibit.has_figure:
        raise ConfigError(f"--view: exhibit '{shown.name}' has no figure. Pass the view of one that has")
    return exhibit.figure(part_of(exhibit, shown, evidence))


def part_of(exhibit: Exhibit, shown: Shown, evidence: Evidence) -> Evidence:
    """The part of the evidence that an exhibit reads."""
    return evidence.restricted(exhibit.experiments, exhibit.suites, exhibit.novelty, shown.fields)


def find(shown: Shown) -> Exhibit:
    """The exhibit behind a name in a view. Raises ConfigError where its file has none of that name any more."""
    exhibits = load_file(shown.file) if shown.file else builtin()
    for exhibit in exhibits:
        if exhibit.name == shown.declared:
            return exhibit
    raise ConfigError(
        f"{shown.file or 'tlm-repro'} has no exhibit '{shown.declared}'. Run the workflow again: it writes new views"
    )


def views(grid: Grid) -> dict[str, View]:
    """Name → view, of every exhibit, of the claims and of the report.

    On a command line, the cells and paths of many seeds wouldn't fit (Linux takes 128 KiB for one string): the workflow
    writes each view to a file and passes that.
    """
    shown = members(grid)
    every = [(run, name) for run, suites in grid.suites.items() for name in suites]
    everything: dict[str, Any] = {"evaluations": every, "novelty": list(grid.novelty)}
    return {
        **{name: member_view(grid, member) for name, member in shown.items()},
        "claims": _view(grid, grid.experiments, **everything),
        "report": _view(
            grid,
            grid.experiments,
            **everything,
            shapes=shapes(grid) if grid.runs else None,
            exhibits=tuple(member.shown for member in shown.values()),
            settings=grid.config.model_dump(mode="json"),
        ),
    }


def member_view(grid: Grid, member: Member) -> View:
    """What one exhibit shows and reads."""
    exhibit = member.exhibit
    cells = [cell for chosen in member.cells.values() for cell in chosen]
    return _view(
        grid,
        member.cells,
        grid.evaluations(cells, exhibit.suites),
        list(grid.novelty) if exhibit.novelty else [],
        exhibits=(member.shown,),
        shapes=shapes(grid) if exhibit.shapes else None,
    )


def file_name(name: str, view: View) -> str:
    """`<name>-<fingerprint>.json`, under results/views: named after its content, a view is never stale."""
    return f"{name}-{fingerprint(view.model_dump(mode='json'))}.json"


def _view(
    grid: Grid,
    experiments: Mapping[str, Sequence[Cell]],
    evaluations: Sequence[tuple[str, str]],
    novelty: Sequence[str],
    **more: Any,
) -> View:
    config = grid.config
    benchmarks = config.evaluation.zero_shot.additional if config.evaluation.zero_shot else ()
    return View(
        kind="view",
        config=config.name,
        toy=config.toy,
        experiments=tuple(
            ExperimentView(
                experiment=name,
                config=config.name,
                toy=config.toy,
                sequence_length=config.training.sequence_length,
                cells=tuple(cells),
            )
            for name, cells in experiments.items()
        ),
        files=(
            *(Path(f"results/evaluations/{run}/{name}.json") for run, name in evaluations),
            *(Path(f"results/novelty/{name}.json") for name in novelty),
        ),
        benchmarks=tuple(entry.benchmark for entry in benchmarks) if "main" in experiments else (),
        **more,
    )


def shapes(grid: Grid) -> Shapes:
    """Per-layer widths of the paper's allocations at the first experiment's scale and architecture (Figure 3).

    Those of experiment `allocations` have a figure of their own.
    """
    first = next(iter(grid.experiments.values()))[0]
    cells = [
        cell
        for name, cells in grid.experiments.items()
        if name != "allocations"
        for cell in cells
        if (cell.scale, cell.architecture) == (first.scale, first.architecture)
    ]
    assert first.layers is not None  # of the grid's own cells both sizes are known
    assert first.width is not None
    return Shapes(
        layers=first.layers,
        width=first.width,
        widths={cell.allocation: tuple(grid.runs[cell.run].model.intermediate_sizes) for cell in cells},
        curves={cell.allocation: cell.curve for cell in cells if cell.curve is not None},
    )
