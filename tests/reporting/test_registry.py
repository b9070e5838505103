"""Every exhibit that is found keeps its contract: it renders, says what it shows, and reads what its view names."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import own_exhibits
import products
import pytest
import yaml
from small_study import study, study_grid
from typer.testing import CliRunner

from tlm_repro.artifacts.files import write_json
from tlm_repro.config.loading import load
from tlm_repro.errors import ConfigError
from tlm_repro.records.view import View
from tlm_repro.reporting import commands, registry
from tlm_repro.reporting.exhibit import Exhibit
from tlm_repro.study.grid import Grid, expand

BUILTIN = {exhibit.name: exhibit for exhibit in registry.builtin()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tests' own study with all results, and a user's file of exhibits beside it."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "my_figures.py").write_text(own_exhibits.SOURCE)
    config = study() | {"reporting": {"exhibits": [str(folder / "my_figures.py")]}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    products.finish(folder)
    return folder


@pytest.fixture
def here(finished: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the finished study, as the current one: views name files relative to it."""
    monkeypatch.chdir(finished)
    return finished


def saved_view(grid: Grid, name: str, folder: Path) -> Path:
    write_json(folder / "view.json", registry.views(grid)[name].model_dump(mode="json"))
    return folder / "view.json"


EMPTY = ("curves",)  # these results have no training curve, like those of early versions
NAMES = [*registry.members(study_grid()), "losses", "losses-titans"]


@pytest.mark.process  # seconds each, in three forms
@pytest.mark.parametrize("name", NAMES)
def test_it_renders_from_its_own_view(here: Path, name: str, tmp_path: Path):
    grid = expand(load(here / "config.yaml"))
    shown, view = registry.members(grid)[name].shown, saved_view(grid, name, tmp_path)
    if shown.table:
        commands.table(view=view, out=tmp_path / f"{name}.csv")
        csv, markdown, latex = ((tmp_path / f"{name}.{form}").read_text() for form in ("csv", "md", "tex"))
        assert csv.count("\n") > (name not in EMPTY)
        assert "\n|" in markdown
        assert rf"\label{{tab:{name}}}" in latex
    if shown.figure:
        commands.figure(view=view, out=tmp_path / f"{name}.svg")
        assert ElementTree.parse(tmp_path / f"{name}.svg").getroot().tag.endswith("svg")
        assert {path.suffix for path in tmp_path.glob(f"{name}.*")} >= {".svg", ".pdf", ".png"}


def test_the_report_has_every_exhibit_of_the_configuration(here: Path, tmp_path: Path):
    grid = expand(load(here / "config.yaml"))
    figures = [tmp_path / f"{name}.svg" for name in registry.figures(grid)]
    for path in figures:
        path.write_text('<svg xmlns="http://www.w3.org/2000/svg"/>')
    options = [f"--figure={path}" for path in figures]
    view, out = saved_view(grid, "report", tmp_path), tmp_path / "report.html"
    done = CliRunner().invoke(commands.app, ["report", "--view", str(view), *options, "--out", str(out)])
    assert done.exit_code == 0, done.output
    page = out.read_text()
    members = registry.members(grid)
    assert {"losses", "losses-hope_attention"} <= set(members)
    for name, member in members.items():
        if member.shown.figure:
            assert f'aria-label="{member.shown.caption}"' in page
        if member.shown.table and name not in EMPTY:
            assert f'<p class="caption" id="table-{name}">' in page


@pytest.mark.parametrize("name", registry.tables(study_grid()))
def test_the_report_s_table_is_the_table(here: Path, name: str):
    """The report's view holds all results; an exhibit sees no more of them than its own view has."""
    grid = expand(load(here / "config.yaml"))
    found = registry.views(grid)
    alone, all_results = (registry.Evidence.load(found[view]) for view in (name, "report"))
    shown = found[name].exhibit
    (one, sheet), (other, other_sheet) = (registry.table_of(shown, evidence) for evidence in (alone, all_results))
    assert one.equals(other)
    assert sheet.caption == other_sheet.caption
    assert sheet.text.equals(other_sheet.text)


