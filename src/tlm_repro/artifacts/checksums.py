"""sha256 of large files, computed once: remembered with what a changed file can't keep, outside the product itself.

A file is held for the same while its path, size, time of modification and inode are. One record a folder, replaced
whole: processes that check the same folder at the same time only do the same work twice.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

Identity = tuple[int, int, int]  # size, modification time in ns, inode


def cache_folder() -> Path:
    """`$TLM_CACHE`, else tlm-repro in the user's cache folder (`$XDG_CACHE_HOME`, ~/.cache)."""
    if chosen := os.environ.get("TLM_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tlm-repro"


def identity(path: Path) -> Identity:
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ino


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Checksums:
    """Remembered checksums of the files of one folder. What can't be read or written is only not remembered."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        name = hashlib.sha256(str(self.folder).encode()).hexdigest()[:32]
        self.record = cache_folder() / "checksums" / f"{name}.json"
        self.known: dict[str, Any] = {}
        self.changed = False
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(self.record.read_text(encoding="utf-8"))
            if isinstance(found, dict) and found.get("folder") == str(self.folder):
                self.known = found["files"] if isinstance(found.get("files"), dict) else {}

    def sha256(self, name: str) -> str:
        """Of the file `name` in the folder; read in full only where it isn't the one that was read before."""
        path = self.folder / name
        before = identity(path)
        if self.known.get(name, [None])[:-1] == list(before):
            return str(self.known[name][-1])
        digest = sha256_file(path)
        if identity(path) == before:  # else it was written to meanwhile
            self.remember(name, digest, before)
        return digest

    def remember(self, name: str, digest: str, seen: Identity) -> None:
        self.known[name] = [*seen, digest]
        self.changed = True

    def save(self) -> None:
        if not self.changed:
            return
        with contextlib.suppress(OSError):
            self.record.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=".", dir=self.record.parent)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"folder": str(self.folder), "files": self.known}, file)
            Path(temporary).replace(self.record)
        self.changed = False
