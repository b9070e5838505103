"""Tokenising in several jobs: the same bytes as one job makes, whatever their number, and nothing done twice."""

import errno
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from tlm_repro.artifacts.manifest import read_manifest
from tlm_repro.data import corpora, gathering, parts, tokenisation
from tlm_repro.data.corpora import documents
from tlm_repro.data.gathering import gather
from tlm_repro.data.parts import tokenise_parts, write_plan
from tlm_repro.data.readers.base import Source
from tlm_repro.data.readers.files import FilesReader
from tlm_repro.data.readers.hub import HubReader
from tlm_repro.data.shards import TokenData
from tlm_repro.data.tokenisation import build
from tlm_repro.errors import ArtifactError, ConfigError, DataError
from tlm_repro.spec.data import DataSpec, FilesCorpus, HubCorpus, TrainedTokenizer

WORDS = ["tapered", "models", "spend", "their", "width", "early", "since", "late", "layers", "add", "little", "é"]
FILES = 7


def texts(seed):
    """Thirteen documents of 50 to 290 words; one is empty and one names the end-of-text token."""
    random = np.random.default_rng(seed)
    paragraphs = [" ".join(random.choice(WORDS, 50 + 20 * number)) for number in range(13)]
    return [*paragraphs[:4], " ", paragraphs[4] + " <|end_of_text|>\r\nand on", *paragraphs[5:]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The same documents as a data set of several Parquet files, and as JSONL and text files."""
    root = tmp_path_factory.mktemp("corpora")
    for name in ("hub", "rows", "files"):
        (root / name).mkdir()
    for number in range(FILES):
        rows = texts(number)
        frame = pd.DataFrame({"id": range(len(rows)), "text": rows})
        frame.to_parquet(root / "hub" / f"train-{number:05}-of-{FILES:05}.parquet", row_group_size=5)
        (root / "rows" / f"{number}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
        for index, text in enumerate(rows):
            (root / "files" / f"{number}-{index:02}.txt").write_text(text)
    return root


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """A part is one file of rows, or about fourteen text files; nothing waits for the disk."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(HubReader, "min_part_size", 1)
    monkeypatch.setattr(FilesReader, "min_part_size", 14_000)
    monkeypatch.setattr(parts, "PART_SHARD_TOKENS", 3000)
    monkeypatch.setattr(gathering, "COPIED_TOKENS", 700)


def corpus(folders, kind):
    return {
        "hub": HubCorpus(name=str(folders / "hub"), split="train"),
        "jsonl": FilesCorpus(paths=(str(folders / "rows" / "*.jsonl"),), format="jsonl"),
        "text": FilesCorpus(paths=(str(folders / "files" / "*.txt"),), format="text"),
    }[kind]


def data_spec(corpus, **changes):
    settings = {"validation_fraction": 0.2, "shard_tokens": 4096, "tokenizer": TrainedTokenizer(vocab_size=280)}
    return DataSpec(corpus=corpus, **{**settings, **changes})


def product(folder):
    """Every file of a finished data set, by name, but for what differs by time or by the way it was made."""
    own = [path for path in folder.rglob("*") if path.is_file() and "parts" not in path.parts]
    files = [path for path in own if path.name not in ("manifest.json", ".finished.json", ".lock")]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def in_jobs(spec, folder, jobs):
    write_plan(spec, folder)
    for job in reversed(range(jobs)):
        tokenise_parts(folder, job=job, jobs=jobs, workers=1)
    return gather(spec, folder, jobs=jobs, workers=1)


def assert_same_as_one_job(spec, folder, jobs):
    """Files, summary and file list equal those of `build`, which knows nothing of parts."""
    summary = in_jobs(spec, folder / "jobs", jobs)
    assert summary == build(spec, folder / "one", workers=1)
    assert product(folder / "jobs") == product(folder / "one")
    manifests = [read_manifest(folder / name / "manifest.json", verify="sha256") for name in ("jobs", "one")]
    assert manifests[0].files == manifests[1].files
    return summary


@pytest.mark.parametrize(("kind", "jobs"), [("hub", 2), ("jsonl", 5), ("text", 1), ("text", 2), ("text", 5)])
def test_every_number_of_jobs_writes_the_bytes_of_one(folders, tmp_path, kind, jobs):
    summary = assert_same_as_one_job(data_spec(corpus(folders, kind)), tmp_path, jobs)
    assert summary["train"]["documents"] + summary["validation"]["documents"] == FILES * 13
    assert len(summary["train"]["shards"]) > 3


BUDGETS = [
    {"train_tokens": 9001, "validation_tokens": 1003},  # both are met, validation first
    {"train_tokens": 3000, "validation_tokens": 9000},  # training first: later parts are read for validation alone
    {"train_tokens": 9001},  # reading ends at the training budget
    {"train_tokens": 1},  # and at the first held-out document
    {"train_tokens": 10, "validation_fraction": 0.02, "split_seed": 5},  # which is in a later part
    {"validation_tokens": 500},
    {"train_tokens": 10**7, "validation_tokens": 10**7},  # the corpus is too short
]


@pytest.mark.parametrize("changes", BUDGETS, ids=str)
def test_budgets_are_cut_where_one_job_cuts_them(folders, tmp_path, changes):
    assert_same_as_one_job(data_spec(corpus(folders, "text"), **changes), tmp_path, 3)


def test_a_budget_that_ends_with_a_part_ends_the_reading_there(folders, tmp_path):
    whole = data_spec(corpus(folders, "text"))
    plan = write_plan(whole, tmp_path / "plan")
    tokenise_parts(tmp_path / "plan", job=0, jobs=1, workers=1)
    ends = np.cumsum(
        [
            read_manifest(parts.part_folder(tmp_path / "plan", index) / "manifest.json").summary["train"]["tokens"]
            for index in range(len(plan.parts))
        ]
    )
    for number, budget in enumerate((ends[1], ends[1] - 1, ends[1] + 1)):
        spec = data_spec(corpus(folders, "text"), train_tokens=int(budget))
        assert_same_as_one_job(spec, tmp_path / str(number), 2)


def test_documents_of_the_sources_are_those_of_the_corpus(folders):
    for kind in ("hub", "jsonl", "text"):
        given = corpus(folders, kind)
        listed = corpora.reader(given).sources()
        assert [one for source in listed for one in documents(given, [source])] == list(documents(given))
        assert [source.index for source in listed] == list(range(len(listed)))
    hub = corpora.reader(corpus(folders, "hub")).sources()
    assert [(source.size, source.first_row) for source in hub] == [(14, 14 * number) for number in range(FILES)]


def test_rows_that_no_footer_counts_are_counted_by_reading(folders):
    given = HubCorpus(name=str(folders / "rows"), split="train")
    listed = corpora.reader(given).sources()
    assert [(source.size, source.first_row) for source in listed] == [(14, 14 * number) for number in range(FILES)]
    assert [one for source in listed for one in documents(given, [source])] == list(documents(given))


def test_parts_hold_consecutive_files_up_to_a_size(folders, monkeypatch):
    given = corpus(folders, "hub")
    listed = corpora.reader(given).sources()
    monkeypatch.setattr(HubReader, "min_part_size", 30)
    assert [[source.index for source in part] for part in corpora.group_into_parts(given, listed)] == [
        [0, 1, 2],
        [3, 4, 5],
        [6],
    ]
    monkeypatch.setattr(HubReader, "min_part_size", 1)
    monkeypatch.setattr(corpora, "MAX_PARTS", 3)  # a third of 98 rows is 32
    assert [len(part) for part in corpora.group_into_parts(given, listed)] == [3, 3, 1]


def test_hub_files_fix_the_commit_for_jobs_that_start_later():
    commit = "0123456789abcdef0123456789abcdef01234567"
    given = HubCorpus(name="owner/name", split="train")
    file = Source(name=f"hf://datasets/owner/name@{commit}/data/a.parquet", index=0, size=1)
    assert HubReader(given).at_version_of([file]) == given.model_copy(update={"revision": commit})
    local = Source(name="/mirror/a.parquet", index=0, size=1)
    assert HubReader(given).at_version_of([local]) == given


def test_a_killed_job_goes_on_after_the_parts_it_has_done(folders, tmp_path):
    """SIGKILL in the middle of its fourth part; the first three keep their very files."""
    program = (
        "import os, sys, signal; from pathlib import Path; from tlm_repro.data import parts, tokenisation;"
        "add, seen = tokenisation.Split.add, [];"
        "tokenisation.Split.add = lambda *a: os.kill(os.getpid(), signal.SIGKILL)"
        " if len(seen) == 45 else (seen.append(1), add(*a))[1];"
        "parts.tokenise_parts(Path(sys.argv[1]), job=0, jobs=1, workers=1)"
    )
    spec = data_spec(corpus(folders, "hub"))
    write_plan(spec, tmp_path)
    assert subprocess.call([sys.executable, "-c", program, str(tmp_path)]) == -signal.SIGKILL
    manifests = [parts.part_folder(tmp_path, index) / "manifest.json" for index in range(FILES)]
    assert [path.exists() for path in manifests] == [True] * 3 + [False] * 4
    stamps = [path.stat().st_mtime_ns for path in manifests[:3]]
    assert tokenise_parts(tmp_path, job=0, jobs=1, workers=1).parts == tuple(range(FILES))
    assert [path.stat().st_mtime_ns for path in manifests[:3]] == stamps
    gather(spec, tmp_path, jobs=1, workers=1)
    build(spec, tmp_path / "one", workers=1)
    assert {name: content for name, content in product(tmp_path).items() if not name.startswith("one/")} == product(
        tmp_path / "one"
    )


def test_another_number_of_jobs_takes_over_what_is_done(folders, tmp_path):
    write_plan(data_spec(corpus(folders, "text")), tmp_path)
    tokenise_parts(tmp_path, job=1, jobs=2, workers=1)
    done = [parts.part_folder(tmp_path, index) / "manifest.json" for index in (1, 3, 5)]
    stamps = [path.stat().st_mtime_ns for path in done]
    for job in range(3):
        tokenise_parts(tmp_path, job=job, jobs=3, workers=1)
    assert [path.stat().st_mtime_ns for path in done] == stamps


def test_parts_beyond_the_budgets_are_left_out(folders, tmp_path):
    """14 files' rows are equal, so after a part or two the sizes say how far the budgets reach."""
    spec = data_spec(corpus(folders, "hub"), train_tokens=6000, validation_tokens=1000)
    write_plan(spec, tmp_path / "jobs")
    first = tokenise_parts(tmp_path / "jobs", job=0, jobs=2, workers=1)
    second = tokenise_parts(tmp_path / "jobs", job=1, jobs=2, workers=1)
    left_out = {*first.beyond, *second.beyond}
    assert left_out
    assert left_out | {*first.parts, *second.parts} == set(range(FILES))
    assert 6 in left_out
    gather(spec, tmp_path / "jobs", jobs=2, workers=1)
    build(spec, tmp_path / "one", workers=1)
    assert product(tmp_path / "jobs") == product(tmp_path / "one")


def test_a_part_that_was_wrongly_left_out_is_made_while_gathering(folders, tmp_path, monkeypatch):
    spec = data_spec(corpus(folders, "text"), train_tokens=14_000)
    monkeypatch.setattr(parts, "is_beyond_budgets", lambda _plan, _folder, index: index >= 2)
    assert_same_as_one_job(spec, tmp_path, 2)


def test_a_missing_part_is_named_with_its_command(folders, tmp_path):
    spec = data_spec(corpus(folders, "hub"))
    write_plan(spec, tmp_path)
    tokenise_parts(tmp_path, job=0, jobs=2, workers=1)
    command = f"`tlm-repro tokenize-part --folder {tmp_path} --job 1 --jobs 2`"
    with pytest.raises(ArtifactError, match=f"holds no finished part 1 .*train-00001-of-00007.parquet.*{command}"):
        gather(spec, tmp_path, jobs=2, workers=1)
    tokenise_parts(tmp_path, job=1, jobs=2, workers=1)
    (parts.part_folder(tmp_path, 2) / "train" / "00000.npy").write_bytes(b"short")
    with pytest.raises(ArtifactError, match=r"holds no finished part 2 .*--job 0 --jobs 2"):
        gather(spec, tmp_path, jobs=2, workers=1)
    assert not (tmp_path / "manifest.json").exists()


def test_plans_that_do_not_fit_are_refused(folders, tmp_path):
    spec = data_spec(corpus(folders, "hub"))
    with pytest.raises(ArtifactError, match=r"plan.json does not exist"):
        tokenise_parts(tmp_path, job=0, jobs=1, workers=1)
    write_plan(spec, tmp_path)
    with pytest.raises(ConfigError, match="job 2 of 2: jobs are numbered from 0 to 1"):
        tokenise_parts(tmp_path, job=2, jobs=2, workers=1)
    with pytest.raises(ArtifactError, match="has another spec"):
        gather(data_spec(corpus(folders, "hub"), split_seed=1), tmp_path, jobs=1, workers=1)
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{}")
    with pytest.raises(ArtifactError, match="isn't the tokenizer of"):
        tokenise_parts(tmp_path, job=0, jobs=1, workers=1)


def test_a_file_that_is_gone_since_the_plan_is_named(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("text " * 50)
    write_plan(data_spec(FilesCorpus(paths=(f"{tmp_path}/*.txt",), format="text")), tmp_path / "data")
    (tmp_path / "b.txt").unlink()
    with pytest.raises(DataError, match=r"the corpus no longer has the file 'b.txt'"):
        tokenise_parts(tmp_path / "data", job=0, jobs=1, workers=1)


def test_a_full_disk_leaves_the_parts_before(folders, tmp_path, monkeypatch):
    write_plan(data_spec(corpus(folders, "text")), tmp_path)
    save = np.save

    def full(path, array):
        if "00002" in path.parts:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(path, array)

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(DataError, match=r"the disk of .* is full .* to continue with part 2 \("):
        tokenise_parts(tmp_path, job=0, jobs=1, workers=1)
    assert [parts.part_folder(tmp_path, index).joinpath("manifest.json").exists() for index in range(4)] == [
        True,
        True,
        False,
        False,
    ]
    assert list(parts.part_folder(tmp_path, 2).rglob("*")) == [parts.part_folder(tmp_path, 2) / ".lock"]


def test_gathering_goes_on_after_the_last_whole_shard(folders, tmp_path, monkeypatch):
    spec = data_spec(corpus(folders, "text"))
    write_plan(spec, tmp_path / "jobs")
    tokenise_parts(tmp_path / "jobs", job=0, jobs=1, workers=1)
    header, calls = gathering.npy_header, []

    def failing(dtype, length):
        calls.append(length)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return header(dtype, length)

    monkeypatch.setattr(gathering, "npy_header", failing)
    with pytest.raises(
        DataError, match="free some space and run the same command again to continue after the last shard"
    ):
        gather(spec, tmp_path / "jobs", jobs=1, workers=1)
    monkeypatch.setattr(gathering, "npy_header", header)
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "jobs" / "train").glob("*.npy")}
    assert len(stamps) == 2
    gather(spec, tmp_path / "jobs", jobs=1, workers=1)
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    build(spec, tmp_path / "one", workers=1)
    assert product(tmp_path / "jobs") == product(tmp_path / "one")
    assert sorted(path.name for path in (tmp_path / "jobs" / "parts").iterdir()) == ["job-0-of-1.json", "plan.json"]


