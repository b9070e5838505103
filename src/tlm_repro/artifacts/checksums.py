"""Cached sha256 checksums of large files.

A cached checksum is valid while the file's path, size, modification time and inode are unchanged. The cache lies
outside the product, one JSON file for each folder, and is replaced atomically: two processes that check the same folder
at once only compute the same checksums twice.
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
    """`$TLM_CACHE`, else `tlm-repro` in the user's cache folder (`$XDG_CACHE_HOME` or ~/.cache)."""
    if folder := os.environ.get("TLM_CACHE"):
        return Path(folder)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tlm-repro"


def identity(path: Path) -> Identity:
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Checksums:
    """Cached checksums of one folder's files. If the cache can't be read or written, checksums are recomputed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        name = hashlib.sha256(str(self.folder).encode()).hexdigest()[:32]
        self.cache_file = cache_folder() / "checksums" / f"{name}.json"
        self.entries: dict[str, Any] = {}  # by file name: size, modification time, inode, sha256
        self.changed = False
        with contextlib.suppress(OSError, ValueError):
            cache = json.loads(self.cache_file.read_text(encoding="utf-8"))
            if isinstance(cache, dict) and cache.get("folder") == str(self.folder):
                self.entries = cache["files"] if isinstance(cache.get("files"), dict) else {}

    def sha256(self, name: str) -> str:
        """The checksum of the file `name` in the folder. The file is read only if it changed since it was cached."""
        path = self.folder / name
        before = identity(path)
        if self.entries.get(name, [None])[:-1] == list(before):
            return str(self.entries[name][-1])
        digest = sha256_file(path)
        if identity(path) == before:  # not written to meanwhile
            self.store(name, digest, before)
        return digest

    def store(self, name: str, digest: str, file_identity: Identity) -> None:
        """Caches the checksum of the file that has this identity. `save` writes the cache."""
        self.entries[name] = [*file_identity, digest]
        self.changed = True

    def save(self) -> None:
        if not self.changed:
            return
        with contextlib.suppress(OSError):
            self.cache_file.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=".", dir=self.cache_file.parent)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"folder": str(self.folder), "files": self.entries}, file)
            Path(temporary).replace(self.cache_file)
        self.changed = False
