"""Atomic writes: a file or a folder is either whole or absent."""

import contextlib
import fnmatch
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tlm_repro.errors import ArtifactError


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yields a temporary file beside `path`. If the block succeeds, the file is fsynced and renamed to `path`."""
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
    """This process's umask."""
    umask = os.umask(0)  # the only way to read it is to set it
    os.umask(umask)
    return umask


def check_writable(path: Path) -> None:
    """Raises ArtifactError if the file `path` can't be written. Called before hours of work, not after them."""
    problem = "is a folder" if path.is_dir() else None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent) as file:
            file.write(b"x")
    except OSError as error:
        problem = problem or f"can't be written ({error.strerror or error})"
    if problem:
        raise ArtifactError(f"--out: {path} {problem}: name a file in a writable folder with free space")


def check_folder_is_ours(folder: Path, own: Iterable[str]) -> None:
    """Raises ArtifactError if a product's folder holds other files, which writing the product could destroy.

    Args:
        own: names, or patterns of names, of the product's own files and folders. Hidden files are ignored.
    """
    if folder.exists() and not folder.is_dir():
        raise ArtifactError(f"--out: {folder} is a file: name a folder that holds nothing else")
    patterns = tuple(own)
    for path in sorted(folder.glob("[!.]*")):
        if not any(fnmatch.fnmatchcase(path.name, pattern) for pattern in patterns):
            raise ArtifactError(
                f"--out: {folder} holds '{path.name}', which this command didn't write and could overwrite: "
                "name a folder that holds nothing else"
            )


def write_text(path: Path, text: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Writes indented JSON, atomically. Raises ValueError on NaN or infinity; use null for "not measured"."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """The parsed file. Raises ArtifactError, naming the file, if it is missing or isn't JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ArtifactError(f"{path} does not exist: run the stage that makes it") from None
    except OSError as error:
        raise ArtifactError(f"{path} can't be read ({error.strerror}): pass the path of a JSON file") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ArtifactError(
            f"{path} is not valid JSON ({error}): delete it and run its stage again, or, if DVC fetched it, fetch it "
            f"again with `dvc pull --force {path}`"
        ) from None


@contextlib.contextmanager
def staging(folder: Path, name: str) -> Iterator[Path]:
    """Yields an empty folder that replaces `folder/name` if the block succeeds.

    The folder and its files get the permissions of any new file. Temporary folders and safetensors files are private by
    default, so other accounts on a cluster couldn't read a trained model.
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
