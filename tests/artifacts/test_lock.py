import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tlm_repro.artifacts.lock import exclusive, open_lock
from tlm_repro.errors import ArtifactError


@pytest.mark.process
def test_the_lock_makes_a_second_process_wait(tmp_path: Path):
    code = (
        "import sys, time; from pathlib import Path; from tlm_repro.artifacts.lock import exclusive\n"
        f"with exclusive(Path({str(tmp_path)!r})):\n"
        "    print('in', flush=True); time.sleep(1.5)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "in\n"
    start = time.monotonic()
    with exclusive(tmp_path, poll_seconds=0.05):
        waited = time.monotonic() - start
        assert holder.poll() is not None or waited > 1
    assert holder.wait() == 0


def test_a_lock_file_is_never_a_link_to_another_file(tmp_path: Path):
    target, folder = tmp_path / "precious", tmp_path / "run"
    target.write_text("weights")
    folder.mkdir()
    (folder / ".lock").symlink_to(target)
    with pytest.raises(ArtifactError, match=r"run/\.lock is a symbolic link\. .* Delete it"), exclusive(folder):
        pytest.fail("locked a link")
    assert target.read_text() == "weights"
    (folder / ".lock").unlink()
    (folder / ".lock").symlink_to(tmp_path / "missing")
    with pytest.raises(ArtifactError, match="is a symbolic link"):
        open_lock(folder / ".lock")
    assert not (tmp_path / "missing").exists()


def test_a_lock_file_is_a_regular_file(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ArtifactError, match="is a folder"):
        open_lock(tmp_path / "folder")
    with pytest.raises(ArtifactError, match="is no regular file"):
        open_lock(tmp_path / "pipe")


def test_a_folder_that_is_a_link_is_locked(tmp_path: Path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    with exclusive(tmp_path / "run"):
        assert (tmp_path / "disk/.lock").read_text() == f"pid {os.getpid()} on {os.uname().nodename}"
