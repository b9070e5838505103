"""Tokenising a corpus into a data set in one job, and the steps that it shares with several jobs (`parts`)."""

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
from tlm_repro.data import tokenizer as tokenizers
from tlm_repro.data.corpora import documents, is_held_out
from tlm_repro.data.readers.base import Document
from tlm_repro.data.shards import ShardWriter
from tlm_repro.errors import ArtifactError, DataError
from tlm_repro.records.manifests import DataManifest
from tlm_repro.spec.data import DataSpec, TrainedTokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

LOG_SECONDS = 30.0
PRODUCT_FILES = ("tokenizer", "train", "validation", "parts", "validation.jsonl", "manifest.json")
MANIFEST_COPY = ".finished.json"  # Snakemake deletes the manifest before it starts a job again


@dataclass
class Split:
    """The training or the validation split: at most `budget` tokens, exactly, or all for None."""

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
        """Appends a document and the token `end`, cut off at the budget; returns the document as it was added."""
        room = len(tokens) + 1 if self.budget is None else self.budget - self.tokens
        if room < len(tokens):
            tokens = tokens[:room]
            document = Document(document.name, encoder.prefix(document.text, room))
        tokens = np.append(tokens, tokens.dtype.type(end))[:room]
        self.writer.append(tokens)
        self.documents += 1
        self.tokens += len(tokens)
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
    """Two empty splits that write to `folder`/train and `folder`/validation."""
    dtype = dtype_name(spec)
    train, validation = (
        Split(name, budget, ShardWriter(folder / name, dtype=dtype, shard_tokens=shard_tokens))
        for name, budget in (("train", spec.train_tokens), ("validation", spec.validation_tokens))
    )
    return train, validation


def budgets_met(splits: Splits) -> bool:
    """Whether no more documents are needed.

    Both budgets must be met. Without a validation budget, the training budget must be met and one document held out.
    """
    train, validation = splits
    return train.full and validation.documents > 0 and (validation.full or validation.budget is None)


def build(spec: DataSpec, folder: Path, *, workers: int) -> dict[str, Any]:
    """Tokenises a corpus into `folder`; returns the manifest's summary.

    Writes tokenizer/, train/*.npy, validation/*.npy (uint16 if the vocabulary allows, else uint32), validation.jsonl
    (the held-out documents, one {"name", "text"} a line), then manifest.json. The files don't depend on `workers`. A
    finished product of the same spec is kept; anything else that an earlier attempt left is removed.

    The summary has `vocab_size`, `dtype`, `eos_token_id` and `tokenizer_sha256` and, for `train` and `validation`, the
    numbers of `documents`, `tokens` and UTF-8 `bytes` of text and the lengths of the `shards`.

    Raises:
        DataError: the corpus or the tokenizer is unavailable, a split is empty, or the disk is full.
    """
    check_folder_is_ours(folder, PRODUCT_FILES)
    with exclusive(folder), full_disk_as_data_error(folder, "free some space and run the same command again"):
        finished = finished_manifest(spec, folder)
        if finished is not None:
            return finished.summary.content()
        start = time.monotonic()
        remove_earlier_attempt(folder)
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
            check_split(split, spec)
        return write_data_manifest(spec, folder, splits, eos_token_id=tokenizer.eos_token_id, start=start)


def finished_manifest(spec: DataSpec, folder: Path) -> DataManifest | None:
    """The manifest of a finished product of this spec. A deleted one is restored if every file is intact."""
    with contextlib.suppress(ArtifactError):
        manifest = DataManifest.read(folder / "manifest.json")
        if manifest.spec == spec:
            copy_if_different(folder / "manifest.json", folder / MANIFEST_COPY)
            return manifest
    with contextlib.suppress(ArtifactError):
        manifest = DataManifest.read(folder / MANIFEST_COPY, verify="sha256")
        if manifest.spec == spec:
            copy_if_different(folder / MANIFEST_COPY, folder / "manifest.json")
            return manifest
    return None


def copy_if_different(source: Path, target: Path) -> None:
    """Copies a file atomically, unless the target has the same content."""
    content = source.read_bytes()
    if target.is_file() and target.read_bytes() == content:
        return
    with atomic_path(target) as temporary:
        temporary.write_bytes(content)


def write_data_manifest(
    spec: DataSpec, folder: Path, splits: Splits, *, eos_token_id: int, start: float
) -> dict[str, Any]:
    """Writes the manifest of the data set in `folder`; returns its summary. `start`: by `time.monotonic()`."""
    summary = {
        "vocab_size": spec.tokenizer.vocab_size,
        "dtype": dtype_name(spec),
        "eos_token_id": eos_token_id,
        "tokenizer_sha256": sha256_file(folder / "tokenizer" / "tokenizer.json"),
        **{split.name: split.summary() for split in splits},
    }
    files = [folder / "validation.jsonl"]
    for name in ("tokenizer", "train", "validation"):
        files += [path for path in (folder / name).rglob("*") if path.is_file()]
    manifest = DataManifest.write_product(
        folder,
        id=spec.name,
        spec=spec.canonical(),
        summary=summary,
        files=files,
        device="cpu",
        wall_time_s=time.monotonic() - start,
    )
    copy_if_different(manifest, folder / MANIFEST_COPY)
    return summary


