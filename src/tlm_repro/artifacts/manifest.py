"""Manifests of stage products.

A stage writes a folder; its `manifest.json` is written last and names every file with its size and sha256. Readers go
through the manifest, so a half-written folder is never mistaken for a finished one.
"""

import contextlib
import importlib.metadata
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tlm_repro import __version__
from tlm_repro.artifacts.checksums import Checksums, identity
from tlm_repro.artifacts.checksums import sha256_file as sha256_file
from tlm_repro.artifacts.files import read_json, write_json
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
