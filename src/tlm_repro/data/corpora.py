"""The documents and the source files of any corpus.

Text is unchanged, except that line ends become line feeds; empty documents are left out. Source files are grouped into
the parts that several jobs share. The grouping doesn't depend on the number of jobs.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from tlm_repro.data.readers.base import Document, Reader, Source
from tlm_repro.data.readers.files import FilesReader
from tlm_repro.data.readers.hub import HubReader
from tlm_repro.data.readers.package import PackageReader
from tlm_repro.errors import DataError
from tlm_repro.spec.data import Corpus

READERS: dict[str, type[Reader[Any]]] = {"package": PackageReader, "files": FilesReader, "hub": HubReader}
MAX_PARTS = 1000  # approximate: small files are grouped


def reader(corpus: Corpus) -> Reader[Any]:
    """The reader of a corpus, by its kind."""
    return READERS[corpus.kind](corpus)


def documents(corpus: Corpus, sources: Sequence[Source] | None = None) -> Iterator[Document]:
    """The non-empty documents of a corpus, or of some of its files, always in the same order.

    Raises:
        DataError: the corpus, a file, a row or its text field is missing or unreadable; the message names it.
    """
    for document in reader(corpus).documents(sources):
        text = document.text.replace("\r\n", "\n").replace("\r", "\n")
        if text.strip():
            yield Document(document.name, text)


def is_held_out(name: str, *, fraction: float, seed: int) -> bool:
    """Whether a document belongs to the validation split: the hash of its name lies in the lowest `fraction`."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


def group_into_parts(corpus: Corpus, sources: Sequence[Source]) -> tuple[tuple[Source, ...], ...]:
    """Groups consecutive files into parts of at least a thousandth of the corpus. A large file is its own part.

    Raises:
        DataError: there is no file.
    """
    if not sources:
        raise DataError("the corpus has no files: correct its name or patterns")
    limit = max(sum(source.size for source in sources) // MAX_PARTS, READERS[corpus.kind].min_part_size)
    parts: list[tuple[Source, ...]] = []
    part: list[Source] = []
    size = 0
    for source in sources:
        part.append(source)
        size += source.size
        if size >= limit:
            parts.append(tuple(part))
            part, size = [], 0
    return (*parts, tuple(part)) if part else tuple(parts)
