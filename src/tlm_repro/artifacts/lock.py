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


@contextlib.contextmanager
def exclusive(folder: Path, poll_seconds: float = 1.0) -> Iterator[None]:
    """Holds an advisory lock on `folder`. If another process holds it, prints one line on stderr and waits.

    A killed workflow can leave its job running. Without the lock, the restarted job would write the same files at the
    same time. On a file system without locks, prints a warning and continues.
    """
    folder.mkdir(parents=True, exist_ok=True)
    announced = False
    with (folder / ".lock").open("a+") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not announced:
                    file.seek(0)
                    print(
                        f"waiting for another process ({file.read().strip() or 'unknown'}) to release {folder}",
                        file=sys.stderr,
                    )
                    announced = True
                time.sleep(poll_seconds)
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL):
                    raise
                print(
                    f"the file system of {folder} has no locks: let only one process at a time write there",
                    file=sys.stderr,
                )
                break
        file.seek(0)
        file.truncate()
        file.write(f"pid {os.getpid()} on {platform.node()}")
        file.flush()
        yield
