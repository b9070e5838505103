"""The source files of a corpus, and their grouping into the parts that jobs share.

Neither depends on how many jobs there are.
"""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tlm_repro.data.corpora import Source, hub_names, local_files, open_hub, package_files, told
from tlm_repro.errors import DataError
from tlm_repro.spec.data import Corpus, HubCorpus, PackageCorpus

if TYPE_CHECKING:
    from datasets import IterableDataset

MOST_PARTS = 1000  # about: small files are grouped
SMALLEST_PART = {"package": 4_000_000, "files": 4_000_000, "hub": 10_000}  # bytes; of the hub, rows
PINNED = re.compile(r"^hf://datasets/[^@]+@([0-9a-f]{40})/")


def sources(corpus: Corpus) -> list[Source]:
    """The files of a corpus in the order of its documents.

    Documents of a hub's data set are numbered over all its files, so the rows before each file are counted: from the
    footer of a Parquet file, by reading any other. A data set in a local folder is handled in the same way.

    Raises:
        DataError: the corpus is missing or a file can't be read; the message names it.
    """
    if isinstance(corpus, HubCorpus):
        return list(hub_sources(corpus))
    files = package_files(corpus) if isinstance(corpus, PackageCorpus) else local_files(corpus)
    return [
        Source(name=name, index=index, size=path.stat().st_size)
        for index, (name, path) in enumerate(sorted(files.items()))
    ]


def hub_sources(corpus: HubCorpus) -> Iterator[Source]:
    where, remedy = hub_names(corpus)
    with told(where, remedy):
        opened, names = open_hub(corpus)
    first = 0
    for index, name in enumerate(names):
        with told(f"{name} of {where}", remedy):
            rows = count_rows(opened, name, index)
        yield Source(name=name, index=index, size=rows, first_row=first)
        first += rows


def count_rows(opened: "IterableDataset", name: str, index: int) -> int:
    """The rows of a data set's file, the one at place `index`."""
    if name.endswith(".parquet"):
        import fsspec
        import pyarrow.parquet

        with fsspec.open(name, "rb") as file:
            return pyarrow.parquet.ParquetFile(file).metadata.num_rows
    return sum(1 for _ in opened.shard(num_shards=opened.num_shards, index=index))


def pinned(corpus: Corpus, found: Sequence[Source]) -> Corpus:
    """The corpus at the commit that the names of its hub files hold, so that jobs of another day see the same files."""
    commit = PINNED.match(found[0].name) if found else None
    if not isinstance(corpus, HubCorpus) or commit is None:
        return corpus
    return corpus.model_copy(update={"revision": commit.group(1)})


def grouped(corpus: Corpus, found: Sequence[Source]) -> tuple[tuple[Source, ...], ...]:
    """Parts: runs of consecutive files of at least a thousandth of the whole; a large file is a part of its own.

    Raises:
        DataError: there is no file.
    """
    if not found:
        raise DataError("the corpus has no files: correct its name or patterns")
    limit = max(sum(source.size for source in found) // MOST_PARTS, SMALLEST_PART[corpus.kind])
    parts: list[tuple[Source, ...]] = []
    part: list[Source] = []
    size = 0
    for source in found:
        part.append(source)
        size += source.size
        if size >= limit:
            parts.append(tuple(part))
            part, size = [], 0
    return (*parts, tuple(part)) if part else tuple(parts)
