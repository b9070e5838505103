"""What training must know of SLURM: when it will be stopped, and where its other nodes are.

Everything is asked of SLURM's own commands by the job's number: Snakemake's executor takes most of SLURM's variables
out of a job's environment. Outside a job nothing here does anything.
"""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import NoReturn

from tlm_repro.errors import ConfigError

COMMAND_SECONDS = 30
FIRST_PORT, PORTS = 20_000, 20_000
# What torchrun lets its processes finish after SIGTERM, here a save; its own 30 s are short for the largest models.
LAUNCHER = ["-m", "torch.distributed.run", "--shutdown-timeout=120"]
KEPT = ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_CLUSTER_NAME", "SLURM_CONF")


def job() -> str | None:
    """The number of the SLURM job that this process is part of."""
    return os.environ.get("SLURM_JOB_ID")


def seconds(text: str) -> float | None:
    """Seconds in SLURM's `[days-][hours:]minutes:seconds`; None for UNLIMITED and whatever else isn't a time."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text.strip())
    if found is None:
        return None
    days, hours, minutes, rest = (int(part or 0) for part in found.groups())
    return 86_400.0 * days + 3_600 * hours + 60 * minutes + rest


def time_left() -> float | None:
    """Seconds until SLURM ends this job; None outside of one, without a limit, or when SLURM doesn't answer."""
    if job() is None:
        return None
    return seconds(_ask("squeue", "--noheader", f"--jobs={job()}", "--format=%L") or "")


def start_processes(arguments: Sequence[str], *, processes: int, nodes: int) -> None:
    """Becomes the launcher of `processes` processes on each of `nodes` nodes, each with these arguments.

    On one node that is torchrun. On several, one task a node is started through `srun` and becomes torchrun there; they
    meet at the first node, on a port made from the job's number. Returns in a process that is launched already, and
    where one process is asked for.

    Raises:
        ConfigError: several nodes outside a SLURM job that has them.
    """
    if "RANK" in os.environ or processes * nodes == 1:
        return
    module = ["-m", "tlm_repro", *arguments]
    if nodes == 1:
        _become([sys.executable, *LAUNCHER, "--standalone", f"--nproc-per-node={processes}", *module])
    number = job()
    if number is None:
        raise ConfigError(
            f"--nodes {nodes}: several nodes are reached through SLURM, and this is no SLURM job (SLURM_JOB_ID isn't "
            "set): submit it, or start torchrun on each node yourself"
        )
    if os.environ.get("SLURM_STEP_NUM_NODES") != str(nodes):
        forget_step()
        one_each = [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
        _become(["srun", "--overlap", "--kill-on-bad-exit=1", *one_each, sys.executable, *module])
    meeting = [f"--master-addr={first_address()}", f"--master-port={FIRST_PORT + int(number) % PORTS}"]
    places = [f"--nnodes={nodes}", f"--node-rank={os.environ['SLURM_NODEID']}", f"--nproc-per-node={processes}"]
    _become([sys.executable, *LAUNCHER, *places, *meeting, *module])


def forget_step() -> None:
    """Takes out what SLURM says of the step that this process runs in: srun would look for nodes there alone."""
    for name in list(os.environ):
        if name.startswith("SLURM_") and name not in KEPT:
            del os.environ[name]


def first_address() -> str:
    """The address of the first node of this step. Raises ConfigError when SLURM doesn't tell it."""
    nodes = os.environ["SLURM_STEP_NODELIST"]
    names = (_ask("scontrol", "show", "hostnames", nodes) or "").split()
    found = re.search(r"\bNodeAddr=(\S+)", _ask("scontrol", "show", "node", names[0]) or "") if names else None
    if found is None:
        raise ConfigError(f"SLURM doesn't say which nodes '{nodes}' are, or where: ask scontrol show hostnames, node")
    return found[1]


def _become(command: list[str]) -> NoReturn:
    os.execvp(command[0], command)


def _ask(*command: str) -> str | None:
    """What a command prints; None when it can't be run or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
