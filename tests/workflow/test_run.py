"""The real workflow on a small corpus: every rule once, then the same with its processes killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from small_workflow import checkout, small_config

from tlm_repro.config.loading import load
from tlm_repro.reporting.claims.registry import ENTRIES
from tlm_repro.reporting.registry import figures, tables
from tlm_repro.study.grid import expand


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tlm_repro", "workflow", "--profile", "profiles/demo", "--cores", "2", *arguments]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run(folder: Path, *arguments: str) -> str:
    process = start(folder, *arguments)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    return output


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = checkout(tmp_path_factory.mktemp("finished"), small_config())
    run(folder, "all")
    return folder


def test_every_product_is_there(finished: Path):
    results = finished / "results"
    grid = expand(load(finished / "config.yaml"))
    assert {"motivation", "main"} <= {*tables(grid), *figures(grid)}
    for name in tables(grid):
        for suffix in ("csv", "md", "tex"):
            assert (results / f"tables/{name}.{suffix}").stat().st_size > 0
    for name in figures(grid):
        for suffix in ("svg", "pdf", "png"):
            assert (results / f"figures/{name}.{suffix}").stat().st_size > 0
    assert "oy scale" in (results / "report.html").read_text()
    claims = json.loads((results / "claims.json").read_text())
    assert [claim["number"] for claim in claims["claims"]] == list(range(1, len(ENTRIES) + 1))
    assert not any(claim["evidence"] for claim in claims["claims"])
    equal = claims["claims"][9]
    assert equal["outcome"] == "reproduced"


def test_a_number_is_the_same_all_the_way(finished: Path):
    """The trainer's last validation loss, the evaluation and the table agree on one model."""
    table = pd.read_csv(finished / "results/tables/sweep.csv").set_index("allocation")
    run_folder = next((finished / "results/models").glob("transformer_440m-toy_cosine-1.5-0.5_*"))
    evaluation = next((finished / f"results/evaluations/{run_folder.name}").glob("validation-*.json"))
    measured = json.loads(evaluation.read_text())["metrics"]
    assert table.loc["cosine-1.5-0.5", "val_loss"] == measured["val_loss"]["value"]
    assert table.loc["cosine-1.5-0.5", "published_val_ppl"] == 14.44
    manifest = json.loads((run_folder / "manifest.json").read_text())
    assert manifest["summary"]["tokens"] == 10_240
    widths = manifest["spec"]["model"]["intermediate_sizes"]
    assert (widths[0], widths[-1], sum(widths)) == (192, 64, 6 * 128)
    weights = json.loads((run_folder / "model/config.json").read_text())
    assert weights["intermediate_sizes"] == widths


def test_then_nothing_is_left_to_do(finished: Path):
    for path in [*(finished / "workflow").rglob("*"), finished / "Snakefile", finished / "config.yaml"]:
        path.touch()
    assert "Nothing to be done" in run(finished, "all")


def test_a_target_of_snakemake_s_own_report_renders(finished: Path):
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "--report", "report.zip"], cwd=finished, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (finished / "report.zip").stat().st_size > 100_000


def test_killed_at_any_moment_it_ends_with_the_same_tables(finished: Path, tmp_path: Path):
    folder = checkout(tmp_path, small_config())
    for seconds in (7.0, 12.0, 17.0):
        process = start(folder, "results/tables/motivation.csv")
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    run(folder, "results/tables/motivation.csv")
    for suffix in ("csv", "md", "tex"):
        name = f"results/tables/motivation.{suffix}"
        assert (folder / name).read_bytes() == (finished / name).read_bytes()


def test_sigterm_saves_exits_with_its_own_code_and_the_next_attempt_resumes(finished: Path, tmp_path: Path):
    source = next((finished / "results/models").glob("transformer_440m-toy_uniform_*"))
    spec = json.loads((source / "manifest.json").read_text())["spec"]
    spec["training"]["steps"] = 400
    data = next((finished / "results/data").glob("*/manifest.json"))
    command = [sys.executable, "-m", "tlm_repro", "pretrain", "--spec", json.dumps(spec), "--data", str(data)]
    command += ["--checkpoints", str(tmp_path / "checkpoints"), "--out", str(tmp_path / "model/manifest.json")]
    first = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    metrics = tmp_path / "checkpoints/metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    first.terminate()
    _, output = first.communicate(timeout=120)
    assert first.returncode == 75, output
    assert output.strip().splitlines()[-1].startswith("tlm-repro: error: stopped by SIGTERM after step ")
    second = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    assert second.returncode == 0, second.stderr
    assert "resumes after step" in second.stderr
    steps = [json.loads(line)["step"] for line in (tmp_path / "model/metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, 401))
