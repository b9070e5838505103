"""Files that are either whole or absent: atomic writes, fingerprints, manifests and locks.

A stage writes a folder; its `manifest.json` is written last and names every file with its size and sha256. Readers go
through the manifest, so a half-written folder is never mistaken for a finished one.
"""

import contextlib
import errno
import fcntl
import fnmatch
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tlm_repro import __version__
from tlm_repro.checksums import Checksums, identity
from tlm_repro.checksums import sha256_file as sha256_file
from tlm_repro.errors import ArtifactError

MANIFEST_SCHEMA = 1
MANIFEST_FIELDS: dict[str, type | tuple[type, ...]] = {
    "kind": str,
    "id": str,
    "spec": dict,
    "summary": dict,
    "files": dict,
    "versions": dict,
    "device": str,
    "wall_time_s": (int, float),
}
VERSIONED_PACKAGES = ("torch", "transformers", "tokenizers", "accelerate", "datasets", "lm-eval", "numpy", "snakemake")


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text. Raises ValueError on NaN or infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def fingerprint(value: Any, length: int = 8) -> str:
    """The first `length` hexadecimal digits of the sha256 of `canonical_json(value)`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:length]


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yields a temporary sibling to write; it takes the name `path`, fsynced, only if the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~current_umask())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def current_umask() -> int:
    """The permissions that new files of this process don't get: it can only be read by setting it."""
    umask = os.umask(0)
    os.umask(umask)
    return umask


def check_writable(path: Path) -> None:
    """Raises ArtifactError where the file `path` couldn't be written: told before hours of work, not after them."""
    problem = "is a folder" if path.is_dir() else None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent) as file:
            file.write(b"x")
    except OSError as error:
        problem = problem or f"can't be written ({error.strerror or error})"
    if problem:
        raise ArtifactError(f"--out: {path} {problem}: name a file in a folder that can be written, with free space")


def refuse_foreign(folder: Path, own: Iterable[str]) -> None:
    """Raises ArtifactError where a product's folder holds what isn't part of it: writing it there could destroy that.

    Args:
        own: names, or patterns of names, of the product's own files and folders; hidden ones are passed over.
    """
    if folder.exists() and not folder.is_dir():
        raise ArtifactError(f"--out: {folder} is a file: name one in a folder of its own")
    patterns = tuple(own)
    for path in sorted(folder.glob("[!.]*")):
        if not any(fnmatch.fnmatchcase(path.name, pattern) for pattern in patterns):
            raise ArtifactError(
                f"--out: {folder} holds '{path.name}', which isn't of this command's making and could be lost: "
                "choose a folder of its own"
            )


