"""What a colleague's clone has after a pull, and what Snakemake then still has to do."""

import json
import os
import random
import re
import shutil
from pathlib import Path

import pytest
import yaml

from tlm_repro.artifacts.manifest import read_manifest
from tlm_repro.config.loading import load
from tlm_repro.study.grid import expand

EXPENSIVE = {"tokenize", "tokenize_start", "tokenize_part", "pretrain", "needle_samples", "evaluate", "measure_novelty"}
TREES = {"data", "models", "evaluations", "novelty", "needles"}


def jobs(output: str) -> dict[str, int]:
    if "Nothing to be done" in output:
        return {}
    table = output.split("Job stats:", 1)[1].split("total", 1)[0]
    return {name: int(count) for name, count in re.findall(r"^(\w+)\s+(\d+)$", table, re.M)}


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def scramble_times(folder: Path) -> None:
    chance = random.Random(0)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            moment = chance.randrange(1_000_000_000, 1_700_000_000)
            os.utime(path, (moment, moment))


def test_the_bare_pull_brings_all_that_the_lock_names(producer: Path, clone: Path, run):
    run(clone, "dvc pull")
    for tree in TREES:
        assert files(clone / "results" / tree) == files(producer / "results" / tree)
    grid = expand(load(clone / "config.yaml"))
    assert read_manifest(clone / f"results/data/{grid.data.name}/manifest.json", verify="sha256").id == grid.data.name
    assert run(clone, "dvc status") == "Data and pipelines are up to date.\n"


def test_after_a_pull_only_rendering_is_left(clone: Path, run):
    """Without Snakemake's metadata, at any times, after touching all, and after an older commit and back."""
    run(clone, "dvc pull")
    scramble_times(clone / "results")
    assert_only_rendering(run(clone, "snakemake -n all"))
    run(clone, "git ls-files -z | xargs -0 touch")
    assert_only_rendering(run(clone, "snakemake -n all"))
    run(clone, "git checkout -q HEAD~ && dvc checkout --allow-missing; git checkout -q main && dvc checkout")
    shutil.rmtree(clone / ".snakemake")
    assert_only_rendering(run(clone, "snakemake -n all"))


def assert_only_rendering(output: str) -> None:
    assert EXPENSIVE & set(jobs(output)) == set()
    assert {"table", "figure", "claims", "html_report"} <= set(jobs(output))


def test_evaluations_alone_render_the_producer_s_bytes(rendered: Path, clone: Path, run):
    run(clone, "dvc pull evaluate novelty")
    assert {path.name for path in (clone / "results").iterdir()} == {"evaluations", "novelty"}
    run(clone, "snakemake --cores 2 tables figures claims")
    for name in ("tables", "figures"):
        assert files(clone / "results" / name) == files(rendered / "results" / name)
        assert files(clone / "results" / name)
    for name in ("claims.json", "claims.md"):
        assert (clone / "results" / name).read_bytes() == (rendered / "results" / name).read_bytes()
    assert not (clone / "results/models").exists()
    assert "Nothing to be done" in run(clone, "snakemake -n tables figures claims")
    assert_metrics_and_plots(clone, run)
    # Another order of the same runs: every evaluation is there, and what shows them is made anew.
    config = yaml.safe_load((clone / "config.yaml").read_text())
    config["experiments"]["motivation"]["allocations"].reverse()
    (clone / "config.yaml").write_text(yaml.safe_dump(config))
    counts = jobs(run(clone, "snakemake -n tables figures claims"))
    assert EXPENSIVE & set(counts) == set()
    assert {"table", "figure", "claims"} <= set(counts)


def test_no_finished_run_is_trained_again_for_its_novelty_unless_that_is_asked_for(clone: Path, run):
    run(clone, "dvc pull evaluate")
    output = run(clone, "snakemake -n tables figures claims")
    assert "Left out: the layer novelty of 2 evaluated runs whose models aren't here" in output
    without = jobs(output)
    assert {"pretrain", "measure_novelty"} & set(without) == set()
    assert {"table", "figure", "claims"} <= set(without)
    assert jobs(run(clone, "snakemake -n novelty"))["pretrain"] == 2
    run(clone, "dvc pull novelty")
    output = run(clone, "snakemake -n tables figures claims")
    assert "Left out" not in output
    assert jobs(output)["table"] > without["table"]
    assert EXPENSIVE & set(jobs(output)) == set()


def assert_metrics_and_plots(clone: Path, run) -> None:
    grid = expand(load(clone / "config.yaml"))
    shown = run(clone, "dvc metrics show --json")
    assert all(f"results/evaluations/{run_id}/validation" in shown for run_id in grid.runs)
    drawn = run(clone, "dvc plots show --json --out plots")
    assert all(f"results/novelty/{name}.json" in drawn for name in grid.novelty)
    assert "results_figures_motivation.svg" in drawn


