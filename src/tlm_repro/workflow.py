"""Runs Snakemake so that a killed run neither blocks nor misleads the next one.

Snakemake's own lock can't tell a running workflow from a killed one. Here the kernel holds the lock and releases it
when the process ends, however it ends.
"""

import fcntl
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from tlm_repro.artifacts.lock import open_lock
from tlm_repro.errors import TLMError


class WorkflowBusyError(TLMError):
    """Another Snakemake is running in this folder."""


def clear_incomplete_marks(state: Path) -> None:
    """Deletes the "incomplete" marks that a killed Snakemake left on outputs, unless a workflow is running.

    Every output here is written atomically, so a mark says nothing about the file. It would do harm, though: Snakemake
    runs a marked job again and, since that output is `ancient()`, plans nothing downstream of it.
    """
    if any((state / "locks").glob("*.lock")):
        return
    for mark in (state / "incomplete").rglob("*"):
        if mark.is_file():
            mark.unlink(missing_ok=True)


def run_alone(arguments: Sequence[str]) -> NoReturn:
    """Replaces this process with `snakemake` and `arguments`, in the current folder.

    Raises:
        ArtifactError: the lock file is a symbolic link.
        WorkflowBusyError: another workflow started by this function is still running there.
    """
    state = Path(".snakemake")
    state.mkdir(exist_ok=True)
    lock = open_lock(state / "running")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise WorkflowBusyError(f"a workflow is running in {Path.cwd()}: wait for it to finish, or stop it") from None
    for stale in (state / "locks").glob("*.lock"):
        stale.unlink()
    os.set_inheritable(lock, True)  # Snakemake keeps the lock open; its jobs don't inherit it
    os.execv(sys.executable, [sys.executable, "-m", "snakemake", *arguments])
