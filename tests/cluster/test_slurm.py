"""The workflow through a real SLURM: what its profile submits, and that no disturbance changes a weight.

`make test-cluster` installs SLURM and runs these; without TLM_CLUSTER_TESTS they are skipped, since they start daemons
as root and lay their configuration under /etc/slurm.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import slurm
import yaml
from small_workflow import checkout, small_config

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif("TLM_CLUSTER_TESTS" not in os.environ, reason="starts a SLURM as root: `make test-cluster`"),
]
STEPS = 400  # of the runs that are disturbed
# What a small machine without accounting needs beside the profile.
OPTIONS = [
    *("--configfile", "config.yaml"),
    *("--slurm-status-command", "squeue", "--slurm-init-seconds-before-status-checks", "2", "--latency-wait", "5"),
    *("--default-resources", "mem_mb=500", "runtime=10", "nodes=1", "tasks=1", "--set-threads", "tokenize=1"),
]
RESOURCES = [
    *("tokenize:mem_mb=1000", "pretrain:mem_mb=1000", "pretrain:cpus_per_task=1"),
    *("evaluate:mem_mb=1000", "evaluate:cpus_per_task=1"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm.Cluster]:
    assert slurm.missing_programs() == []
    with slurm.cluster(tmp_path_factory.mktemp("slurm")) as made:
        yield made


def config(**hardware: int) -> dict[str, Any]:
    """One run with all that is read from it, long enough to be disturbed; checkpoints come with signals alone."""
    small = small_config()
    small["experiments"] = {"main": {**small["experiments"]["main"], "allocations": ["uniform", "tapered"]}}
    scale = small["scales"]["760m-toy"]
    small["scales"] = {"760m-toy": {**scale, "tokens": STEPS * scale["batch_tokens"], "hardware": hardware}}
    small["trainer"] |= {"checkpoint_seconds": 600}
    small["novelty"] = small["evaluation"]["niah"] = None
    return small


class Workflow:
    """A checkout and the calls of Snakemake in it."""

    def __init__(self, folder: Path, settings: dict[str, Any], data: Path | None = None) -> None:
        folder.mkdir()
        self.folder = checkout(folder, settings)
        (folder / "slurm").symlink_to("profiles/slurm")
        if data is not None:
            shutil.copytree(data, folder / "results/data")
        programs = folder / "bin"
        programs.mkdir()
        recorder = programs / "sbatch"
        record = f'printf "%s\\n" "$*" >> {folder}/sbatch.txt'
        recorder.write_text(f'#!/bin/bash\n{record}\nexec {shutil.which("sbatch")} "$@"\n')
        recorder.chmod(0o755)
        path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": path, "HOME": str(folder), "OMP_NUM_THREADS": "1"}

    def start(self, *targets: str, retries: int = 3, resources: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        """`snakemake --profile slurm`, with requests that fit this machine."""
        options = [*OPTIONS, "--retries", str(retries), "--set-resources", *RESOURCES, *resources]
        with (self.folder / "snakemake.txt").open("w") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "snakemake", "--profile", "slurm", *options, "--", *targets],
                cwd=self.folder,
                env=self.environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return (self.folder / "snakemake.txt").read_text()

    def finish(self, process: subprocess.Popen[bytes]) -> None:
        assert process.wait(timeout=400) == 0, self.output

    def submissions(self, rule: str = "") -> list[str]:
        """The command lines of its jobs."""
        return [line for line in (self.folder / "sbatch.txt").read_text().splitlines() if f"rule_{rule}" in line]

    @property
    def run(self) -> str:
        """The id of the uniform run."""
        listed = subprocess.run(
            [sys.executable, "-c", LIST_RUNS], cwd=self.folder, capture_output=True, text=True, check=True
        )
        return next(line for line in listed.stdout.splitlines() if "uniform" in line)

    @property
    def target(self) -> str:
        return f"results/models/{self.run}/manifest.json"

    def steps(self) -> int:
        metrics = self.folder / f"results/checkpoints/{self.run}/metrics.jsonl"
        return metrics.read_bytes().count(b"\n") if metrics.exists() else 0

    def weights(self) -> str:
        file = self.folder / f"results/models/{self.run}/model/model.safetensors"
        return hashlib.sha256(file.read_bytes()).hexdigest()

    def log(self) -> str:
        file = self.folder / f"logs/pretrain/{self.run}.log"
        return file.read_text() if file.exists() else ""


LIST_RUNS = """
from pathlib import Path
from tlm_repro.config.loading import load
from tlm_repro.study.grid import expand
print(*expand(load(Path("config.yaml"))).runs, sep="\\n")
"""


@pytest.fixture(scope="module")
def undisturbed(cluster: slurm.Cluster, tmp_path_factory: pytest.TempPathFactory) -> Workflow:
    """Everything, through SLURM, with nothing in its way."""
    flow = Workflow(tmp_path_factory.mktemp("undisturbed") / "flow", config())
    flow.finish(flow.start("all"))
    assert cluster.node_states() == dict.fromkeys(slurm.NODES, "idle")
    return flow


@pytest.fixture
def flow(undisturbed: Workflow, tmp_path: Path) -> Workflow:
    """A fresh checkout with the data set alone."""
    return Workflow(tmp_path / "flow", config(), undisturbed.folder / "results/data")


def test_everything_runs_and_is_rendered(undisturbed: Workflow):
    results = undisturbed.folder / "results"
    assert (results / "report.html").stat().st_size > 0
    assert len(list((results / "models").glob("*/manifest.json"))) == 2
    claims = json.loads((results / "claims.json").read_text())
    assert claims["claims"][9]["outcome"] == "reproduced"


def test_each_run_is_one_task_on_one_node_with_one_request_for_gpus(undisturbed: Workflow):
    lines = undisturbed.submissions("pretrain")
    assert len(lines) == 2
    for line in lines:
        assert re.findall(r"--gpus\S*|--gres\S*", line) == ["--gpus-per-node=1"]
        assert re.findall(r"--ntasks\S*|-n \d+", line) == ["--ntasks=1"]
        assert "--nodes=1 " in line
        assert "--requeue" in line


def test_tables_and_figures_are_rendered_where_snakemake_runs(undisturbed: Workflow):
    rules = {re.search(r"rule_([a-z_]+?)(?:_wildcards|\s)", line)[1] for line in undisturbed.submissions()}
    assert rules == {"tokenize", "pretrain", "evaluate"}


def test_a_failed_job_names_a_log_that_says_why(flow: Workflow):
    (flow.folder / "results/checkpoints").mkdir(parents=True)
    (flow.folder / f"results/checkpoints/{flow.run}").write_text("in the way")
    process = flow.start(flow.target, retries=0)
    assert process.wait(timeout=300) != 0
    named = re.search(r"log: (logs/pretrain/\S+\.log)", flow.output)
    assert named is not None
    assert "tlm-repro: error:" in (flow.folder / named[1]).read_text()
    assert f"results/checkpoints/{flow.run}" in (flow.folder / named[1]).read_text()


Disturbance = Callable[[slurm.Cluster, Workflow, str], None]


def cancelled(cluster: slurm.Cluster, _: Workflow, job: str) -> None:
    cluster.call("scancel", job)


def requeued(cluster: slurm.Cluster, _: Workflow, job: str) -> None:
    cluster.call("scontrol", "requeue", job)


def preempted(cluster: slurm.Cluster, flow: Workflow, _: str) -> None:
    everything = [f"--nodes={len(slurm.NODES)}", f"--ntasks-per-node={slurm.CPUS}", "--exclusive", "--time=1"]
    cluster.call("sbatch", "--partition=urgent", *everything, f"--chdir={flow.folder}", "--wrap=sleep 1")


@pytest.mark.parametrize("disturb", [cancelled, requeued, preempted])
def test_a_run_that_slurm_stops_goes_on_from_its_last_step(
    cluster: slurm.Cluster, undisturbed: Workflow, flow: Workflow, disturb: Disturbance
):
    process = flow.start(flow.target)
    cluster.wait(lambda: flow.steps() >= 20, "twentieth step", 120)
    (job,) = cluster.running("pretrain")
    disturb(cluster, flow, job)
    cluster.wait(lambda: "stopped by SIGTERM after step" in flow.log(), "word of the signal", 30)
    stopped = re.search(r"stopped by SIGTERM after step (\d+)", flow.log())
    assert stopped is not None
    saved = flow.folder / f"results/checkpoints/{flow.run}/step-{int(stopped[1]):08d}/state.json"
    assert saved.exists()
    flow.finish(process)
    assert f"resumes after step {stopped[1]} from" in flow.log()
    assert flow.weights() == undisturbed.weights()


def test_a_time_limit_shorter_than_the_run(undisturbed: Workflow, flow: Workflow):
    """All but a few seconds of each job are kept for saving, so that two of them get nowhere near the end."""
    settings = yaml.safe_load((flow.folder / "config.yaml").read_text())
    settings["trainer"]["stop_before_seconds"] = 58
    (flow.folder / "config.yaml").write_text(yaml.safe_dump(settings))
    process = flow.start(flow.target, retries=1, resources=("pretrain:runtime=1",))
    assert process.wait(timeout=300) != 0
    assert len(flow.submissions("pretrain")) == 2
    assert "resumes after step" in flow.log()
    assert "stopped by the job's time limit after step" in flow.log()
    flow.finish(flow.start(flow.target, resources=("pretrain:runtime=10",)))
    assert flow.weights() == undisturbed.weights()


def test_a_drained_node_is_waited_for(cluster: slurm.Cluster, undisturbed: Workflow, flow: Workflow):
    for node in slurm.NODES:
        cluster.call("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")
    try:
        process = flow.start(flow.target)
        cluster.wait(lambda: "has been submitted" in flow.output, "submission", 60)
        time.sleep(3)
        assert cluster.running("pretrain") == []
    finally:
        for node in slurm.NODES:
            cluster.call("scontrol", "update", f"NodeName={node}", "State=RESUME")
    flow.finish(process)
    assert flow.weights() == undisturbed.weights()


def test_two_nodes_train_one_run(undisturbed: Workflow, tmp_path: Path):
    """Two processes add their gradients in another order: equal to rounding, not to the bit."""
    flow = Workflow(tmp_path / "flow", config(processes=2, nodes=2), undisturbed.folder / "results/data")
    flow.finish(flow.start(flow.target))
    (line,) = flow.submissions("pretrain")
    assert "--nodes=2 " in line
    assert "--ntasks=2 " in line
    assert re.findall(r"--gpus\S*|--gres\S*", line) == ["--gpus-per-node=1"]
    assert flow.run == undisturbed.run
    losses = [
        [json.loads(row)["loss"] for row in (one.folder / f"results/models/{one.run}/metrics.jsonl").open()]
        for one in (flow, undisturbed)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