def write_text(path: Path, text: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Writes `value` as indented JSON, atomically. Raises ValueError on NaN or infinity: null says "not measured"."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Raises ArtifactError, naming the file, when it is missing or isn't JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ArtifactError(f"{path} does not exist: run the stage that makes it") from None
    except OSError as error:
        raise ArtifactError(f"{path} can't be read ({error.strerror}): pass the path of a JSON file") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ArtifactError(
            f"{path} is not valid JSON ({error}): delete it and run its stage again, or, if it came by DVC, fetch it "
            f"anew with `dvc pull --force {path}`"
        ) from None


@contextlib.contextmanager
def staging(folder: Path, name: str) -> Iterator[Path]:
    """Yields an empty folder beside `folder/name` that replaces it only if the block succeeds.

    It and its files get the permissions that any new file would have: temporary folders and safetensors are private,
    and another account on a cluster couldn't read a trained model.
    """
    folder.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=folder))
    try:
        yield temporary
        for path in (temporary, *temporary.rglob("*")):
            path.chmod((0o777 if path.is_dir() else 0o666) & ~current_umask())
        final = folder / name
        if final.exists():
            shutil.rmtree(final)
        temporary.replace(final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


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


@dataclass(frozen=True)
class Manifest:
    """What a stage says of its product; `folder` is where it lies now."""

    folder: Path
    kind: str
    id: str
    spec: dict[str, Any]
    summary: dict[str, Any]
    files: dict[str, dict[str, Any]]
    versions: dict[str, str]
    device: str
    wall_time_s: float

    def path(self, name: str) -> Path:
        """The path of a file of the product. Raises ArtifactError when the manifest doesn't name it."""
        if name not in self.files:
            raise ArtifactError(
                f"{self.folder}/manifest.json names no file '{name}'; it has {', '.join(sorted(self.files))}"
            )
        return self.folder / name


def versions() -> dict[str, str]:
    """Versions of this package, Python and the libraries that can move a number, without importing them."""
    found = {"tlm-repro": __version__, "python": platform.python_version()}
    for package in VERSIONED_PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def write_manifest(
    folder: Path,
    *,
    kind: Literal["data", "part", "model", "benchmarks", "samples"],
    id: str,
    spec: Mapping[str, Any],
    summary: Mapping[str, Any],
    files: list[Path],
    device: str,
    wall_time_s: float,
) -> Path:
    """Writes `folder/manifest.json`, the last act of a stage. `files` lie under `folder`; `summary`: small results."""
    checksums, entries = Checksums(folder), {}
    for path in sorted(files):
        name, seen = str(path.relative_to(folder)), identity(path)
        digest = sha256_file(path)
        checksums.remember(name, digest, seen)
        entries[name] = {"size": seen[0], "sha256": digest}
    checksums.save()
    target = folder / "manifest.json"
    write_json(
        target,
        {
            "schema": MANIFEST_SCHEMA,
            "kind": kind,
            "id": id,
            "spec": dict(spec),
            "summary": dict(summary),
            "files": entries,
            "versions": versions(),
            "device": device,
            "wall_time_s": round(wall_time_s, 3),
        },
    )
    return target


def read_manifest(path: Path, *, kind: str | None = None, verify: Literal["size", "sha256"] = "size") -> Manifest:
    """Reads `manifest.json` and checks its files by size, or by sha256 too: once, then it is remembered.

    Raises:
        ArtifactError: the manifest is missing, malformed or of another kind, or a file is absent or differs; the
            message names the file and says how to mend it.
    """
    raw = read_json(path)
    if not _is_manifest(raw):
        raise ArtifactError(f"{path} is not a manifest of schema {MANIFEST_SCHEMA}: delete it and run its stage again")
    if kind is not None and raw["kind"] != kind:
        raise ArtifactError(
            f"{path} describes a {raw['kind']} product, a {kind} product was expected: pass another manifest"
        )
    folder = path.parent
    checksums = Checksums(folder) if verify == "sha256" else None
    for name, entry in raw["files"].items():
        file = folder / name
        problem = None
        if not file.is_file():
            problem = "is missing"
        elif file.stat().st_size != entry["size"]:
            problem = f"has {file.stat().st_size} bytes, its manifest says {entry['size']}"
        elif checksums and checksums.sha256(name) != entry["sha256"]:
            problem = "has another sha256 than its manifest says"
        if problem:
            raise ArtifactError(
                f"{file} {problem}: delete {path} and run its stage again, or, if the product came by DVC, "
                f"fetch it anew with `dvc pull --force {folder}`"
            )
    if checksums:
        checksums.save()
    return Manifest(folder=folder, **{name: raw[name] for name in MANIFEST_FIELDS})


def _is_manifest(raw: Any) -> bool:
    """Whether `raw` has the form that `write_manifest` gives it."""
    if not isinstance(raw, dict) or raw.get("schema") != MANIFEST_SCHEMA:
        return False
    if not all(isinstance(raw.get(name), kind) for name, kind in MANIFEST_FIELDS.items()):
        return False
    entries = raw["files"].values()
    return bool(entries) and all(isinstance(entry, dict) and {"size", "sha256"} <= entry.keys() for entry in entries)
