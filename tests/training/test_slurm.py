import os
import sys
from pathlib import Path

import pytest

from tlm_repro.errors import ConfigError
from tlm_repro.training import slurm


class Became(Exception):
    """Raised in the place of `execvp`, with the command."""


@pytest.fixture
def became(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("RANK", "SLURM_JOB_ID", "SLURM_STEP_NUM_NODES"):
        monkeypatch.delenv(name, raising=False)

    def execvp(_: str, command: list[str]) -> None:
        raise Became(command)

    monkeypatch.setattr(os, "execvp", execvp)
    return monkeypatch


def program(folder: Path, name: str, answer: str, patch: pytest.MonkeyPatch) -> None:
    """A command `name` that prints `answer` and leaves its arguments in `name`.txt."""
    path = folder / name
    path.write_text(f'#!/bin/sh\necho "$@" >> {folder}/{name}.txt\n{answer}\n')
    path.chmod(0o755)
    patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0:30", 30),
        ("59:59", 3599),
        ("1:00:00", 3600),
        ("2-03:04:05", 2 * 86400 + 3 * 3600 + 4 * 60 + 5),
        (" 5:00\n", 300),
        ("UNLIMITED", None),
        ("NOT_SET", None),
        ("INVALID", None),
        ("", None),
    ],
)
def test_slurm_s_way_to_write_a_time(text: str, value: float | None):
    assert slurm.seconds(text) == value


def test_the_time_left_is_asked_by_the_job_s_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program(tmp_path, "squeue", "echo 1:02:03", monkeypatch)
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    assert slurm.time_left() == 3723
    assert "--jobs=4711" in (tmp_path / "squeue.txt").read_text()


@pytest.mark.parametrize("answer", ["exit 1", "echo UNLIMITED", "true"])
def test_no_limit_that_slurm_would_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str):
    program(tmp_path, "squeue", answer, monkeypatch)
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    assert slurm.time_left() is None


def test_outside_a_job_nobody_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program(tmp_path, "squeue", "echo 1:00", monkeypatch)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert slurm.time_left() is None
    assert not (tmp_path / "squeue.txt").exists()


def test_one_process_is_its_own_launcher(became: pytest.MonkeyPatch):
    slurm.start_processes(["pretrain"], processes=1, nodes=1)
    became.setenv("RANK", "0")
    assert slurm.start_processes(["pretrain"], processes=8, nodes=2) is None


@pytest.mark.usefixtures("became")
def test_processes_of_one_node_start_through_torchrun():
    with pytest.raises(Became) as caught:
        slurm.start_processes(["pretrain", "--out", "x"], processes=4, nodes=1)
    assert caught.value.args[0] == [
        *(sys.executable, "-m", "torch.distributed.run", "--shutdown-timeout=120"),
        *("--standalone", "--nproc-per-node=4"),
        *("-m", "tlm_repro", "pretrain", "--out", "x"),
    ]


@pytest.mark.usefixtures("became")
def test_several_nodes_need_a_job():
    with pytest.raises(ConfigError, match=r"nodes: 2.*SLURM_JOB_ID"):
        slurm.start_processes(["pretrain"], processes=4, nodes=2)


def test_one_task_a_node_is_started_first(became: pytest.MonkeyPatch):
    became.setenv("SLURM_JOB_ID", "7")
    became.setenv("SLURM_STEP_NUM_NODES", "1")  # the executor's own step
    became.setenv("SLURM_NNODES", "1")
    with pytest.raises(Became) as caught:
        slurm.start_processes(["pretrain"], processes=4, nodes=2)
    command = caught.value.args[0]
    assert command[0] == "srun"
    assert {"--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--overlap", "--kill-on-bad-exit=1"} <= set(command)
    assert command[-3:] == ["-m", "tlm_repro", "pretrain"]
    assert {name for name in os.environ if name.startswith("SLURM_")} == {"SLURM_JOB_ID"}


def test_each_task_meets_the_others_at_the_first_node(tmp_path: Path, became: pytest.MonkeyPatch):
    answers = "case $2 in hostnames) printf 'node7\\nnode9\\n';; node) echo 'NodeName=n NodeAddr=10.0.0.7 x=1';; esac"
    program(tmp_path, "scontrol", answers, became)
    for name, value in {"JOB_ID": "70001", "STEP_NUM_NODES": "2", "STEP_NODELIST": "node[7,9]", "NODEID": "1"}.items():
        became.setenv(f"SLURM_{name}", value)
    with pytest.raises(Became) as caught:
        slurm.start_processes(["pretrain"], processes=4, nodes=2)
    assert {
        "--nnodes=2",
        "--node-rank=1",
        "--nproc-per-node=4",
        "--master-addr=10.0.0.7",
        "--master-port=30001",
    } <= set(caught.value.args[0])
    assert (tmp_path / "scontrol.txt").read_text() == "show hostnames node[7,9]\nshow node node7\n"


def test_nodes_that_slurm_does_not_know(tmp_path: Path, became: pytest.MonkeyPatch):
    program(tmp_path, "scontrol", "exit 1", became)
    for name, value in {"JOB_ID": "1", "STEP_NUM_NODES": "2", "STEP_NODELIST": "node[7,9]", "NODEID": "1"}.items():
        became.setenv(f"SLURM_{name}", value)
    with pytest.raises(ConfigError, match=r"'node\[7,9\]'"):
        slurm.start_processes(["pretrain"], processes=4, nodes=2)