PARTS = {
    "sweep": ("experiments", "sweep"),
    "motivation": ("experiments", "motivation"),
    "allocations": ("experiments", "allocations"),
    "benchmarks": ("evaluation", "zero_shot"),
    "needles": ("evaluation", "niah"),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_configuration_without_a_part_has_the_exhibits_that_are_left(here: Path, part: str):
    raw = study()
    section, key = PARTS[part]
    raw[section][key] = None
    (here / "part.yaml").write_text(yaml.safe_dump(raw))
    grid = expand(load(here / "part.yaml"))
    found = registry.views(grid)
    assert set(registry.members(grid)) < set(registry.members(study_grid()))
    for name in registry.tables(grid):
        frame, sheet = registry.table_of(found[name].exhibit, registry.Evidence.load(found[name]))
        assert len(sheet.text) >= 1
        assert frame.empty == (name in EMPTY)


@pytest.mark.parametrize("name", BUILTIN)
def test_it_keeps_the_contract(name: str):
    exhibit = BUILTIN[name]
    assert list(registry.problems(type(exhibit))) == []
    assert exhibit.caption.endswith(".")
    assert type(exhibit).__module__.startswith("tlm_repro.reporting.exhibits.")


def test_exhibits_come_in_the_order_of_the_paper():
    orders = [exhibit.order for exhibit, _ in registry.catalogue(study_grid().config)]
    assert orders == sorted(orders)
    assert len(set(orders)) == len(orders)


def test_captions_of_a_family_name_their_member():
    shown = registry.members(study_grid())["niah-titans-760m-toy"].shown
    assert shown.caption.startswith("Needle-in-a-haystack, titans-760m-toy: ")
    assert shown.fields == {"architecture": "titans", "scale": "760m-toy"}


def own(folder: Path, text: str, **changes: str) -> Grid:
    """A study whose configuration names a file with this text."""
    for before, after in changes.items():
        text = text.replace(before, after)
    path = folder / "mine.py"
    path.write_text(text)
    registry.load_file.cache_clear()
    return study_grid(reporting={"exhibits": [str(path)]})


BROKEN: dict[str, tuple[str, str, str]] = {
    "a name that is taken": ('"losses"', '"sweep"', "Losses: the name 'sweep' is taken by this package. Rename it"),
    "a reserved name": ('"losses"', '"report"', "Losses: the name 'report' is taken by this package"),
    "one name twice": (
        '"losses"',
        '"losses-{architecture}"',
        "PerArchitecture: the name 'losses-{architecture}' is taken by ",
    ),
    "a member's name": (
        '"losses"\n',
        '"losses-titans"\n',
        "its member 'losses-titans' is called like another exhibit. Rename it",
    ),
    "an impossible name": ('"losses"', '"my losses"', "Losses: name is 'my losses'. Use lower-case letters"),
    "an unknown field": ("-{architecture}", "-{arch}", "PerArchitecture: name has the field 'arch'. A cell has label,"),
    "a caption's field": ("the {architecture} runs", "the {scale} runs", "PerArchitecture: caption has a field that"),
    "no caption": ('"Held-out loss of each run of Table 2."', '""', "Losses: caption is ''. Give it a text"),
    "an unknown experiment": ('("main",)', '("all",)', "Losses: experiments is ('all',). Give a tuple of sweep,"),
    "neither table nor figure": ("def figure", "def picture", "PerArchitecture: it has neither a table nor a figure"),
    "an error": ("from tlm_repro.reporting.exhibit", "from nowhere", "it can't be imported (ModuleNotFoundError: "),
    "no Python": ("class Losses(Exhibit):", "class", "it can't be imported (SyntaxError: "),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_file_that_cannot_be_used_is_one_clear_line(kind: str, tmp_path: Path):
    before, after, message = BROKEN[kind]
    assert before in own_exhibits.SOURCE
    with pytest.raises(ConfigError) as error:
        registry.members(own(tmp_path, own_exhibits.SOURCE.replace(before, after)))
    assert str(error.value).startswith(f"reporting.exhibits: {tmp_path / 'mine.py'}: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_without_an_exhibit_and_a_missing_one_are_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"mine\.py: no exhibit\. Define a subclass of tlm_repro"):
        registry.members(own(tmp_path, "import math\n"))
    with pytest.raises(ConfigError, match=r"none\.py: no such file\. Name one relative to where the workflow runs"):
        registry.members(study_grid(reporting={"exhibits": [str(tmp_path / "none.py")]}))
    with pytest.raises(ConfigError, match=r"config\.yaml: not a Python file\. Name a file that ends in \.py"):
        registry.members(study_grid(reporting={"exhibits": [str(tmp_path / "config.yaml")]}))


def test_a_file_that_is_named_twice_is_refused():
    with pytest.raises(ConfigError, match=r"reporting\.exhibits: 'a\.py'"):
        study_grid(reporting={"exhibits": ["a.py", "a.py"]})


def test_own_exhibits_move_no_id(tmp_path: Path):
    plain, more = study_grid(), own(tmp_path, own_exhibits.SOURCE)
    assert (more.runs, more.suites, more.novelty, more.samples) == (
        plain.runs,
        plain.suites,
        plain.novelty,
        plain.samples,
    )


def test_a_view_of_an_exhibit_that_is_gone_says_what_to_do(tmp_path: Path):
    grid = own(tmp_path, own_exhibits.SOURCE)
    view: View = registry.views(grid)["losses"]
    own(tmp_path, own_exhibits.SOURCE, **{'"losses"': '"other"'})
    with pytest.raises(ConfigError, match=r"mine\.py has no exhibit 'losses'\. Run the workflow again"):
        registry.find(view.exhibit)


def test_an_exhibit_without_a_sheet_shows_all_columns():
    class Plain(Exhibit):
        name, title, caption = "plain", "Plain", "A table."

    import pandas as pd

    frame = pd.DataFrame({"name": ["a", None], "value": [0.5, float("nan")], "count": [1, 2]})
    sheet = Plain().sheet(frame)
    assert sheet.text.to_dict("list") == {"name": ["a", ""], "value": ["0.5000", ""], "count": ["1", "2"]}
    assert sheet.numeric == ("value", "count")


IMPORTS: dict[str, Any] = {
    "tlm_repro.reporting.registry": (),
    "tlm_repro.reporting.claims.registry": (),
    "tlm_repro.reporting.report": (),
}


@pytest.mark.process
@pytest.mark.parametrize("module", IMPORTS)
def test_importing_reporting_loads_nothing_heavy(module: str):
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    heavy = {"numpy", "pandas", "scipy", "matplotlib", "seaborn", "torch", "transformers"}
    assert heavy & set(done.stdout.split()) == set()
