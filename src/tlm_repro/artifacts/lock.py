"""An advisory lock on a folder."""

import contextlib
import errno
import fcntl
import os
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tlm_repro.artifacts.checksums import sha256_file as sha256_file


@contextlib.contextmanager
def exclusive(folder: Path, poll_seconds: float = 1.0) -> Iterator[None]:
    """Holds an advisory lock on `folder`, waiting (with one line on stderr) for a process that already has it.

    A workflow that was killed can leave its job running: without the lock a restarted job would write the same files
    at the same time. Where the file system has no locks it says so and goes on.
    """
    folder.mkdir(parents=True, exist_ok=True)
    told = False
    with (folder / ".lock").open("a+") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    file.seek(0)
                    print(
                        f"waiting for another process ({file.read().strip() or 'unknown'}) to leave {folder}",
                        file=sys.stderr,
                    )
                    told = True
                time.sleep(poll_seconds)
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL):
                    raise
                print(
                    f"no file locks under {folder}: make sure that one process at a time writes there", file=sys.stderr
                )
                break
        file.seek(0)
        file.truncate()
        file.write(f"pid {os.getpid()} on {platform.node()}")
        file.flush()
        yield
