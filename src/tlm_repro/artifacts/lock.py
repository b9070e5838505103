"""An advisory lock on a folder."""

import contextlib
import errno
import fcntl
import os
import platform
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tlm_repro.errors import ArtifactError


def open_lock(path: Path, mode: int = 0o666) -> int:
    """The descriptor of a lock file, which is made if it doesn't exist.

    A symbolic link isn't followed: whoever can write to the folder could have its target emptied or locked.

    Raises:
        ArtifactError: `path` is a symbolic link or no regular file.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        seen = "a symbolic link" if error.errno == errno.ELOOP else "a folder" if path.is_dir() else None
        seen = seen or ("no regular file" if error.errno == errno.ENXIO else None)
        if seen is None:
            raise
    else:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        seen = "no regular file"
    raise ArtifactError(f"{path} is {seen}. A lock file must be a regular file. Delete it and try again")


@contextlib.contextmanager
def exclusive(folder: Path, poll_seconds: float = 1.0) -> Iterator[None]:
    """Holds an advisory lock on `folder`. If another process holds it, prints one line on stderr and waits.

    A killed workflow can leave its job running. Without the lock, the restarted job would write the same files at the
    same time. On a file system without locks, prints a warning and continues.

    Raises:
        ArtifactError: `folder/.lock` is a symbolic link or no regular file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    announced = False
    with os.fdopen(open_lock(folder / ".lock"), "r+", encoding="utf-8", errors="replace") as file:
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
