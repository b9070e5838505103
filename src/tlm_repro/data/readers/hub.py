"""A data set of the Hugging Face hub, or in a local folder that `datasets` can load, streamed."""

import functools
import os
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tlm_repro.data.readers.base import Document, Reader, Source
from tlm_repro.data.readers.rows import parquet_options, reading_errors_as_data_errors, row_documents
from tlm_repro.errors import DataError
from tlm_repro.spec.data import HubCorpus

if TYPE_CHECKING:
    from datasets import IterableDataset

PINNED = re.compile(r"^hf://datasets/[^@]+@([0-9a-f]{40})/")


class HubReader(Reader[HubCorpus]):
    """Reads kind `hub`. Documents are numbered over all files of the data set."""

    smallest_part = 10_000  # rows

    def documents(self, only: Sequence[Source] | None = None) -> Iterator[Document]:
        corpus = self.corpus
        source, remedy = hub_names(corpus)
        if only is None:
            yield from row_documents(
                lambda: open_hub(corpus)[0], corpus.field, corpus.split, source=source, remedy=remedy
            )
            return
        with reading_errors_as_data_errors(source, remedy):
            opened, files = open_hub(corpus)
        for one in only:
            if one.index >= len(files) or files[one.index] != one.name:
                raise DataError(
                    f"{source} has no file '{one.name}' at place {one.index} any more: plan the tokenising again"
                )
            rows = functools.partial(opened.shard, num_shards=len(files), index=one.index)
            yield from row_documents(
                rows, corpus.field, corpus.split, source=f"{one.name} of {source}", remedy=remedy, first=one.first_row
            )

    def sources(self) -> list[Source]:
        """The rows before each file are counted: from the footer of a Parquet file, by reading any other."""
        return list(hub_sources(self.corpus))

    def pinned(self, sources: Sequence[Source]) -> HubCorpus:
        commit = PINNED.match(sources[0].name) if sources else None
        return self.corpus if commit is None else self.corpus.model_copy(update={"revision": commit.group(1)})


def hub_sources(corpus: HubCorpus) -> Iterator[Source]:
    where, remedy = hub_names(corpus)
    with reading_errors_as_data_errors(where, remedy):
        opened, names = open_hub(corpus)
    first = 0
    for index, name in enumerate(names):
        with reading_errors_as_data_errors(f"{name} of {where}", remedy):
            rows = count_rows(opened, name, index)
        yield Source(name=name, index=index, size=rows, first_row=first)
        first += rows


def hub_names(corpus: HubCorpus) -> tuple[str, str]:
    """How messages call the data set, and what to do when it can't be read."""
    source = f"data set '{corpus.name}' (config {corpus.config}, split {corpus.split}, revision {corpus.revision})"
    offline = os.environ.get("HF_HUB_OFFLINE", "not set")
    return source, (
        f"check these names and the network (HF_HUB_OFFLINE is {offline}; 1 forbids downloads), "
        "name a local folder, or for a gated data set run `hf auth login`"
    )


def open_hub(corpus: HubCorpus) -> tuple["IterableDataset", list[str]]:
    """The data set, streamed, and the names of its files; where those aren't known, the split and a number."""
    import datasets

    builder = datasets.load_dataset_builder(corpus.name, corpus.config, revision=corpus.revision)
    if hasattr(builder.config, "fragment_scan_options"):
        builder.config.fragment_scan_options = parquet_options()
    opened = builder.as_streaming_dataset(split=corpus.split)
    names = [str(name) for name in (builder.config.data_files or {}).get(corpus.split, ())]
    if len(names) != opened.num_shards:
        names = [f"{corpus.split}/{index}" for index in range(opened.num_shards)]
    return opened, names


def count_rows(opened: "IterableDataset", name: str, index: int) -> int:
    """The rows of a data set's file, the one at place `index`."""
    if name.endswith(".parquet"):
        import fsspec
        import pyarrow.parquet

        with fsspec.open(name, "rb") as file:
            return pyarrow.parquet.ParquetFile(file).metadata.num_rows
    return sum(1 for _ in opened.shard(num_shards=opened.num_shards, index=index))
