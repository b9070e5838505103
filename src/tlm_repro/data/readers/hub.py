"""A data set on the Hugging Face hub, or in a local folder that `datasets` can load, streamed."""

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

COMMIT_IN_NAME = re.compile(r"^hf://datasets/[^@]+@([0-9a-f]{40})/")


class HubReader(Reader[HubCorpus]):
    """Reads corpora of kind `hub`. Documents are numbered over all files of the data set."""

    min_part_size = 10_000  # rows

    def documents(self, sources: Sequence[Source] | None = None) -> Iterator[Document]:
        corpus = self.corpus
        title, remedy = hub_title_and_remedy(corpus)
        if sources is None:
            yield from row_documents(
                lambda: open_hub(corpus)[0], corpus.field, corpus.split, source=title, remedy=remedy
            )
            return
        with reading_errors_as_data_errors(title, remedy):
            dataset, names = open_hub(corpus)
        for source in sources:
            if source.index >= len(names) or names[source.index] != source.name:
                raise DataError(
                    f"{title} no longer has '{source.name}' as file number {source.index}: run `tokenize-start` again"
                )
            rows = functools.partial(dataset.shard, num_shards=len(names), index=source.index)
            yield from row_documents(
                rows,
                corpus.field,
                corpus.split,
                source=f"{source.name} of {title}",
                remedy=remedy,
                first=source.first_row,
            )

    def sources(self) -> list[Source]:
        """Each file's rows are counted: a Parquet file's footer has the number, any other file is read."""
        return list(hub_sources(self.corpus))

    def at_version_of(self, sources: Sequence[Source]) -> HubCorpus:
        commit = COMMIT_IN_NAME.match(sources[0].name) if sources else None
        return self.corpus if commit is None else self.corpus.model_copy(update={"revision": commit.group(1)})


def hub_sources(corpus: HubCorpus) -> Iterator[Source]:
    title, remedy = hub_title_and_remedy(corpus)
    with reading_errors_as_data_errors(title, remedy):
        dataset, names = open_hub(corpus)
    first = 0
    for index, name in enumerate(names):
        with reading_errors_as_data_errors(f"{name} of {title}", remedy):
            rows = count_rows(dataset, name, index)
        yield Source(name=name, index=index, size=rows, first_row=first)
        first += rows


def hub_title_and_remedy(corpus: HubCorpus) -> tuple[str, str]:
    """The name of the data set in messages, and what to do if it can't be read."""
    title = f"data set '{corpus.name}' (config {corpus.config}, split {corpus.split}, revision {corpus.revision})"
    offline = os.environ.get("HF_HUB_OFFLINE", "not set")
    return title, (
        f"check these names and the network (HF_HUB_OFFLINE is {offline}; 1 forbids downloads), "
        "name a local folder or, for a gated data set, run `hf auth login`"
    )


def open_hub(corpus: HubCorpus) -> tuple["IterableDataset", list[str]]:
    """The streamed data set and the names of its files; if those are unknown, `<split>/<number>` for each."""
    import datasets

    builder = datasets.load_dataset_builder(corpus.name, corpus.config, revision=corpus.revision)
    if hasattr(builder.config, "fragment_scan_options"):
        builder.config.fragment_scan_options = parquet_options()
    dataset = builder.as_streaming_dataset(split=corpus.split)
    names = [str(name) for name in (builder.config.data_files or {}).get(corpus.split, ())]
    if len(names) != dataset.num_shards:
        names = [f"{corpus.split}/{index}" for index in range(dataset.num_shards)]
    return dataset, names


def count_rows(dataset: "IterableDataset", name: str, index: int) -> int:
    """The number of rows of a data set's file number `index`."""
    if name.endswith(".parquet"):
        import fsspec
        import pyarrow.parquet

        with fsspec.open(name, "rb") as file:
            return pyarrow.parquet.ParquetFile(file).metadata.num_rows
    return sum(1 for _ in dataset.shard(num_shards=dataset.num_shards, index=index))