def remove_earlier_attempt(folder: Path) -> None:
    """Removes everything that an earlier attempt wrote, the manifest first."""
    for name in ("manifest.json", MANIFEST_COPY):
        (folder / name).unlink(missing_ok=True)
    for name in ("tokenizer", "train", "validation", "parts"):
        if (folder / name).exists():
            shutil.rmtree(folder / name)
    for pattern in ("*validation.jsonl*", ".manifest.json.*", f"{MANIFEST_COPY}.*", f".{MANIFEST_COPY}.*"):
        for path in folder.glob(pattern):
            path.unlink()


@contextlib.contextmanager
def full_disk_as_data_error(folder: Path, remedy: str) -> Iterator[None]:
    """Turns a full disk in the block into a DataError that names `folder` and says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        free = shutil.disk_usage(folder).free if folder.exists() else 0
        raise DataError(f"the disk of {folder} is full ({free / 1e9:.1f} GB free): {remedy}") from None


def dtype_name(spec: DataSpec) -> str:
    return "uint16" if spec.tokenizer.vocab_size <= 2**16 else "uint32"


def in_validation(document: Document, spec: DataSpec) -> bool:
    return is_held_out(document.name, fraction=spec.validation_fraction, seed=spec.split_seed)


def make_tokenizer(spec: DataSpec) -> "PreTrainedTokenizerFast":
    """The spec's tokenizer: loaded, or trained on the training documents."""
    if not isinstance(spec.tokenizer, TrainedTokenizer):
        return tokenizers.load_pretrained(spec.tokenizer)
    with Progress("training the tokenizer", "characters", spec.tokenizer.training_bytes) as progress:

        def texts() -> Iterator[str]:
            for document in documents(spec.corpus):
                if not in_validation(document, spec):
                    yield document.text
                    progress.add(len(document.text))

        return tokenizers.train(texts(), spec.tokenizer)


def tokenise(
    source_documents: Iterable[Document],
    splits: Splits,
    spec: DataSpec,
    *,
    tokenizer: Path,
    held_out_file: Path,
    eos_token_id: int,
    workers: int,
) -> None:
    """Adds documents to both splits until their budgets are met, then flushes the writers.

    Args:
        tokenizer: folder of the tokenizer.
        held_out_file: gets the validation documents as they were added, one {"name", "text"} a line.
    """
    train, validation = splits
    encoder = tokenizers.Encoder(tokenizer, dtype_name(spec))

    def split_of(document: Document) -> Split:
        return validation if in_validation(document, spec) else train

    def is_needed(document: Document) -> bool:
        return not split_of(document).full

    stream = tokenizers.encode_documents(source_documents, encoder, tokenizer, workers=workers, is_needed=is_needed)
    with (
        Progress("tokenising", "training tokens", spec.train_tokens) as progress,
        contextlib.closing(stream),
        atomic_path(held_out_file) as temporary,
        temporary.open("w", encoding="utf-8") as file,
    ):
        for document, tokens in stream:
            split = split_of(document)
            if split.full:  # the document was read ahead, before the split was full
                continue
            added = split.add(document, tokens, eos_token_id, encoder)
            if split is validation:
                file.write(json.dumps({"name": added.name, "text": added.text}, ensure_ascii=False) + "\n")
            else:
                progress.add(len(tokens))
            if budgets_met(splits):
                break
    for split in splits:
        split.writer.flush()


def check_split(split: Split, spec: DataSpec) -> None:
    """Raises DataError if the split of the whole corpus is empty; warns on stderr if it doesn't reach its budget."""
    if not split.documents:
        raise DataError(
            f"the {split.name} split has no document with validation_fraction {spec.validation_fraction} and "
            f"split_seed {spec.split_seed}: use more documents, or change one of the two"
        )
    if split.budget is not None and not split.full:
        requested = f"{split.budget:,} {split.name} tokens requested"
        print(f"the corpus ends after {split.tokens:,} of the {requested}", file=sys.stderr)


class Progress:
    """Progress on stderr: a bar on a terminal, otherwise a line every `LOG_SECONDS`."""

    def __init__(self, title: str, unit: str, total: int | None) -> None:
        self.title, self.unit, self.done = title, unit, 0
        self.total = "" if total is None else f" of {total:,}"
        self.bar = tqdm(desc=title, unit=f" {unit}", total=total, unit_scale=True, disable=not sys.stderr.isatty())
        self.logged_at = time.monotonic()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def add(self, amount: int) -> None:
        self.done += amount
        self.bar.update(amount)
        if self.bar.disable and time.monotonic() - self.logged_at >= LOG_SECONDS:
            print(f"{self.title}: {self.done:,}{self.total} {self.unit}", file=sys.stderr, flush=True)
            self.logged_at = time.monotonic()
