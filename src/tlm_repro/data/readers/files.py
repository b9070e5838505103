"""Local files: one document for each text file, or for each row of JSONL or Parquet."""

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tlm_repro.data.readers.base import Document, Reader, Source, file_sources, select_files, text_files
from tlm_repro.data.readers.rows import Rows, parquet_options, row_documents
from tlm_repro.errors import DataError
from tlm_repro.spec.data import FilesCorpus


class FilesReader(Reader[FilesCorpus]):
    """Reads corpora of kind `files`."""

    def documents(self, sources: Sequence[Source] | None = None) -> Iterator[Document]:
        files = select_files(local_files(self.corpus), sources)
        return text_files(files) if self.corpus.format == "text" else row_files(self.corpus, files)

    def sources(self) -> list[Source]:
        return file_sources(local_files(self.corpus))


def fixed_part(pattern: str) -> Path:
    """The deepest folder that contains every match of a pattern."""
    parts = Path(pattern).parts[:-1]
    magic = next((index for index, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    return Path(*parts[:magic])


def local_files(corpus: FilesCorpus) -> dict[str, Path]:
    """The files that match the patterns, by their path below the deepest folder that contains all matches."""
    patterns = [os.path.abspath(os.path.expanduser(pattern)) for pattern in corpus.paths]
    root = os.path.commonpath([fixed_part(pattern) for pattern in patterns])
    by_name: dict[str, Path] = {}
    for configured, pattern in zip(corpus.paths, patterns, strict=True):
        literal = os.path.exists(pattern)  # a file name may contain brackets
        matches = [Path(match) for match in ([pattern] if literal else glob.glob(pattern, recursive=True))]
        files = [path for path in matches if path.is_file()]
        if not files:
            match = "a folder" if matches else "nothing"
            raise DataError(
                f"the corpus path '{configured}' matches {match} (searched {pattern}): "
                "name a file, or a pattern that matches files"
            )
        by_name |= {path.relative_to(root).as_posix(): path for path in files}
    return by_name


def row_files(corpus: FilesCorpus, files: Mapping[str, Path]) -> Iterator[Document]:
    import datasets

    builder = {"jsonl": "json", "parquet": "parquet"}[corpus.format]
    options = {"fragment_scan_options": parquet_options()} if builder == "parquet" else {}
    for name, path in sorted(files.items()):

        def rows(path: Path = path) -> Rows:
            files = glob.escape(str(path))
            return datasets.load_dataset(builder, data_files=files, split="train", streaming=True, **options)

        remedy = f"make it valid {corpus.format}, install the package that its compression needs, or exclude it"
        yield from row_documents(rows, corpus.field, name, source=str(path), remedy=remedy)
