"""What each table and figure shows: the right cells and files, written once, read back, refused when it's damaged."""

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from small_study import READS, STUDY, evaluations_of, study_grid
from typer.testing import CliRunner

from tlm_repro.artifacts.files import write_json
from tlm_repro.config.loading import load, parse
from tlm_repro.errors import ArtifactError, ConfigError
from tlm_repro.records.view import Shapes, View
from tlm_repro.reporting import commands
from tlm_repro.reporting.registry import file_name, views
from tlm_repro.study.grid import Grid, expand, needs_retraining

ROOT = Path(__file__).parents[2]
CONFIGURATIONS = [STUDY, *(ROOT / f"config/{name}.yaml" for name in ("paper", "allocations"))]


@pytest.fixture(scope="module")
def grid() -> Grid:
    return study_grid()


def suites(view: View) -> dict[str, int]:
    """Suite → how many of its files are read."""
    names = [path.name.rsplit("-", 1)[0] for path in view.files if path.parts[1] == "evaluations"]
    return {name: names.count(name) for name in dict.fromkeys(names)}


EVERYTHING = {"validation": 20, "zero_shot": 8, "niah": 8}


def test_each_reads_just_its_own_files(grid: Grid):
    read_by = {
        **{name: evaluations_of(grid, *experiments, suites=read) for name, (experiments, read) in READS.items()},
        **{f"niah-{architecture}-760m-toy": {"niah": 2} for architecture in grid.config.architectures},
        "claims": EVERYTHING,
        "report": EVERYTHING,
    }
    shown = views(grid)
    assert {name: suites(shown[name]) for name in read_by} == read_by
    measured = [f"results/novelty/{name}.json" for name in grid.novelty]
    for name, view in shown.items():
        expected = measured if name in ("novelty", "novelty-pairs", "claims", "report") else []
        assert [str(path) for path in view.files if path.parts[1] == "novelty"] == expected
        assert len(set(view.files)) == len(view.files)


def test_a_heat_map_has_the_cells_of_one_architecture(grid: Grid):
    (view,) = views(grid)["niah-titans-760m-toy"].experiments
    assert [cell.label for cell in view.cells] == ["uniform", "tapered"]
    assert {cell.architecture for cell in view.cells} == {"titans"}
    assert view.sequence_length == grid.config.training.sequence_length


def test_figure_3_leaves_other_papers_allocations_to_their_own_figure(grid: Grid):
    widths = views(grid)["allocation"].shapes.widths
    assert {name.split("-")[0] for name in widths} == {"uniform", "cosine", "linear", "sigmoid", "thirds"}
    alone = views(expand(load(ROOT / "config/allocations.yaml")))["allocation"].shapes
    assert alone == Shapes(layers=24, width=3712, widths={})


def names(grid: Grid) -> dict[str, str]:
    return {name: file_name(name, content) for name, content in views(grid).items()}