def test_a_finished_set_survives_the_loss_of_its_manifest_and_a_change_of_jobs(folders, tmp_path):
    """Snakemake deletes the manifest before it runs a job again, as it does when the number of jobs changes."""
    spec = data_spec(corpus(folders, "text"))
    in_jobs(spec, tmp_path, 2)
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "train").iterdir()}
    before = (tmp_path / "manifest.json").read_bytes()
    (tmp_path / "manifest.json").unlink()
    in_jobs(spec, tmp_path, 5)
    assert (tmp_path / "manifest.json").read_bytes() == before
    (tmp_path / "manifest.json").unlink()
    build(spec, tmp_path, workers=1)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "train").iterdir()} == stamps
    shard = tmp_path / "train" / "00001.npy"
    content = shard.read_bytes()
    shard.write_bytes(content[:-1] + b"\7")  # of the same size: told by its sha256 alone
    (tmp_path / "manifest.json").unlink()
    build(spec, tmp_path, workers=1)
    assert shard.read_bytes() == content


def test_gathered_streams_open_as_any_data_set(folders, tmp_path):
    spec = data_spec(corpus(folders, "jsonl"))
    in_jobs(spec, tmp_path, 3)
    data = TokenData.open(tmp_path / "manifest.json")
    held_out = [document for document in documents(spec.corpus) if tokenisation.in_validation(document, spec)]
    assert list(data.held_out()) == held_out
    ids = data.validation.window(0, len(data.validation)).tolist()
    assert ids.count(data.eos_token_id) == len(held_out)
