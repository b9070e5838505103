"""Runs Snakemake so that a killed run never blocks or misleads the next one.

Snakemake's own lock can't tell a running workflow from a killed one. Here the kernel holds the lock: it goes when the
process does, however it ends.
"""

import fcntl
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from tlm_repro.errors import TLMError


class WorkflowBusyError(TLMError):
    """Another Snakemake is at work in this folder."""


def clear_incomplete_marks(state: Path) -> None:
    """Deletes Snakemake's marks of outputs that a killed call left "incomplete", unless a workflow is at work.

    Each output here is written whole or not at all, so a mark says nothing of the file. Left there it would do harm: a
    marked job runs anew, and behind its existing output, taken as ancient, Snakemake plans nothing at all.
    """
    if any((state / "locks").glob("*.lock")):
        return
    for mark in (state / "incomplete").rglob("*"):
        if mark.is_file():
            mark.unlink(missing_ok=True)


def run_alone(arguments: Sequence[str]) -> NoReturn:
    """Becomes `snakemake` with `arguments`, in the current folder.

    Raises:
        WorkflowBusyError: another workflow that was started in this way is still running there.
    """
    state = Path(".snakemake")
    state.mkdir(exist_ok=True)
    lock = os.open(state / "running", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise WorkflowBusyError(f"a workflow is running in {Path.cwd()}: wait for it, or stop it first") from None
    for stale in (state / "locks").glob("*.lock"):
        stale.unlink()
    os.set_inheritable(lock, True)  # the lock lives as long as Snakemake; its jobs don't inherit it
    os.execv(sys.executable, [sys.executable, "-m", "snakemake", *arguments])
