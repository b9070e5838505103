"""What publishing records and sends, and what it never does."""

import hashlib
import re
import shutil
from pathlib import Path

import yaml
from products import another_run, describe, evaluation, product

from tlm_repro.artifacts.files import write_json
from tlm_repro.config.loading import load
from tlm_repro.study.grid import expand

RUN = another_run().id


def recorded(folder: Path, stage: str) -> int:
    return yaml.safe_load((folder / "dvc.lock").read_text())["stages"][stage]["outs"][0]["nfiles"]


def another_config(folder: Path) -> None:
    """Other runs on the same data."""
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["training"]["learning_rate"]["peak"] = 1e-4
    (folder / "config.yaml").write_text(yaml.safe_dump(config))


def test_what_is_half_done_or_damaged_never_travels(clone: Path, run):
    """Also from a clone where nothing else was pulled; what was published before stays published."""
    before = recorded(clone, "pretrain")
    models = clone / "results/models"
    product(clone / "results", another_run())
    half = models / another_run("half").id
    (half / "model").mkdir(parents=True)
    (half / "model/model.safetensors").write_bytes(b"half")
    bad = another_run("bad")
    product(clone / "results", bad)
    (models / bad.id / "spec.json").write_bytes(b"short")
    (models / f".{RUN}.part").write_text("temporary")
    output = run(clone, "tlm-repro publish --all pretrain", code=1)
    assert f"skipped, unfinished: {half.relative_to(clone)}" in output
    assert f"{bad.id}/spec.json has 5 bytes, but its manifest says 500" in output
    assert recorded(clone, "pretrain") == before + 5
    run(clone, "git commit -qam more")
    run(clone.parent, "git clone -q colleague third")
    run(clone.parent / "third", "dvc pull pretrain")
    grid = expand(load(clone / "config.yaml"))
    assert {path.name for path in (clone.parent / "third/results/models").iterdir()} == {*grid.runs, RUN}


def test_the_first_published_stays_unless_it_is_replaced(clone: Path, run):
    run(clone, "dvc pull evaluate")
    grid = expand(load(clone / "config.yaml"))
    first, spec = next(iter(grid.runs.items()))
    name, suite = next(iter(grid.suites[first].items()))
    path = clone / f"results/evaluations/{first}/{name}.json"
    write_json(path, {**evaluation(spec, suite), "device": "another"})
    lock = (clone / "dvc.lock").read_text()
    output = run(clone, "tlm-repro publish evaluate")
    assert f"published with other contents (use --replace to replace it): {path.relative_to(clone)}" in output
    assert (clone / "dvc.lock").read_text() == lock
    assert "1 added" in run(clone, "tlm-repro publish --replace evaluate")
    assert (clone / "dvc.lock").read_text() != lock


def test_pruning_drops_what_the_configuration_does_not_ask_for(clone: Path, run):
    before = recorded(clone, "pretrain")
    product(clone / "results", another_run())
    run(clone, "tlm-repro publish --all --no-push pretrain")
    assert recorded(clone, "pretrain") == before + 5
    assert "5 files dropped" in run(clone, "tlm-repro publish --prune pretrain evaluate")
    assert recorded(clone, "pretrain") == before


def test_pruning_keeps_what_any_of_several_configurations_asks_for(clone: Path, run):
    config = yaml.safe_load((clone / "config.yaml").read_text())
    config["training"]["learning_rate"]["peak"] = 1e-4
    (clone / "other.yaml").write_text(yaml.safe_dump(config))
    grid = expand(load(clone / "other.yaml"))
    first, spec = next(iter(grid.runs.items()))
    name, suite = next(iter(grid.suites[first].items()))
    write_json(clone / f"results/evaluations/{first}/{name}.json", evaluation(spec, suite))
    before = recorded(clone, "evaluate")
    both = "tlm-repro publish --no-push --prune --config config.yaml --config other.yaml evaluate"
    assert "1 added" in run(clone, both)
    assert recorded(clone, "evaluate") == before + 1
    assert "1 files dropped" in run(clone, "tlm-repro publish --no-push --prune evaluate")
    assert recorded(clone, "evaluate") == before