ALL = set(views(study_grid()))
EDITS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "what only says how it runs": ({"trainer": {"checkpoint_seconds": 5}}, {"report"}),
    "without novelty": ({"novelty": None}, {"novelty", "novelty-pairs", "claims", "report"}),
    "a second seed": ({"seeds": [0, 1]}, ALL - {"allocation"}),
    "another name": ({"name": "other"}, ALL),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_renames_exactly_the_views_that_it_changes(grid: Grid, edit: str):
    changes, expected = EDITS[edit]
    before, after = names(grid), names(study_grid(**changes))
    assert {name for name in before if after.get(name) != before[name]} == expected


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.name)
def test_the_command_writes_what_the_workflow_expects_and_it_is_read_back(path: Path, tmp_path: Path):
    grid = expand(load(path))
    arguments = ["views", "--config", grid.config.model_dump_json(), "--folder", str(tmp_path)]
    done = CliRunner().invoke(commands.app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert {path.name for path in tmp_path.iterdir()} == set(names(grid).values())
    for view, content in views(grid).items():
        read = View.read(tmp_path / file_name(view, content))
        assert read == content
        assert (read.config, read.toy) == (grid.config.name, grid.config.toy)
        assert (read.settings is not None) == (view == "report")
    assert parse(View.read(next(tmp_path.glob("report-*"))).configuration(), "report") == grid.config


DAMAGE = {
    "cut off": (lambda text: text[:1000], "view.json is not valid JSON .*delete it and run its stage again"),
    "of another kind": (lambda text: text.replace('"view"', '"novelty"', 1), "kind: 'novelty'"),
    "without files": (lambda text: text.replace('"files"', '"paths"'), "files: the key is missing"),
    "without a run": (
        lambda text: text.replace('"run"', '"ran"', 1),
        r"experiments\.0\.cells\.0\.run: the key is missing",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_named_with_what_is_wrong(grid: Grid, damage: str, tmp_path: Path):
    change, message = DAMAGE[damage]
    path = tmp_path / "view.json"
    path.write_text(change(views(grid)["motivation"].model_dump_json()))
    with pytest.raises(ArtifactError, match=message) as error:
        commands.table(view=path, out=tmp_path / "motivation.csv")
    assert str(path) in str(error.value)
    with pytest.raises(ArtifactError, match="does not exist: run the stage that makes it"):
        commands.table(view=tmp_path / "none.json", out=tmp_path / "motivation.csv")


MISTAKEN: list[tuple[Any, str, str]] = [
    (commands.table, "allocation", "exhibit 'allocation' has no table"),
    (commands.table, "claims", "the file is the view of no exhibits. Pass that of one table or figure"),
    (commands.table, "report", "the file is the view of "),
    (commands.figure, "main", "exhibit 'main' has no figure"),
]


@pytest.mark.parametrize(("command", "view", "message"), MISTAKEN, ids=[view for _, view, _ in MISTAKEN])
def test_the_view_of_something_else_is_refused(grid: Grid, command: Any, view: str, message: str, tmp_path: Path):
    content = views(grid)[view].model_dump(mode="json") | {"files": []}
    write_json(tmp_path / "view.json", content)
    with pytest.raises(ConfigError, match=re.escape(message)):
        command(view=tmp_path / "view.json", out=tmp_path / "out.csv")


def test_figure_3_needs_its_own_view(grid: Grid, tmp_path: Path):
    write_json(tmp_path / "view.json", views(grid)["allocation"].model_dump(mode="json") | {"shapes": None})
    with pytest.raises(ConfigError, match=re.escape("has no 'shapes'. Pass results/views/allocation-*.json")):
        commands.figure(view=tmp_path / "view.json", out=tmp_path / "allocation.svg")


def test_a_report_needs_its_own_view(grid: Grid, tmp_path: Path):
    write_json(tmp_path / "view.json", views(grid)["claims"].model_dump(mode="json"))
    with pytest.raises(ConfigError, match=re.escape("has no 'settings'. Pass results/views/report-*.json")):
        commands.report(view=tmp_path / "view.json", figures=[], out=tmp_path / "report.html")


@pytest.mark.parametrize("present", [*itertools.product((False, True), repeat=3)], ids=str)
def test_novelty_is_left_out_where_just_the_evaluations_of_its_run_are_there(grid: Grid, tmp_path: Path, present: Any):
    evaluated, trained, measured = present
    file, run = next((file, task.run) for file, task in grid.novelty.items() if task.run)
    there = {f"evaluations/{run}/{name}.json": evaluated for name in grid.suites[run]}
    there |= {f"models/{run}/manifest.json": trained, f"novelty/{file}.json": measured}
    for name in (name for name, exists in there.items() if exists):
        write_json(tmp_path / name, {})
    left_out = needs_retraining(grid, tmp_path)
    assert left_out == ([file] if present == (True, False, False) else [])
    shown = views(grid.without(left_out))["claims"].files
    assert (Path(f"results/novelty/{file}.json") in shown) is not bool(left_out)


def test_a_run_that_lacks_one_of_its_evaluations_is_still_to_be_trained(grid: Grid, tmp_path: Path):
    run = next(task.run for task in grid.novelty.values() if task.run)
    first, *others = grid.suites[run]
    assert others
    write_json(tmp_path / f"evaluations/{run}/{first}.json", {})
    assert needs_retraining(grid, tmp_path) == []
