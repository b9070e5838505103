import subprocess
import sys
import time
from pathlib import Path

import pytest

from tlm_repro.artifacts.lock import exclusive


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