def test_a_push_that_was_interrupted_resumes(clone: Path, run):
    """The remote takes all but one file: the others aren't sent again, and the list of them comes after them all."""
    folder = product(clone / "results", another_run()).parent
    remote = clone.parent / "tlm-repro-weights/files/md5"
    lists = set(remote.rglob("*.dir"))
    prefixes = {hashlib.md5(path.read_bytes()).hexdigest()[:2] for path in folder.rglob("*") if path.is_file()}
    blocked = next(remote / prefix for prefix in sorted(prefixes) if not (remote / prefix).exists())
    blocked.symlink_to("nowhere")
    output = run(clone, "tlm-repro publish --all pretrain", code=1)
    assert "run the same command again" in output
    assert "git add" not in output
    assert set(remote.rglob("*.dir")) == lists
    blocked.unlink()
    output = run(clone, "tlm-repro publish --all pretrain")
    assert "0 added, 1 already published" in output
    assert "sent 2 files" in output
    assert len(set(remote.rglob("*.dir")) - lists) == 1
    assert "sent 0 files" in run(clone, "tlm-repro publish --all pretrain")


def test_branches_with_other_grids_share_and_join(lab: Path, clone: Path, run):
    """Other runs, the same data: both records clash in dvc.lock; one command joins them, without their weights."""
    run(lab, "git clone -q colleague other")
    other = lab / "other"
    another_config(other)
    theirs = expand(load(other / "config.yaml"))
    product(other / "results", theirs.data)
    product(other / "results", next(iter(theirs.runs.values())))
    output = run(other, "tlm-repro publish data pretrain")
    assert "data: 0 added, 1 already published" in output
    assert "pretrain: 1 added" in output
    run(other, "git commit -qam theirs")
    product(clone / "results", another_run())
    run(clone, "tlm-repro publish --all pretrain && git commit -qam ours")
    run(clone, "git pull -q --no-rebase ../other main", code=1)
    output = run(clone, "tlm-repro join-lock")
    assert "pretrain: 5 files joined, 0 differ" in output
    assert not (clone / f"results/models/{next(iter(theirs.runs))}").exists()
    assert recorded(clone, "pretrain") == recorded(other, "pretrain") + 5
    run(clone, "git add dvc.lock && git commit -qm joined && dvc pull pretrain")
    assert (clone / f"results/models/{next(iter(theirs.runs))}/manifest.json").is_file()
    assert (clone / f"results/models/{RUN}/manifest.json").is_file()


def test_repro_asks_snakemake_and_records_only_what_is_whole(clone: Path, run):
    run(clone, "dvc pull evaluate needles data")
    another_config(clone)
    lock = (clone / "dvc.lock").read_text()
    half = clone / "results/data/half-0123abcd"
    half.mkdir()
    (half / "tokens").write_text("half")
    output = run(clone, "dvc repro data", code=255)
    assert "Nothing to be done" in output
    assert f"{half.relative_to(clone)} is unfinished: finish or delete it" in output
    assert (clone / "dvc.lock").read_text() == lock
    shutil.rmtree(half)
    run(clone, "dvc repro data")
    assert re.search(r"^ +md5: \w+\.dir$", (clone / "dvc.lock").read_text(), re.M)
    assert "data" not in run(clone, "dvc status data").replace("Data and", "")


def test_a_remote_in_the_repository_stays_small(clone: Path, run):
    text = (clone / "dvc.yaml").read_text()
    (clone / "dvc.yaml").write_text(text.replace("results/models: {persist: true, remote: weights}", "results/models"))
    run(clone, "cp -r ../tlm-repro-weights/files artifacts")
    folder = product(clone / "results", another_run()).parent
    (folder / "model/model.safetensors").write_bytes(b"\1" * 6_000_000)
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json"]
    describe(folder, another_run(), files)
    output = run(clone, "tlm-repro publish --all pretrain", code=1)
    assert "MB, but at most 5 MB are allowed" in output
