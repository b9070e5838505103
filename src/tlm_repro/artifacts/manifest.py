"""Manifests of stage products.

A stage writes a folder. Its `manifest.json` is written last and lists every file with its size and sha256. Readers open
files through the manifest, so a half-written folder is never mistaken for a finished one.
"""

import contextlib
import importlib.metadata
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypedDict, Unpack

from tlm_repro import __version__
from tlm_repro.artifacts.checksums import Checksums, identity, sha256_file
from tlm_repro.artifacts.files import read_json
from tlm_repro.errors import ArtifactError

Kind = Literal["data", "part", "model", "benchmarks", "samples"]
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
class RawManifest:
    """A manifest before its spec and summary are read: `records.manifests` has one class for each kind of product.

    `folder` is where the product lies now.
    """

    folder: Path
    kind: str
    id: str
    spec: dict[str, Any]
    summary: dict[str, Any]
    files: dict[str, dict[str, Any]]
    versions: dict[str, str]
    device: str
    wall_time_s: float


def versions() -> dict[str, str]:
    """Versions of this package, Python and the libraries that can change a result, read without importing them."""
    by_name = {"tlm-repro": __version__, "python": platform.python_version()}
    for package in VERSIONED_PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            by_name[package] = importlib.metadata.version(package)
    return by_name


class Product(TypedDict):
    """What a stage says of its product. `summary` has small results; `files` lie under the product's folder."""

    id: str
    spec: Mapping[str, Any]
    summary: Mapping[str, Any]
    files: Iterable[Path]
    device: str
    wall_time_s: float


def manifest_content(folder: Path, *, kind: Kind, **product: Unpack[Product]) -> dict[str, Any]:
    """The contents of `folder/manifest.json`, which a stage writes last."""
    checksums, entries = Checksums(folder), {}
    for path in sorted(product["files"]):
        name, file_identity = str(path.relative_to(folder)), identity(path)
        digest = sha256_file(path)
        checksums.store(name, digest, file_identity)
        entries[name] = {"size": file_identity[0], "sha256": digest}
    checksums.save()
    return {
        "schema": MANIFEST_SCHEMA,
        "kind": kind,
        "id": product["id"],
        "spec": dict(product["spec"]),
        "summary": dict(product["summary"]),
        "files": entries,
        "versions": versions(),
        "device": product["device"],
        "wall_time_s": round(product["wall_time_s"], 3),
    }


def read_manifest(path: Path, *, kind: str | None = None, verify: Literal["size", "sha256"] = "size") -> RawManifest:
    """Reads `manifest.json` and checks its files by size, or also by sha256, which is cached.

    Raises:
        ArtifactError: the manifest is missing, malformed or of another kind, or a file is missing or differs. The
            message names the file and says what to do.
    """
    raw = read_json(path)
    if not _is_manifest(raw):
        raise ArtifactError(f"{path} is not a manifest of schema {MANIFEST_SCHEMA}: delete it and run its stage again")
    if kind is not None and raw["kind"] != kind:
        raise ArtifactError(
            f"{path} describes a {raw['kind']} product, but a {kind} product is needed: pass the manifest of one"
        )
    folder = path.parent
    checksums = Checksums(folder) if verify == "sha256" else None
    for name, entry in raw["files"].items():
        check_inside(path, name)
        file = folder / name
        problem = None
        if not file.is_file():
            problem = "is missing"
        elif file.stat().st_size != entry["size"]:
            problem = f"has {file.stat().st_size} bytes, but its manifest says {entry['size']}"
        elif checksums and checksums.sha256(name) != entry["sha256"]:
            problem = "doesn't match the sha256 in its manifest"
        if problem:
            raise ArtifactError(
                f"{file} {problem}: delete {path} and run its stage again, or, if DVC fetched the product, "
                f"fetch it again with `dvc pull --force {folder}`"
            )
    if checksums:
        checksums.save()
    return RawManifest(folder=folder, **{name: raw[name] for name in MANIFEST_FIELDS})


def check_inside(manifest: Path, name: str) -> None:
    """Raises ArtifactError unless `name` is the path of a file below the manifest's folder, in its plain form."""
    plain = PurePosixPath(name)
    if plain.is_absolute() or ".." in plain.parts or str(plain) != name or name in (".", manifest.name):
        raise ArtifactError(
            f"{manifest}: files: {name!r:.200}. Files are named by their path below the manifest's folder. Delete the "
            "manifest and run its stage again, or, if DVC fetched the product, fetch it again with "
            f"`dvc pull --force {manifest.parent}`."
        )


def _is_manifest(raw: Any) -> bool:
    """Whether `raw` has the structure of `manifest_content`."""
    if not isinstance(raw, dict) or raw.get("schema") != MANIFEST_SCHEMA:
        return False
    if not all(isinstance(raw.get(name), kind) for name, kind in MANIFEST_FIELDS.items()):
        return False
    entries = raw["files"].values()
    return bool(entries) and all(isinstance(entry, dict) and {"size", "sha256"} <= entry.keys() for entry in entries)
