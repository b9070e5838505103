import hashlib
import json
import sys
from pathlib import Path

import pytest
from manifests import write_manifest

from tlm_repro.artifacts.manifest import read_manifest
from tlm_repro.errors import ArtifactError


def product(folder: Path) -> Path:
    (folder / "part").mkdir(parents=True)
    (folder / "part/a.bin").write_bytes(b"abc")
    return write_manifest(
        folder,
        kind="model",
        id="run-1",
        spec={"x": 1},
        summary={"loss": 2.5},
        files=[folder / "part/a.bin"],
        device="cpu",
        wall_time_s=1.23456,
    )


def test_manifest_round_trip(tmp_path: Path):
    manifest = read_manifest(product(tmp_path / "run"), kind="model", verify="sha256")
    assert manifest.files == {"part/a.bin": {"size": 3, "sha256": hashlib.sha256(b"abc").hexdigest()}}
    assert (manifest.id, manifest.spec, manifest.summary) == ("run-1", {"x": 1}, {"loss": 2.5})
    assert (manifest.folder / "part/a.bin").read_bytes() == b"abc"
    assert manifest.versions["python"] == ".".join(map(str, sys.version_info[:3]))


@pytest.mark.parametrize(
    ("damage", "verify", "message"),
    [
        (lambda file: file.unlink(), "size", "is missing"),
        (lambda file: file.write_bytes(b"abcd"), "size", "has 4 bytes, but its manifest says 3"),
        (lambda file: file.write_bytes(b"abd"), "sha256", "doesn't match the sha256 in its manifest"),
    ],
)
def test_a_product_that_differs_from_its_manifest_is_refused_by_name(tmp_path: Path, damage, verify, message):
    path = product(tmp_path / "run")
    damage(tmp_path / "run/part/a.bin")
    with pytest.raises(ArtifactError, match=rf"a\.bin.*{message}"):
        read_manifest(path, verify=verify)


def test_manifests_that_cannot_be_read_are_refused(tmp_path: Path):
    path = product(tmp_path / "run")
    with pytest.raises(ArtifactError, match="describes a model product, but a data product is needed"):
        read_manifest(path, kind="data")
    whole = json.loads(path.read_text())
    damaged = [{"schema": 99}, [], None, {"schema": 1}, {**whole, "files": []}, {**whole, "files": {"a": {}}}]
    for content in damaged:
        path.write_text(json.dumps(content))
        with pytest.raises(ArtifactError, match="not a manifest of schema 1"):
            read_manifest(path)
    with pytest.raises(ArtifactError, match="can't be read"):
        read_manifest(tmp_path)
    with pytest.raises(ArtifactError, match="does not exist"):
        read_manifest(tmp_path / "none/manifest.json")
    path.write_text("{")
    with pytest.raises(ArtifactError, match="not valid JSON"):
        read_manifest(path)


@pytest.mark.parametrize(
    "name", ["/etc/hostname", "../b.bin", "part/../part/a.bin", "./part/a.bin", "part//a.bin", "", "."]
)
def test_files_outside_the_folder_and_odd_paths_are_refused(tmp_path: Path, name: str):
    path = product(tmp_path / "run")
    (tmp_path / "b.bin").write_bytes(b"abc")
    content = json.loads(path.read_text())
    content["files"] = {name: content["files"]["part/a.bin"]}
    path.write_text(json.dumps(content))
    with pytest.raises(ArtifactError, match=r"manifest\.json: files: .* Files are named by their path below"):
        read_manifest(path)
