"""What `--profile slurm` asks of SLURM for the paper's grid: the words of each sbatch line, against a file."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from small_workflow import ROOT, checkout

from tlm_repro.config.loading import load
from tlm_repro.spec.execution import Execution
from tlm_repro.study.grid import Grid, expand

GOLDEN = ROOT / "tests/golden/sbatch.json"
OTHERS = ("sinfo", "squeue", "sacct", "sacctmgr", "scontrol", "scancel")


@pytest.fixture(scope="module")
def grid() -> Grid:
    return expand(load(ROOT / "config/paper.yaml"))


@pytest.fixture
def login_node(tmp_path: Path) -> Path:
    """A clone on a machine whose sbatch writes down what it's asked for and refuses."""
    folder = checkout(tmp_path, {})
    (folder / "slurm").symlink_to("profiles/slurm")
    programs = folder / "bin"
    programs.mkdir()
    for name in OTHERS:
        (programs / name).write_text("#!/bin/sh\nexit 0\n")
    (programs / "sbatch").write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> {folder}/sbatch.txt\nexit 1\n')
    for path in programs.iterdir():
        path.chmod(0o755)
    return folder


def requests(folder: Path, *targets: str) -> list[tuple[str, str]]:
    """(rule and wildcards, what is asked for) of each job that is submitted."""
    command = [sys.executable, "-m", "snakemake", "--profile", "slurm", "--retries", "0", "--latency-wait", "1"]
    command += ["--slurm-init-seconds-before-status-checks", "1", "--configfile", str(ROOT / "config/paper.yaml")]
    path = f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [*command, "--", *targets],
        cwd=folder,
        env={**os.environ, "PATH": path, "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    lines = (folder / "sbatch.txt").read_text().splitlines()
    assert lines, done.stdout + done.stderr
    form = re.compile(r"--export=ALL --comment rule_(\S+) (.*?) -D ")
    return [match.groups() for line in lines if (match := form.search(line))]  # type: ignore[misc]


def write(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")


def test_a_run_asks_for_its_gpus_once(login_node: Path, grid: Grid):
    write(login_node, f"results/data/{grid.data.name}/manifest.json")
    asked = requests(login_node, "models")
    assert len(asked) == len(grid.runs)
    assert {job.removeprefix("pretrain_wildcards_") for job, _ in asked} == set(grid.runs)
    assert {words for _, words in asked} == {json.loads(GOLDEN.read_text())["pretrain"]}


def test_a_job_finds_out_by_itself_how_its_run_is_executed(login_node: Path, grid: Grid):
    """No JSON passes through sbatch: Snakemake evaluates the rule's resources again inside the job."""
    write(login_node, f"results/data/{grid.data.name}/manifest.json")
    run = next(name for name, spec in grid.runs.items() if spec.labels.scale == "1.3b")
    requests(login_node, f"results/models/{run}/manifest.json")
    (line,) = (login_node / "sbatch.txt").read_text().splitlines()
    assert "checkpoint_seconds" not in line
    program = login_node / "bin/srun"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    path = f"{login_node / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HOME": str(login_node), "SLURM_JOB_ID": "1"}
    Path(re.search(r"--wait-for-files '(\S+)'", line)[1]).mkdir()  # the login node's, gone with it
    wrapped = line.split("--wrap=", 1)[1]
    done = subprocess.run(wrapped, shell=True, cwd=login_node, env=environment, capture_output=True, text=True)
    command = next(text for text in done.stderr.splitlines() if "exec tlm-repro pretrain" in text)
    words = shlex.split(command)
    passed = Execution.from_json(words[words.index("--execution") + 1], "--execution")
    assert passed == grid.config.execution("1.3b") == Execution(processes=8, micro_batch_sequences=4, validations=50)


def test_each_other_rule_asks_as_written_down(login_node: Path, grid: Grid):
    golden = json.loads(GOLDEN.read_text())
    data = f"results/data/{grid.data.name}/manifest.json"
    seen = dict(requests(login_node, data))
    write(login_node, data, *(f"results/models/{run}/manifest.json" for run in grid.runs))
    run, suites = next(iter(grid.suites.items()))
    seen |= dict(requests(login_node, f"results/evaluations/{run}/{next(iter(suites))}.json"))
    seen |= dict(requests(login_node, f"results/novelty/{next(iter(grid.novelty))}.json"))
    found = {rule: words for rule in golden for job, words in seen.items() if job.split("_wildcards")[0] == rule}
    assert found == {rule: words for rule, words in golden.items() if rule != "pretrain"}
