"""The repository itself, as a fresh clone has it."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from small_workflow import ROOT

from tlm_repro.sharing.products import TREES, survey
from tlm_repro.sharing.trees import REPOSITORY_LIMIT

EMPTY = ".dvc/cache/files/md5/d7/51713988987e9331980363e24189ce.dir"


@pytest.fixture
def fresh(tmp_path: Path, run) -> Path:
    if not (ROOT / ".git").exists():
        pytest.skip("no git history here")
    run(tmp_path, f"git clone -q {ROOT} fresh")
    return tmp_path / "fresh"


def test_the_bare_pull_succeeds_and_brings_what_the_lock_names(fresh: Path, run):
    run(fresh, "dvc pull")
    stages = yaml.safe_load((fresh / "dvc.lock").read_text())["stages"]
    assert set(stages) == set(TREES)
    for name, tree in TREES.items():
        present = [path for path in (fresh / "results" / tree).rglob("*") if path.is_file()]
        assert len(present) == stages[name]["outs"][0]["nfiles"]
        stage_survey = survey(name, fresh / "results")
        assert (stage_survey.unfinished, stage_survey.damaged) == ([], [])


def test_each_kind_can_be_pulled_where_nothing_of_it_is_published(fresh: Path, run):
    """The list of an empty tree is committed though DVC ignores its cache: `git add -f`, and never again."""
    assert EMPTY in run(fresh, "git ls-files .dvc/cache"), f"git add -f {EMPTY}"
    stages = yaml.safe_load((fresh / "dvc.lock").read_text())["stages"]
    for name in (name for name in TREES if not stages[name]["outs"][0]["nfiles"]):
        run(fresh, f"dvc pull {name}")


PAGE = "docs/results/laptop"
FORMS = {"tables": {".csv", ".md", ".tex"}, "figures": {".svg", ".png", ".pdf"}}


def test_the_study_is_rendered_anew_from_what_the_repository_holds(fresh: Path, run):
    """No training, no evaluation: the committed tables, report and claims come out of the pulled files to the byte."""
    committed = {path.relative_to(fresh / PAGE): path.read_bytes() for path in (fresh / PAGE).rglob("*.*")}
    run(fresh, "dvc pull evaluate novelty")
    run(fresh, "snakemake --cores 2 tables figures claims results/report.html --configfile config/laptop.yaml")
    assert not (fresh / "results/models").exists()
    generated = [path for path in committed if path != Path("README.md")]
    assert {path.suffix for path in generated if path.parent.name in FORMS} == {".md", ".png"}
    for path in (path for path in generated if path.parent.name in FORMS):
        rendered = (fresh / "results" / path.parent).glob(f"{path.stem}.*")
        assert {file.suffix for file in rendered if file.stat().st_size} == FORMS[path.parent.name], path
    same = [path for path in generated if path.suffix != ".png"]  # an image holds its library's version
    for path in (path for path in same if path != Path("report.html")):
        assert committed[path] == (fresh / "results" / path).read_bytes(), path
    # The committed report links to the committed forms alone, and lies in another folder.
    report = (fresh / "results/report.html").read_text().replace("../docs/fidelity.md", "../../fidelity.md")
    (body, links), (expected, all_links) = (
        text.split('<section id="files">') for text in (committed[Path("report.html")].decode(), report)
    )
    assert body == expected
    assert set(re.findall(r'href="([^"]+)"', links)) < set(re.findall(r'href="([^"]+)"', all_links))
    run(fresh, f"python tools/study_page.py config/laptop.yaml {PAGE}")
    again = {path.relative_to(fresh / PAGE): path.read_bytes() for path in (fresh / PAGE).rglob("*.*")}
    assert again.keys() == committed.keys()
    assert [path for path in same if again[path] != committed[path]] == []


def test_the_links_of_the_study_s_pages_lead_somewhere():
    folder = ROOT / PAGE
    for page, pattern in (("report.html", r'href="([^"#:]+)"'), ("README.md", r"\]\(([^)#:]+)\)")):
        links = re.findall(pattern, (folder / page).read_text())
        assert len(links) > 5
        assert [link for link in links if not (folder / link).exists()] == []


def test_the_remote_in_the_repository_is_small():
    listed = subprocess.run(
        ["git", "ls-files", "-co", "artifacts"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert sum((ROOT / name).stat().st_size for name in listed.stdout.split()) < REPOSITORY_LIMIT


def test_each_kind_of_artifact_has_a_stage_with_one_tree_that_dvc_repro_keeps():
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    outs = {name: stage["outs"] for name, stage in stages.items()}
    assert {name: [next(iter(out)) for out in found] for name, found in outs.items()} == {
        name: [f"results/{tree}"] for name, tree in TREES.items()
    }
    assert all(next(iter(found[0].values()))["persist"] for found in outs.values())
