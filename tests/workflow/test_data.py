"""The rules that tokenise: with one job and with several, the same data set comes out."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from small_study import study
from small_workflow import ROOT


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """Three Parquet files, each long enough to be a part of its own."""
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(3):
        texts = [f"Report {number} of year {row}: {row * row} things." for row in range(10_000)]
        pd.DataFrame({"text": texts}).to_parquet(folder / f"train-{number:05}-of-00003.parquet")
    return folder


def checkout(folder: Path, corpus: Path, jobs: int) -> Path:
    for name in ("workflow", "profiles"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "Snakefile", folder / "Snakefile")
    config = study()
    config["data"] |= {
        "corpus": {"kind": "hub", "name": str(corpus), "split": "train"},
        "tokenizer": {"kind": "train", "vocab_size": 300, "training_bytes": 100_000},
        "train_tokens": 400_000,
        "shard_tokens": 100_000,
        "jobs": jobs,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


def run(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "snakemake", "--cores", "2", "data", *arguments]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def product(folder: Path) -> dict[str, bytes]:
    (data,) = (folder / "results/data").iterdir()
    files = [path for name in ("tokenizer", "train", "validation") for path in (data / name).iterdir()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in [*files, data / "validation.jsonl"]}


def test_jobs_share_the_work_and_none_of_it_shows(corpus: Path, tmp_path: Path):
    one = checkout(tmp_path / "one", corpus, jobs=1)
    several = checkout(tmp_path / "several", corpus, jobs=2)
    run(one)
    run(several)
    assert product(several) == product(one)
    assert "Nothing to be done" in run(several, "--dry-run")
    (manifest,) = (several / "results/data").glob("*/manifest.json")
    before = {path: path.stat().st_mtime_ns for path in (manifest.parent / "train").iterdir()}
    config = yaml.safe_load((several / "config.yaml").read_text())
    config["data"]["jobs"] = 3
    (several / "config.yaml").write_text(yaml.safe_dump(config))
    run(several)
    assert {path: path.stat().st_mtime_ns for path in (manifest.parent / "train").iterdir()} == before
    assert manifest.exists()
