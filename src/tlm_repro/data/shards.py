"""Token streams on disk: shards of token ids, random access to them, and the finished data set."""

import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tlm_repro.artifacts.files import atomic_path
from tlm_repro.data import tokenizer as tokenizers
from tlm_repro.data.readers.base import Document
from tlm_repro.errors import ArtifactError
from tlm_repro.records.manifests import DataManifest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

OPEN_SHARDS = 256  # memory maps open at a time: a corpus can have more shards than a process may have open files


class ShardWriter:
    """Writes token ids to `folder`/00000.npy, 00001.npy … of `shard_tokens` each. Each file is written atomically."""

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
        """Writes the buffered tokens, if any, as a shard."""
        if not self.filled:
            return
        with atomic_path(self.folder / shard_name(len(self.lengths))) as temporary:
            np.save(temporary, self.buffer[: self.filled])
        self.lengths.append(self.filled)
        self.filled = 0


def shard_name(index: int) -> str:
    return f"{index:05}.npy"


class TokenArray:
    """A token stream in shards, which are memory-mapped on first use."""

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
            raise ArtifactError(f"{path} can't be read ({error}): fetch or build the data set again") from None
        if shard.shape != (expected,):
            raise ArtifactError(
                f"{path} has shape {shard.shape}, but its manifest says ({expected},): build the data set again"
            )
        return shard

    def window(self, start: int, length: int) -> np.ndarray:
        """Tokens start … start+length−1, int64, across shards. Raises IndexError beyond the ends of the stream."""
        if start < 0 or length < 0 or start + length > len(self):
            raise IndexError(f"tokens {start} to {start + length} are out of range: the stream has {len(self)}")
        tokens = np.empty(length, dtype=np.int64)
        filled = 0
        for piece in self.pieces(start, length):
            tokens[filled : filled + len(piece)] = piece
            filled += len(piece)
        return tokens

    def pieces(self, start: int, length: int) -> Iterator[np.ndarray]:
        """The same tokens as memory-mapped slices, one for each shard."""
        index = int(np.searchsorted(self.ends, start, side="right"))
        while length:
            shard = self.shard(index)
            offset = start - (int(self.ends[index]) - len(shard))
            piece = shard[offset : offset + length]
            yield piece
            start, length, index = start + len(piece), length - len(piece), index + 1


@dataclass(frozen=True)
class TokenData:
    """A finished tokenised corpus."""

    manifest: DataManifest
    train: TokenArray
    validation: TokenArray

    @classmethod
    def open(cls, path: Path) -> "TokenData":
        """Opens the data set of a `manifest.json`. Raises ArtifactError if it isn't one or its files don't match it."""
        manifest = DataManifest.read(path, verify="sha256")
        train, validation = (
            TokenArray([manifest.path(f"{name}/{shard_name(index)}") for index in range(len(lengths))], lengths)
            for name, lengths in (
                ("train", manifest.summary.train.shards),
                ("validation", manifest.summary.validation.shards),
            )
        )
        return cls(manifest, train, validation)

    @property
    def vocab_size(self) -> int:
        """The vocabulary size of models. The tokenizer may have fewer entries."""
        return self.manifest.summary.vocab_size

    @property
    def eos_token_id(self) -> int:
        return self.manifest.summary.eos_token_id

    def tokenizer(self) -> "PreTrainedTokenizerFast":
        return tokenizers.load(self.manifest.path("tokenizer/tokenizer.json").parent)

    def special_tokens(self) -> dict[str, int]:
        """The ids of the tokenizer's special tokens by their role; see `data.tokenizer.special_tokens`."""
        return tokenizers.special_tokens(self.manifest.path("tokenizer/tokenizer.json").parent)

    def held_out(self) -> Iterator[Document]:
        """The validation documents. Text whose tokens exceed the split's budget is cut off."""
        with self.manifest.path("validation.jsonl").open(encoding="utf-8") as file:
            for line in file:
                yield Document(**json.loads(line))
