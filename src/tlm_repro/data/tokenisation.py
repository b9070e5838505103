"""From a corpus to a finished data set in one job, and what the sharded way (`parts`) shares with it."""

import contextlib
import errno
import json
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from tlm_repro.artifacts.checksums import sha256_file
from tlm_repro.artifacts.files import atomic_path, check_folder_is_ours
from tlm_repro.artifacts.lock import exclusive
from tlm_repro.artifacts.manifest import Manifest, read_manifest, write_manifest
from tlm_repro.data import tokenizer as tokenizers
from tlm_repro.data.corpora import documents, held_out
from tlm_repro.data.readers.base import Document
from tlm_repro.data.shards import ShardWriter
from tlm_repro.errors import ArtifactError, DataError
from tlm_repro.spec.data import DataSpec, TrainedTokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

LOG_SECONDS = 30.0
OWN = ("tokenizer", "train", "validation", "parts", "validation.jsonl", "manifest.json")  # of a data set's folder
FINISHED = ".finished.json"  # a copy of the manifest: Snakemake deletes the manifest before it starts a job again


@dataclass
class Split:
    """One side of the corpus: at most `budget` tokens, counted to the token."""

    name: str
    budget: int | None
    writer: ShardWriter
    documents: int = 0
    tokens: int = 0
    bytes: int = 0

    @property
    def full(self) -> bool:
        return self.budget is not None and self.tokens >= self.budget

    def add(self, document: Document, tokens: np.ndarray, end: int, encoder: tokenizers.Encoder) -> Document:
        """Appends a document and the token `end`; returns the part of it that fits the budget."""
        room = len(tokens) + 1 if self.budget is None else self.budget - self.tokens
        if room < len(tokens):
            tokens = tokens[:room]
            document = Document(document.name, encoder.prefix(document.text, room))
        kept = np.append(tokens, tokens.dtype.type(end))[:room]
        self.writer.append(kept)
        self.documents += 1
        self.tokens += len(kept)
        self.bytes += len(document.text.encode())
        return document

    def summary(self) -> dict[str, Any]:
        return {
            "documents": self.documents,
            "tokens": self.tokens,
            "bytes": self.bytes,
            "shards": self.writer.lengths,
        }


Splits = tuple[Split, Split]  # train, validation


def new_splits(spec: DataSpec, folder: Path, *, shard_tokens: int) -> Splits:
    """Both sides, empty, to be written to `folder`/train and `folder`/validation."""
    dtype = dtype_name(spec)
    train, validation = (
        Split(name, budget, ShardWriter(folder / name, dtype=dtype, shard_tokens=shard_tokens))
        for name, budget in (("train", spec.train_tokens), ("validation", spec.validation_tokens))
    )
    return train, validation


def complete(splits: Splits) -> bool:
    """Whether nothing more is to be read: both budgets are met; without one for validation, the training budget is,
    and something has been held out."""
    train, validation = splits
    return train.full and validation.documents > 0 and (validation.full or validation.budget is None)


def build(spec: DataSpec, folder: Path, *, workers: int) -> dict[str, Any]:
    """Tokenises a corpus into `folder`; returns the manifest's summary.

    Writes tokenizer/, train/*.npy, validation/*.npy (uint16 where the vocabulary allows, else uint32), validation.jsonl
    (the held-out documents, one {"name", "text"} a line), then manifest.json. The files don't depend on `workers`. What
    an earlier attempt left behind is removed; a finished product of the same spec is kept as it is.

    The summary has `vocab_size`, `dtype`, `eos_token_id`, `tokenizer_sha256`, and for `train` and `validation` the
    numbers of `documents`, `tokens` and UTF-8 `bytes` of text, and the lengths of the `shards`.

    Raises:
        DataError: the corpus or the tokenizer can't be had, one side of the split is empty, or the disk is full.
    """
    check_folder_is_ours(folder, OWN)
    with exclusive(folder), room_on_disk(folder, "free some space and run this again"):
        kept = finished(spec, folder)
        if kept is not None:
            return kept.summary
        began = time.monotonic()
        clear(folder)
        tokenizer = make_tokenizer(spec)
        tokenizer.save_pretrained(folder / "tokenizer")
        splits = new_splits(spec, folder, shard_tokens=spec.shard_tokens)
        tokenise(
            documents(spec.corpus),
            splits,
            spec,
            tokenizer=folder / "tokenizer",
            held_out_file=folder / "validation.jsonl",
            eos_token_id=tokenizer.eos_token_id,
            workers=workers,
        )
        for split in splits:
            check(split, spec)
        return finish(spec, folder, splits, eos_token_id=tokenizer.eos_token_id, began=began)


def finished(spec: DataSpec, folder: Path) -> Manifest | None:
    """The manifest of a finished product of this spec; one that was deleted is put back if every file is unharmed."""
    with contextlib.suppress(ArtifactError):
        manifest = read_manifest(folder / "manifest.json", kind="data")
        if manifest.spec == spec.canonical():
            keep_copy(folder / "manifest.json", folder / FINISHED)
            return manifest
    with contextlib.suppress(ArtifactError):
        manifest = read_manifest(folder / FINISHED, kind="data", verify="sha256")
        if manifest.spec == spec.canonical():
            keep_copy(folder / FINISHED, folder / "manifest.json")
            return manifest
    return None


def keep_copy(source: Path, target: Path) -> None:
    """Copies a file atomically, unless the target is the same already."""
    content = source.read_bytes()
    if target.is_file() and target.read_bytes() == content:
        return
    with atomic_path(target) as temporary:
        temporary.write_bytes(content)


