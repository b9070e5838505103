"""The tokenizer, trained on the corpus or loaded from the hub, and document encoding in worker processes.

No begin-of-text token is added. In a token stream a document is its tokens and one end-of-text token. Text that looks
like a special token is encoded as ordinary text, so an end-of-text token always marks the end of a document.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tlm_repro.data.foreign import CODE_REMEDY, check_counts, needs_code, read_settings, tokenizer_file_names
from tlm_repro.data.readers.base import Document
from tlm_repro.errors import DataError
from tlm_repro.spec.data import PretrainedTokenizer, TrainedTokenizer

if TYPE_CHECKING:  # transformers takes a second to import, in every worker process
    from transformers import PreTrainedTokenizerFast

BEGIN_OF_TEXT = "<|begin_of_text|>"
END_OF_TEXT = "<|end_of_text|>"
# Llama 3's pre-tokenisation: contractions, words, up to three digits, punctuation, white space.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHUNK_CHARACTERS = 1_000_000  # approximate size of a worker process's task
CHUNKS_AHEAD = 2  # queued tasks for each worker: bounds memory and keeps all workers busy


def train(texts: Iterable[str], spec: TrainedTokenizer) -> PreTrainedTokenizerFast:
    """Trains a byte-level BPE of at most `spec.vocab_size` entries, including the two special tokens.

    It is trained on the first `spec.training_bytes` bytes of the texts and has fewer entries if they have too few
    distinct pairs. The result doesn't depend on the number of threads.
    """
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=spec.vocab_size,
        special_tokens=[BEGIN_OF_TEXT, END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(leading_bytes(texts, spec.training_bytes), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BEGIN_OF_TEXT,
        eos_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
    )


def leading_bytes(texts: Iterable[str], limit: int | None) -> Iterator[str]:
    """The texts up to a total of `limit` UTF-8 bytes. The last text is cut between characters."""
    remaining = limit
    for text in texts:
        if remaining is None:
            yield text
            continue
        data = text.encode()
        yield data[:remaining].decode(errors="ignore")
        remaining -= len(data)
        if remaining <= 0:
            return


def load_pretrained(spec: PretrainedTokenizer) -> PreTrainedTokenizerFast:
    """Loads a Hugging Face tokenizer by hub name or folder.

    Raises:
        ArtifactError: its settings refer to a file outside its folder, or count more than any model has.
        DataError: the tokenizer can't be loaded without running its own code, isn't a fast one, has no end-of-text
            token, or has more entries than `spec.vocab_size`.
    """
    from transformers import AutoTokenizer

    folder = Path(spec.name)
    if (folder / "config.json").is_file():
        check_counts(folder / "config.json", read_settings(folder / "config.json"))
    if (folder / "tokenizer_config.json").is_file():
        tokenizer_file_names(folder / "tokenizer_config.json")
    try:
        tokenizer = AutoTokenizer.from_pretrained(spec.name, revision=spec.revision, trust_remote_code=False)
    except Exception as error:  # the hub client and the loaders raise many unrelated types
        if needs_code(error):
            raise DataError(
                f"the tokenizer '{spec.name}' comes with Python code of its own (auto_map). {CODE_REMEDY}"
            ) from None
        cause = next(iter(str(error).strip().splitlines()), "")
        raise DataError(
            f"the tokenizer '{spec.name}' (revision {spec.revision}) can't be loaded "
            f"({type(error).__name__}: {cause}): check the name and the network, or name a local folder"
        ) from error
    if not tokenizer.is_fast:
        raise DataError(f"the tokenizer '{spec.name}' isn't a fast one (tokenizer.json): name a fast tokenizer")
    if tokenizer.eos_token_id is None:
        raise DataError(f"the tokenizer '{spec.name}' has no end-of-text token (eos_token): name one that has")
    size = max(tokenizer.get_vocab().values()) + 1
    if size > spec.vocab_size:
        raise DataError(
            f"the tokenizer '{spec.name}' has {size} entries, more than vocab_size {spec.vocab_size}: raise vocab_size"
        )
    return tokenizer


def load(folder: Path) -> PreTrainedTokenizerFast:
    """Loads the tokenizer that `save_pretrained` wrote to `folder`. Raises DataError if there is none."""
    from transformers import PreTrainedTokenizerFast

    if not (folder / "tokenizer.json").is_file():
        raise DataError(f"{folder} holds no tokenizer.json: run the stage that makes it")
    return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def special_tokens(folder: Path) -> dict[str, int]:
    """The ids of the special tokens that a tokenizer's folder names, by role: "bos_token", "eos_token", …

    Raises:
        DataError: there is no tokenizer in the folder.
    """
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    texts = {
        role: token["content"] if isinstance(token, dict) else token
        for role, token in settings.items()
        if role.endswith("_token") and isinstance(token, str | dict)
    }
    ids = {role: tokenizer.token_to_id(text) for role, text in texts.items()}
    return {role: token for role, token in ids.items() if token is not None}


class Encoder:
    """Encodes text with the tokenizer of a folder. Special tokens in the text are encoded as ordinary text."""

    def __init__(self, folder: Path, dtype: str) -> None:
        self.dtype = dtype
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.encode_special_tokens = True
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()

    def tokens(self, text: str) -> np.ndarray:
        """The token ids of a text, without an end-of-text token."""
        return np.array(self.tokenizer.encode(text, add_special_tokens=False).ids, dtype=self.dtype)

    def prefix(self, text: str, count: int) -> str:
        """The beginning of a text that its first `count` tokens cover, in whole characters."""
        offsets = self.tokenizer.encode(text, add_special_tokens=False).offsets[:count]
        return text[: max((end for _, end in offsets), default=0)]

    def encode(self, documents: list[Document]) -> list[np.ndarray]:
        """The token ids of each document's text. One thread is used: parallelism comes from processes."""
        with single_thread():
            encodings = self.tokenizer.encode_batch_fast(
                [document.text for document in documents], add_special_tokens=False
            )
        return [np.array(encoding.ids, dtype=self.dtype) for encoding in encodings]


