import hashlib
import os
from pathlib import Path

import pytest

from tlm_repro.artifacts import checksums
from tlm_repro.artifacts.checksums import Checksums


@pytest.fixture
def product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TLM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "product").mkdir()
    (tmp_path / "product/a").write_bytes(b"abc")
    return tmp_path / "product"


def read(folder: Path) -> str:
    cached = Checksums(folder)
    digest = cached.sha256("a")
    cached.save()
    return digest


def test_a_file_is_read_once(product: Path, monkeypatch: pytest.MonkeyPatch):
    assert read(product) == hashlib.sha256(b"abc").hexdigest()
    calls = []
    monkeypatch.setattr(checksums, "sha256_file", lambda path: calls.append(path) or "read again")
    assert read(product) == hashlib.sha256(b"abc").hexdigest()
    assert calls == []


@pytest.mark.parametrize("change", ["contents", "time", "inode"])
def test_a_changed_file_is_read_again(product: Path, change: str):
    read(product)
    path, before = product / "a", (product / "a").stat()
    if change == "contents":
        path.write_bytes(b"abcd")
    elif change == "time":
        path.write_bytes(b"xyz")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    else:
        (product / "b").write_bytes(b"xyz")
        os.utime(product / "b", ns=(before.st_atime_ns, before.st_mtime_ns))
        (product / "b").replace(path)
    assert read(product) == hashlib.sha256(path.read_bytes()).hexdigest()


def test_nothing_is_written_into_the_product_and_a_bad_record_counts_as_none(product: Path):
    read(product)
    assert [path.name for path in product.iterdir()] == ["a"]
    for record in (product.parent / "cache").rglob("*.json"):
        record.write_text("[1]")
    assert read(product) == hashlib.sha256(b"abc").hexdigest()


def test_where_it_can_t_be_remembered_it_is_still_checked(product: Path):
    (product.parent / "cache").write_text("a file where the folder should be")
    assert read(product) == hashlib.sha256(b"abc").hexdigest()
