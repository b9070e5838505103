import json
from pathlib import Path

import pytest

from tlm_repro.artifacts.files import check_folder_is_ours, staging, write_json
from tlm_repro.errors import ArtifactError


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
