"""What training needs from SLURM: when its job ends, and where the other nodes are.

SLURM's own commands are asked by the job's number, because Snakemake's executor removes most of SLURM's variables from
a job's environment. Outside a job, nothing here has an effect.
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
# Between SIGTERM and SIGKILL torchrun leaves time for a save: its default of 30 s is too short for the largest models.
LAUNCHER = ["-m", "torch.distributed.run", "--shutdown-timeout=120"]
KEPT_VARIABLES = ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_CLUSTER_NAME", "SLURM_CONF")


def job_number() -> str | None:
    """The number of the SLURM job that this process belongs to, or None."""
    return os.environ.get("SLURM_JOB_ID")


def seconds(text: str) -> float | None:
    """Seconds in SLURM's `[days-][hours:]minutes:seconds`; None for UNLIMITED and anything else that isn't a time."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text.strip())
    if match is None:
        return None
    days, hours, minutes, rest = (int(part or 0) for part in match.groups())
    return 86_400.0 * days + 3_600 * hours + 60 * minutes + rest


def time_left() -> float | None:
    """Seconds until SLURM ends this job. None outside a job, without a limit, or if SLURM doesn't answer."""
    if job_number() is None:
        return None
    return seconds(_output_of("squeue", "--noheader", f"--jobs={job_number()}", "--format=%L") or "")


def start_processes(arguments: Sequence[str], *, processes: int, nodes: int) -> None:
    """Replaces this process with the launcher of `processes` processes on each of `nodes` nodes.

    On one node the launcher is torchrun. On several, `srun` starts one task per node, and each becomes torchrun there.
    They meet at the first node, on a port derived from the job's number. Returns in a process that was launched
    already, and if there is only one process to start.

    Args:
        arguments: of `tlm-repro`, the same for each process.

    Raises:
        ConfigError: several nodes outside a SLURM job.
    """
    if "RANK" in os.environ or processes * nodes == 1:
        return
    module = ["-m", "tlm_repro", *arguments]
    if nodes == 1:
        _replace_process([sys.executable, *LAUNCHER, "--standalone", f"--nproc-per-node={processes}", *module])
    number = job_number()
    if number is None:
        raise ConfigError(
            f"--execution: nodes: {nodes}. Several nodes need a SLURM job, and SLURM_JOB_ID isn't set. "
            "Submit a job, or start torchrun on each node yourself"
        )
    if os.environ.get("SLURM_STEP_NUM_NODES") != str(nodes):
        forget_step()
        one_each = [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
        _replace_process(["srun", "--overlap", "--kill-on-bad-exit=1", *one_each, sys.executable, *module])
    meeting = [f"--master-addr={first_address()}", f"--master-port={FIRST_PORT + int(number) % PORTS}"]
    places = [f"--nnodes={nodes}", f"--node-rank={os.environ['SLURM_NODEID']}", f"--nproc-per-node={processes}"]
    _replace_process([sys.executable, *LAUNCHER, *places, *meeting, *module])


def forget_step() -> None:
    """Removes SLURM's variables about the current step, which would confine srun to the nodes of that step."""
    for name in list(os.environ):
        if name.startswith("SLURM_") and name not in KEPT_VARIABLES:
            del os.environ[name]


def first_address() -> str:
    """The address of the first node of this step. Raises ConfigError if SLURM doesn't give it."""
    nodes = os.environ["SLURM_STEP_NODELIST"]
    names = (_output_of("scontrol", "show", "hostnames", nodes) or "").split()
    match = re.search(r"\bNodeAddr=(\S+)", _output_of("scontrol", "show", "node", names[0]) or "") if names else None
    if match is None:
        raise ConfigError(
            f"SLURM gives no address for the nodes '{nodes}'. Check `scontrol show hostnames` and `scontrol show node`"
        )
    return match[1]


def _replace_process(command: list[str]) -> NoReturn:
    os.execvp(command[0], command)


def _output_of(*command: str) -> str | None:
    """What a command prints, or None if it can't be run or fails."""
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return completed.stdout
