"""Which products count as finished; what adding does with one that changes meanwhile. Without git and without pulls."""

import os
import shutil
from pathlib import Path

import pytest
from products import another_run, finish, product
from small_workflow import ROOT, checkout, small_config

from tlm_repro.artifacts.files import write_json
from tlm_repro.errors import ConfigError, SharingError
from tlm_repro.sharing import trees
from tlm_repro.sharing.products import TREES, needed, select_stages, survey

RUN = another_run().id


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


def test_what_a_configuration_asks_for_is_what_finishing_it_makes(tmp_path: Path):
    grid = finish(checkout(tmp_path, small_config()))
    for stage in TREES:
        stage_survey = survey(stage, tmp_path / "results")
        made = {str(product.path.relative_to(tmp_path / "results")) for product in stage_survey.finished}
        assert made == set(needed(grid, stage))
        assert (stage_survey.unfinished, stage_survey.damaged) == ([], [])


def test_a_folder_without_a_manifest_is_unfinished_and_hidden_files_are_nothing(results: Path):
    product(results, another_run()).unlink()
    (results / "models/.lock").touch()
    runs = survey("pretrain", results)
    assert ([*runs.finished], runs.unfinished, runs.damaged) == ([], [results / "models" / RUN], [])


@pytest.mark.parametrize("fault", ["stray", "name", "run", "suite"])
def test_a_product_that_isn_t_what_its_place_says_is_named(results: Path, fault: str):
    if fault == "stray":
        product(results, another_run())
        (results / "models" / RUN / "notes.txt").write_text("mine")
        expected, stage = "notes.txt isn't in", "pretrain"
    elif fault == "name":
        product(results, another_run())
        (results / "models" / RUN).rename(results / "models/other-0123abcd")
        expected, stage = f"id: '{RUN}'. The folder has the product's id, 'other-0123abcd'", "pretrain"
    else:
        grid = finish(checkout(results.parent, small_config()))
        first = next(iter(needed(grid, "evaluate")))
        path = results / first
        place = path.parent.with_name(RUN) / path.name if fault == "run" else path.with_name("niah-0123abcd.json")
        place.parent.mkdir(exist_ok=True)
        shutil.copy(path, place)
        expected = (
            f"The file's folder is of the run '{RUN}'" if fault == "run" else "The file's name has the suite 'niah'"
        )
        stage = "evaluate"
    damaged = survey(stage, results).damaged
    assert len(damaged) == 1
    assert expected in damaged[0]


def test_an_unknown_kind_is_refused():
    with pytest.raises(ConfigError, match="unknown stage 'models': choose one of data, pretrain"):
        select_stages(["models"])


def test_a_product_that_changes_while_it_is_read_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in (".dvc/config", "dvc.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    text = (tmp_path / ".dvc/config").read_text()
    (tmp_path / ".dvc/config").write_text(text.replace("[core]", "[core]\n    no_scm = true"))
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(tmp_path / "site"))
    for allocation in ("uniform", "tapered"):
        product(tmp_path / "results", another_run(allocation))
    steady, changing = sorted(survey("pretrain", tmp_path / "results").finished, key=lambda item: RUN not in str(item))
    os.utime(changing.path / "spec.json", (1, 1))
    with trees.open_repository(tmp_path) as repo:
        out = trees.output_of(repo, "pretrain")
        change = trees.add(out, [steady, changing])
        assert (change.added, change.unstable) == ([str(steady.path)], [str(changing.path)])
        assert {Path(name).parts[0] for name in trees.file_names(out)} == {RUN}


def test_what_is_no_lock_is_refused():
    with pytest.raises(SharingError, match=r"their dvc.lock is not valid YAML"):
        trees.parse_lock("<<<<<<< ours\na: [", "their dvc.lock")
    with pytest.raises(SharingError, match=r"doesn't have the structure of a dvc.lock"):
        trees.parse_lock("[1, 2]", "their dvc.lock")


def test_a_truncated_evaluation_is_refused_with_what_mends_it(results: Path):
    path = results / f"evaluations/{RUN}/validation-0123abcd.json"
    write_json(path, {"schema": 1})
    path.write_text(path.read_text()[:-5])
    damaged = survey("evaluate", results).damaged
    assert f"`dvc pull --force {path}`" in damaged[0]