def finish(spec: DataSpec, folder: Path, splits: Splits, *, eos_token_id: int, began: float) -> dict[str, Any]:
    """Writes the manifest of what lies in `folder`; returns its summary."""
    summary = {
        "vocab_size": spec.tokenizer.vocab_size,
        "dtype": dtype_name(spec),
        "eos_token_id": eos_token_id,
        "tokenizer_sha256": sha256_file(folder / "tokenizer" / "tokenizer.json"),
        **{split.name: split.summary() for split in splits},
    }
    products = [folder / "validation.jsonl"]
    for name in ("tokenizer", "train", "validation"):
        products += [path for path in (folder / name).rglob("*") if path.is_file()]
    manifest = write_manifest(
        folder,
        kind="data",
        id=spec.name,
        spec=spec.canonical(),
        summary=summary,
        files=products,
        device="cpu",
        wall_time_s=time.monotonic() - began,
    )
    keep_copy(manifest, folder / FINISHED)
    return summary


def clear(folder: Path) -> None:
    """Removes what an earlier attempt wrote, the manifest first."""
    for name in ("manifest.json", FINISHED):
        (folder / name).unlink(missing_ok=True)
    for name in ("tokenizer", "train", "validation", "parts"):
        if (folder / name).exists():
            shutil.rmtree(folder / name)
    temporaries = [*folder.glob(".manifest.json.*"), *folder.glob(f"{FINISHED}.*"), *folder.glob(f".{FINISHED}.*")]
    for path in [*folder.glob("*validation.jsonl*"), *temporaries]:
        path.unlink()


@contextlib.contextmanager
def room_on_disk(folder: Path, remedy: str) -> Iterator[None]:
    """Turns a full disk in the block into a DataError that names `folder` and says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        free = shutil.disk_usage(folder).free if folder.exists() else 0
        raise DataError(f"no room left to write under {folder} ({free / 1e9:.1f} GB free): {remedy}") from None


def dtype_name(spec: DataSpec) -> str:
    return "uint16" if spec.tokenizer.vocab_size <= 2**16 else "uint32"


def is_held_out(document: Document, spec: DataSpec) -> bool:
    return held_out(document.name, fraction=spec.validation_fraction, seed=spec.split_seed)


def make_tokenizer(spec: DataSpec) -> "PreTrainedTokenizerFast":
    """The tokenizer that the spec names, trained on the training documents if it asks for that."""
    if not isinstance(spec.tokenizer, TrainedTokenizer):
        return tokenizers.pretrained(spec.tokenizer)
    with Progress("training the tokenizer", "characters", spec.tokenizer.training_bytes) as progress:

        def texts() -> Iterator[str]:
            for document in documents(spec.corpus):
                if not is_held_out(document, spec):
                    yield document.text
                    progress.add(len(document.text))

        return tokenizers.train(texts(), spec.tokenizer)


def tokenise(
    source: Iterable[Document],
    splits: Splits,
    spec: DataSpec,
    *,
    tokenizer: Path,
    held_out_file: Path,
    eos_token_id: int,
    workers: int,
) -> None:
    """Adds documents to both splits, with the tokenizer of a folder, until they are `complete`; flushes the writers.

    `held_out_file` gets the validation documents as far as their tokens are kept, one {"name", "text"} a line.
    """
    train, validation = splits
    encoder = tokenizers.Encoder(tokenizer, dtype_name(spec))

    def side(document: Document) -> Split:
        return validation if is_held_out(document, spec) else train

    def wanted(document: Document) -> bool:
        return not side(document).full

    stream = tokenizers.encoded(source, encoder, tokenizer, workers=workers, wanted=wanted)
    with (
        Progress("tokenising", "training tokens", spec.train_tokens) as progress,
        contextlib.closing(stream),
        atomic_path(held_out_file) as temporary,
        temporary.open("w", encoding="utf-8") as file,
    ):
        for document, tokens in stream:
            split = side(document)
            if split.full:  # it was read ahead before that was known
                continue
            kept = split.add(document, tokens, eos_token_id, encoder)
            if split is validation:
                file.write(json.dumps({"name": kept.name, "text": kept.text}, ensure_ascii=False) + "\n")
            else:
                progress.add(len(tokens))
            if complete(splits):
                break
    for split in splits:
        split.writer.flush()


def check(split: Split, spec: DataSpec) -> None:
    """Raises DataError when the split of a whole corpus is empty; says so when it is shorter than asked for."""
    if not split.documents:
        raise DataError(
            f"no document fell into the {split.name} split with validation_fraction {spec.validation_fraction} and "
            f"split_seed {spec.split_seed}: use more documents, or change one of the two"
        )
    if split.budget is not None and not split.full:
        wanted = f"{split.budget:,} {split.name} tokens asked for"
        print(f"the corpus ends after {split.tokens:,} of the {wanted}", file=sys.stderr)


class Progress:
    """A bar on a terminal, elsewhere a plain line every `LOG_SECONDS`, both on stderr."""

    def __init__(self, title: str, unit: str, total: int | None) -> None:
        self.title, self.unit, self.done = title, unit, 0
        self.total = "" if total is None else f" of {total:,}"
        self.bar = tqdm(desc=title, unit=f" {unit}", total=total, unit_scale=True, disable=not sys.stderr.isatty())
        self.told = time.monotonic()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def add(self, amount: int) -> None:
        self.done += amount
        self.bar.update(amount)
        if self.bar.disable and time.monotonic() - self.told >= LOG_SECONDS:
            print(f"{self.title}: {self.done:,}{self.total} {self.unit}", file=sys.stderr, flush=True)
            self.told = time.monotonic()
