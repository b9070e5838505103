"""A tokenised corpus on disk: how it is built, and random access to its tokens."""

import contextlib
import functools
import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from tlm_repro.artifacts import Manifest, atomic_path, exclusive, read_manifest, sha256_file, write_manifest
from tlm_repro.data import tokenizer as tokenizers
from tlm_repro.data.corpora import Document, documents, held_out
from tlm_repro.errors import ArtifactError, DataError
from tlm_repro.spec import DataSpec, TrainedTokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

OPEN_SHARDS = 256  # memory maps kept at a time: a corpus can have more shards than a process may have open files
LOG_SECONDS = 30.0


class ShardWriter:
    """Appends token ids to `folder`/00000.npy, 00001.npy … of `shard_tokens` each; none is ever there by half."""

    def __init__(self, folder: Path, *, dtype: str, shard_tokens: int) -> None:
        self.folder = folder
        self.buffer = np.empty(shard_tokens, dtype=dtype)
        self.filled = 0
        self.lengths: list[int] = []

    def append(self, tokens: np.ndarray) -> None:
        while len(tokens):
            taken = min(len(tokens), len(self.buffer) - self.filled)
            self.buffer[self.filled : self.filled + taken] = tokens[:taken]
            self.filled += taken
            tokens = tokens[taken:]
            if self.filled == len(self.buffer):
                self.flush()

    def flush(self) -> None:
        """Writes what is buffered, if anything, as a shard."""
        if not self.filled:
            return
        with atomic_path(self.folder / shard_name(len(self.lengths))) as temporary:
            np.save(temporary, self.buffer[: self.filled])
        self.lengths.append(self.filled)
        self.filled = 0


def shard_name(index: int) -> str:
    return f"{index:05}.npy"


@dataclass
class Split:
    """One side of the corpus while it is written: at most `budget` tokens, counted to the token."""

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


def build(spec: DataSpec, folder: Path, *, workers: int) -> dict[str, Any]:
    """Tokenises a corpus into `folder`; returns the manifest's summary.

    Writes tokenizer/, train/*.npy, validation/*.npy (uint16 where the vocabulary allows, else uint32), validation.jsonl
    (the held-out documents, one {"name", "text"} a line), then manifest.json. The files don't depend on `workers`. What
    an earlier attempt left behind is removed; a finished product of the same spec is kept as it is.

    The summary has `vocab_size`, `dtype`, `eos_token_id`, `tokenizer_sha256`, and for `train` and `validation` the
    numbers of `documents`, `tokens` and UTF-8 `bytes` of text, and the lengths of the `shards`.

    Raises:
        DataError: the corpus or the tokenizer can't be had, or one side of the split is empty.
    """
    with exclusive(folder):
        with contextlib.suppress(ArtifactError):
            manifest = read_manifest(folder / "manifest.json", kind="data")
            if manifest.spec == spec.canonical():
                return manifest.summary
        began = time.monotonic()
        clear(folder)
        tokenizer = make_tokenizer(spec)
        tokenizer.save_pretrained(folder / "tokenizer")
        splits = tokenise(spec, folder, eos_token_id=tokenizer.eos_token_id, workers=workers)
        summary = {
            "vocab_size": spec.tokenizer.vocab_size,
            "dtype": dtype_name(spec),
            "eos_token_id": tokenizer.eos_token_id,
            "tokenizer_sha256": sha256_file(folder / "tokenizer" / "tokenizer.json"),
            **{split.name: split.summary() for split in splits},
        }
        products = [folder / "validation.jsonl"]
        for name in ("tokenizer", "train", "validation"):
            products += [path for path in (folder / name).rglob("*") if path.is_file()]
        write_manifest(
            folder,
            kind="data",
            id=spec.name,
            spec=spec.canonical(),
            summary=summary,
            files=products,
            device="cpu",
            wall_time_s=time.monotonic() - began,
        )
        return summary


def clear(folder: Path) -> None:
    """Removes what an earlier attempt wrote, the manifest first."""
    (folder / "manifest.json").unlink(missing_ok=True)
    for name in ("tokenizer", "train", "validation"):
        if (folder / name).exists():
            shutil.rmtree(folder / name)
    for path in [*folder.glob("*validation.jsonl*"), *folder.glob(".manifest.json.*")]:  # unfinished temporaries too
        path.unlink()


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


