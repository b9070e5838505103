"""`tlm-repro workflow`: one Snakemake at a time, and a killed one leaves nothing locked."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

COMMAND = [sys.executable, "-m", "tlm_repro", "workflow", "--cores", "1"]
SNAKEFILE = """
rule slow:
    output: "out.txt"
    shell: "touch started; sleep {seconds}; echo done > {{output}}"
"""


def start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        COMMAND, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.1)


def test_a_killed_workflow_does_not_block_the_next(tmp_path: Path):
    (tmp_path / "Snakefile").write_text(SNAKEFILE.format(seconds=300))
    first = start(tmp_path)
    try:
        wait_for(tmp_path / "started")
        busy = subprocess.run(COMMAND, cwd=tmp_path, capture_output=True, text=True)
        assert busy.returncode == 1
        assert "a workflow is running in" in busy.stderr
        first.kill()  # Snakemake alone: its job lives on
        first.wait()
        assert list((tmp_path / ".snakemake/locks").iterdir())
        (tmp_path / "Snakefile").write_text(SNAKEFILE.format(seconds=0))
        second = start(tmp_path)
        output, _ = second.communicate(timeout=120)
        assert second.returncode == 0, output
        assert (tmp_path / "out.txt").read_text() == "done\n"
    finally:
        os.killpg(first.pid, signal.SIGKILL)
