import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tlm_repro.artifacts.files import check_folder_is_ours, staging, write_json
from tlm_repro.artifacts.fingerprint import canonical_json, fingerprint
from tlm_repro.artifacts.lock import exclusive
from tlm_repro.artifacts.manifest import read_manifest, write_manifest
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


def test_canonical_json_ignores_order_and_refuses_nan():
    assert canonical_json({"b": 1, "a": [1.5, None]}) == '{"a":[1.5,null],"b":1}'
    with pytest.raises(ValueError, match="JSON"):
        canonical_json({"a": float("nan")})


def test_fingerprint_is_the_sha256_of_the_canonical_json():
    assert fingerprint({"b": 1, "a": 2}) == hashlib.sha256(b'{"a":2,"b":1}').hexdigest()[:8]


def test_a_failed_write_leaves_the_old_file_and_no_temporary(tmp_path: Path):
    target = tmp_path / "x.json"
    write_json(target, {"old": True})
    with pytest.raises(ValueError, match="JSON"):
        write_json(target, {"new": float("inf")})
    assert json.loads(target.read_text()) == {"old": True}
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_a_staged_folder_is_as_readable_as_any_new_file(tmp_path: Path):
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "file").touch()
    with staging(tmp_path, "model") as folder:
        (folder / "weights").touch(mode=0o600)
        (folder / "inner").mkdir(mode=0o700)
    for staged, usual in (("model", plain), ("model/inner", plain), ("model/weights", plain / "file")):
        assert (tmp_path / staged).stat().st_mode == usual.stat().st_mode


def test_staging_replaces_a_folder_whole_or_not_at_all(tmp_path: Path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/old").touch()

    def fail_half_way():
        with staging(tmp_path, "model") as folder:
            (folder / "new").touch()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["old"]
    with staging(tmp_path, "model") as folder:
        (folder / "new").touch()
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_manifest_round_trip(tmp_path: Path):
    manifest = read_manifest(product(tmp_path / "run"), kind="model", verify="sha256")
    assert manifest.files == {"part/a.bin": {"size": 3, "sha256": hashlib.sha256(b"abc").hexdigest()}}
    assert (manifest.id, manifest.spec, manifest.summary) == ("run-1", {"x": 1}, {"loss": 2.5})
    assert manifest.path("part/a.bin").read_bytes() == b"abc"
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
    with pytest.raises(ArtifactError, match="lists no file"):
        read_manifest(path).path("b")
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


@pytest.mark.process
def test_the_lock_makes_a_second_process_wait(tmp_path: Path):
    code = (
        "import sys, time; from pathlib import Path; from tlm_repro.artifacts.lock import exclusive\n"
        f"with exclusive(Path({str(tmp_path)!r})):\n"
        "    print('in', flush=True); time.sleep(1.5)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "in\n"
    start = time.monotonic()
    with exclusive(tmp_path, poll_seconds=0.05):
        waited = time.monotonic() - start
        assert holder.poll() is not None or waited > 1
    assert holder.wait() == 0


def test_a_folder_with_anything_else_in_it_is_refused(tmp_path: Path):
    own = ("model", "part_*.bin")
    check_folder_is_ours(tmp_path / "absent", own)
    for name in ("model", "part_1.bin", ".lock"):
        (tmp_path / name).touch()
    check_folder_is_ours(tmp_path, own)
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ArtifactError, match=r"holds 'thesis\.tex'"):
        check_folder_is_ours(tmp_path, own)
    with pytest.raises(ArtifactError, match="is a file"):
        check_folder_is_ours(tmp_path / "model", own)