def tokenise(spec: DataSpec, folder: Path, *, eos_token_id: int, workers: int) -> tuple[Split, Split]:
    """Writes the shards of both splits, (train, validation), and validation.jsonl, with the tokenizer in `folder`.

    It stops reading when both budgets are met; without a budget for validation, at the training budget, if something
    has been held out by then.
    """
    dtype = dtype_name(spec)
    encoder = tokenizers.Encoder(folder / "tokenizer", dtype)
    budgets = {"train": spec.train_tokens, "validation": spec.validation_tokens}
    train, validation = (
        Split(name, budget, ShardWriter(folder / name, dtype=dtype, shard_tokens=spec.shard_tokens))
        for name, budget in budgets.items()
    )

    def side(document: Document) -> Split:
        return validation if is_held_out(document, spec) else train

    def wanted(document: Document) -> bool:
        return not side(document).full

    stream = tokenizers.encoded(documents(spec.corpus), encoder, folder / "tokenizer", workers=workers, wanted=wanted)
    with (
        Progress("tokenising", "training tokens", spec.train_tokens) as progress,
        contextlib.closing(stream),
        atomic_path(folder / "validation.jsonl") as temporary,
        temporary.open("w", encoding="utf-8") as held_out_file,
    ):
        for document, tokens in stream:
            split = side(document)
            if split.full:  # a worker was given it before that was known
                continue
            kept = split.add(document, tokens, eos_token_id, encoder)
            if split is validation:
                held_out_file.write(json.dumps({"name": kept.name, "text": kept.text}, ensure_ascii=False) + "\n")
            else:
                progress.add(len(tokens))
            if train.full and validation.documents and (validation.full or validation.budget is None):
                break
    for split in (train, validation):
        finish(split, spec)
    return train, validation


def finish(split: Split, spec: DataSpec) -> None:
    """Writes the last shard. Raises DataError when the split is empty; says so when it is shorter than asked for."""
    if not split.documents:
        raise DataError(
            f"no document fell into the {split.name} split with validation_fraction {spec.validation_fraction} and "
            f"split_seed {spec.split_seed}: use more documents, or change one of the two"
        )
    split.writer.flush()
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


class TokenArray:
    """A token stream in shards, memory-mapped as they are needed."""

    def __init__(self, paths: Sequence[Path], lengths: Sequence[int]) -> None:
        self.paths = tuple(paths)
        self.ends = np.cumsum(lengths)
        self.shard = functools.lru_cache(OPEN_SHARDS)(self.open_shard)

    def __len__(self) -> int:
        return int(self.ends[-1])

    def open_shard(self, index: int) -> np.ndarray:
        path = self.paths[index]
        expected = int(self.ends[index] - (self.ends[index - 1] if index else 0))
        try:
            shard = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise ArtifactError(f"{path} can't be read ({error}): fetch the data set anew or build it again") from None
        if shard.shape != (expected,):
            raise ArtifactError(
                f"{path} has shape {shard.shape}, its manifest says ({expected},): build the data set again"
            )
        return shard

    def window(self, start: int, length: int) -> np.ndarray:
        """Tokens start … start+length−1, int64, across shards. Raises IndexError beyond the ends of the stream."""
        if start < 0 or length < 0 or start + length > len(self):
            raise IndexError(f"tokens {start} to {start + length} were asked for, the stream has {len(self)}")
        found = np.empty(length, dtype=np.int64)
        filled = 0
        index = int(np.searchsorted(self.ends, start, side="right"))
        while filled < length:
            shard = self.shard(index)
            offset = start + filled - (int(self.ends[index]) - len(shard))
            part = shard[offset : offset + length - filled]
            found[filled : filled + len(part)] = part
            filled += len(part)
            index += 1
        return found


@dataclass(frozen=True)
class TokenData:
    """A tokenised corpus that `build` has finished."""

    manifest: Manifest
    train: TokenArray
    validation: TokenArray

    @classmethod
    def open(cls, manifest: Path) -> "TokenData":
        """Raises ArtifactError when the manifest isn't one of a data set or the files don't match it."""
        read = read_manifest(manifest, kind="data")
        train, validation = (
            TokenArray([read.path(f"{name}/{shard_name(index)}") for index in range(len(lengths))], lengths)
            for name in ("train", "validation")
            for lengths in [read.summary[name]["shards"]]
        )
        return cls(read, train, validation)

    @property
    def vocab_size(self) -> int:
        """The model's; the tokenizer may have fewer entries."""
        return self.manifest.summary["vocab_size"]

    @property
    def eos_token_id(self) -> int:
        return self.manifest.summary["eos_token_id"]

    def tokenizer(self) -> "PreTrainedTokenizerFast":
        return tokenizers.load(self.manifest.path("tokenizer/tokenizer.json").parent)

    def held_out(self) -> Iterator[Document]:
        """The validation documents' text, as far as their tokens are in the validation split."""
        with self.manifest.path("validation.jsonl").open(encoding="utf-8") as file:
            for line in file:
                yield Document(**json.loads(line))