def test_one_run_and_one_data_set(producer: Path, clone: Path, run):
    grid = expand(load(clone / "config.yaml"))
    first = next(iter(grid.runs))
    run(clone, f"dvc pull results/models/{first} results/evaluations/{first}")
    assert [path.name for path in (clone / "results/models").iterdir()] == [first]
    assert [path.name for path in (clone / "results/evaluations").iterdir()] == [first]
    assert files(clone / "results/models" / first) == files(producer / "results/models" / first)
    run(clone, f"dvc pull results/data/{grid.data.name}")
    assert files(clone / "results/data") == files(producer / "results/data")


EDITS = {  # key and value → jobs of the expensive rules
    ("training.learning_rate.peak", 1e-4): {"pretrain": 4, "evaluate": 8, "measure_novelty": 2},
    ("evaluation.validation.tokens", 1024): {"evaluate": 4},
    ("evaluation.zero_shot.limit", 2): {"evaluate": 2},
    ("novelty.tokens", 128): {"measure_novelty": 2},
    ("trainer.validations", 1): {},
    ("name", "other"): {},
}


def test_an_edit_after_a_pull_schedules_exactly_what_it_changes(clone: Path, run):
    run(clone, "dvc pull")
    original = (clone / "config.yaml").read_text()
    for (key, value), expected in EDITS.items():
        config = yaml.safe_load(original)
        *parents, last = key.split(".")
        place = config
        for name in parents:
            place = place[name]
        assert last in place
        place[last] = value
        (clone / "config.yaml").write_text(yaml.safe_dump(config))
        counts = jobs(run(clone, "snakemake -n all"))
        assert {name: count for name, count in counts.items() if name in EXPENSIVE} == expected, key
        assert {"table", "figure", "claims"} <= set(counts)


@pytest.mark.parametrize(("stage", "remote"), [("evaluate", "artifacts"), ("needles", "../tlm-repro-weights")])
@pytest.mark.parametrize("kind", ["file", "list"])
def test_a_damaged_object_of_a_remote_is_refused(clone: Path, run, stage: str, remote: str, kind: str):
    """Each remote of .dvc/config has `verify = true`. The size of the object and its time stay the same."""
    recorded = yaml.safe_load((clone / "dvc.lock").read_text())["stages"][stage]["outs"][0]["md5"]
    objects = clone / remote / "files/md5"
    listing = objects / recorded[:2] / recorded[2:]
    md5 = json.loads(listing.read_text())[0]["md5"]
    damaged = listing if kind == "list" else objects / md5[:2] / md5[2:]
    whole, moment = damaged.read_bytes(), damaged.stat()
    damaged.chmod(0o644)
    # A list stays valid JSON: its first file gets another hash.
    damaged.write_bytes(whole.replace(md5.encode(), md5[::-1].encode()) if kind == "list" else b"?" + whole[1:])
    os.utime(damaged, ns=(moment.st_atime_ns, moment.st_mtime_ns))
    run(clone, f"dvc pull {stage}", code=1)
    tree = clone / "results" / {"evaluate": "evaluations"}.get(stage, stage)
    pulled = [path.read_bytes() for path in tree.rglob("*") if path.is_file()]
    assert damaged.read_bytes() not in pulled
    assert whole not in pulled
    damaged.write_bytes(whole)
    run(clone, f"dvc pull {stage}")
    assert files(tree)


def test_a_damaged_product_is_refused_by_name_and_mended_by_the_command_that_is_told(clone: Path, run):
    run(clone, "dvc pull")
    grid = expand(load(clone / "config.yaml"))
    weights = clone / f"results/models/{next(iter(grid.runs))}/model/model.safetensors"
    assert "0 damaged" in run(clone, "tlm-repro verify pretrain")
    weights.chmod(0o644)  # in place: the copy in DVC's cache, a hard link, is damaged with it
    with weights.open("r+b") as file:
        file.write(b"\0" * 7)
    message = run(clone, "tlm-repro verify pretrain", code=1)
    assert f"{weights.relative_to(clone)} doesn't match the sha256 in its manifest" in message
    mend = re.search(r"`(dvc pull --force [^`]+)`", message)
    assert mend
    run(clone, mend[1])
    assert "0 damaged" in run(clone, "tlm-repro verify pretrain")
    weights.unlink()
    message = run(clone, "tlm-repro verify pretrain", code=1)
    assert f"{weights.relative_to(clone)} is missing" in message
    run(clone, mend[1])
    assert "0 damaged" in run(clone, "tlm-repro verify pretrain")