@contextlib.contextmanager
def single_thread() -> Iterator[None]:
    """Stops the tokenizers library, which reads this variable at each call, from starting threads in the block."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


worker_encoder: Encoder | None = None


def start_worker(folder: Path, dtype: str) -> None:
    global worker_encoder
    worker_encoder = Encoder(folder, dtype)


def encode_in_worker(documents: list[Document]) -> list[np.ndarray]:
    assert worker_encoder is not None
    return worker_encoder.encode(documents)


def chunks(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Consecutive documents in groups of about `CHUNK_CHARACTERS`."""
    chunk: list[Document] = []
    characters = 0
    for document in documents:
        chunk.append(document)
        characters += len(document.text)
        if characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def encode_documents(
    documents: Iterable[Document],
    encoder: Encoder,
    folder: Path,
    *,
    workers: int,
    is_needed: Callable[[Document], bool],
) -> Generator[tuple[Document, np.ndarray], None, None]:
    """Yields each needed document with its token ids, in order. A single worker is this process.

    `is_needed` is called before a document is encoded, when some of the documents before it may not be yielded yet.

    Raises:
        DataError: a worker process died.
    """
    if workers <= 1:
        for chunk in chunks(documents):
            needed = list(filter(is_needed, chunk))
            yield from zip(needed, encoder.encode(needed), strict=True)
        return
    pending: deque[tuple[list[Document], Future[list[np.ndarray]]]] = deque()
    pool = ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),  # a fork would copy the libraries' threads
        initializer=start_worker,
        initargs=(folder, encoder.dtype),
    )
    try:
        for chunk in chunks(documents):
            needed = list(filter(is_needed, chunk))
            pending.append((needed, pool.submit(encode_in_worker, needed)))
            if len(pending) > CHUNKS_AHEAD * workers:
                submitted, future = pending.popleft()
                yield from zip(submitted, future.result(), strict=True)
        for submitted, future in pending:
            yield from zip(submitted, future.result(), strict=True)
    except BrokenProcessPool:
        raise DataError(
            f"one of {workers} tokenising processes died, perhaps out of memory: use fewer, or allow more memory"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)
