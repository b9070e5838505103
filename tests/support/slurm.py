"""A SLURM of two nodes on this machine, for tests: munged, slurmctld and two slurmd from Debian, without systemd.

Needs root and the packages `slurm-wlm` and `munge`. The executor's jobs look for the configuration where SLURM has it
by default, so `/etc/slurm/slurm.conf` becomes a link to this cluster's, and is removed again.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "srun")
SYSTEM_CONFIG = Path("/etc/slurm")
NODES = ("n1", "n2")
CPUS, MEMORY_MB = 2, 8192  # of a node
PARTITIONS = ("main", "urgent")  # jobs of `urgent` preempt those of `main`

CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort=16817
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobRequeue=1
MinJobAge=300
KillWait={grace}
OverTimeLimit=0
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=0,requeue_setup_env_fail
SlurmdParameters=config_overrides
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime={grace}
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2 PreemptMode=OFF
"""
NODE_CONFIG = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory={memory} Gres=gpu:2"
)
# GPUs only by name: SLURM wants files that are devices, and gives each job its own CUDA_VISIBLE_DEVICES.
GPUS = "Name=gpu File=/dev/null,/dev/zero\n"


def missing_programs() -> list[str]:
    return [name for name in PROGRAMS if shutil.which(name) is None]


class Cluster:
    """The running cluster; every call is one of SLURM's own commands."""

    def __init__(self, folder: Path, *, grace: int) -> None:
        self.folder = folder
        self.grace = grace  # seconds between SIGTERM and SIGKILL
        self._daemons: list[subprocess.Popen[bytes]] = []
        for name in ("munge", "state"):
            (folder / name).mkdir(parents=True)
        (folder / "munge").chmod(0o755)
        host = socket.gethostname()
        nodes = "\n".join(
            NODE_CONFIG.format(name=name, host=host, port=16821 + index, cpus=CPUS, memory=MEMORY_MB)
            for index, name in enumerate(NODES)
        )
        (folder / "slurm.conf").write_text(CONFIG.format(host=host, nodes=nodes, folder=folder, grace=grace))
        (folder / "gres.conf").write_text(GPUS)

    def start(self) -> None:
        """Raises TimeoutError, with the daemons' logs, when the node doesn't come up."""
        key = self.folder / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        munge = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={self.folder}/munge/socket"]
        munge += [f"--{name}-file={self.folder}/munge/{name}" for name in ("log", "pid", "seed")]
        self._start(*munge)
        self.wait(lambda: (self.folder / "munge" / "socket").exists(), "munge's socket")
        SYSTEM_CONFIG.mkdir(exist_ok=True)
        for name in ("slurm.conf", "gres.conf"):
            link = SYSTEM_CONFIG / name
            if link.is_symlink():
                link.unlink()
            link.symlink_to(self.folder / name)
        self._start("slurmctld", "-D")
        for name in NODES:
            self._start("slurmd", "-D", "-N", name)
        self.wait(lambda: self.node_states() == dict.fromkeys(NODES, "idle"), "idle nodes")

    def _start(self, *command: str) -> None:
        log = (self.folder / f"{command[0]}-{len(self._daemons)}.out").open("wb")
        self._daemons.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))

    def stop(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            self.call("scancel", "--user=root")
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(timeout=20)
            except subprocess.TimeoutExpired:
                daemon.kill()
        for name in ("slurm.conf", "gres.conf"):
            (SYSTEM_CONFIG / name).unlink(missing_ok=True)

    def call(self, *command: str) -> str:
        """Output of a command. Raises subprocess.CalledProcessError when it fails."""
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    def node_states(self) -> dict[str, str]:
        try:
            lines = self.call("sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %T").splitlines()
        except subprocess.CalledProcessError:
            return {}
        return dict(line.split() for line in lines)

    def running(self, rule: str) -> list[str]:
        """The numbers of the running jobs of a rule: the executor puts its name into their comment."""
        lines = self.call("squeue", "--noheader", "--states=RUNNING", "--format=%A %k").splitlines()
        return [line.split()[0] for line in lines if f"rule_{rule}" in line]

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                logs = "\n".join(f"{path.name}:\n{path.read_text()[-2000:]}" for path in self.folder.glob("*.log"))
                raise TimeoutError(f"no {what} within {seconds} s\n{logs}")
            time.sleep(0.2)


@contextlib.contextmanager
def cluster(folder: Path, *, grace: int = 15) -> Iterator[Cluster]:
    made = Cluster(folder, grace=grace)
    try:
        made.start()
        yield made
    finally:
        made.stop()
