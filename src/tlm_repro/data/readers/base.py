"""The base class of corpus readers, and the documents and source files that they return."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from tlm_repro.errors import DataError
from tlm_repro.spec.base import Spec

Kind = TypeVar("Kind", bound=Spec)


@dataclass(frozen=True)
class Document:
    """A text, and a name that is unique within its corpus."""

    name: str
    text: str


class Source(Spec):
    """A source file of a corpus."""

    name: str
    index: int  # its position among the corpus's files
    size: int  # in bytes; for a data set on the hub, in rows
    first_row: int = 0  # number of its first document, if documents are numbered over all files


class Reader(ABC, Generic[Kind]):
    """Reads corpora of one kind.

    A document's name depends neither on the number of documents nor, for files, on where the corpus lies, because the
    held-out split hashes it.
    """

    min_part_size: ClassVar[int] = 4_000_000  # small sources are grouped into parts of at least this size

    def __init__(self, corpus: Kind) -> None:
        self.corpus = corpus

    @abstractmethod
    def documents(self, sources: Sequence[Source] | None = None) -> Iterator[Document]:
        """The documents of the corpus, or of some of its sources, always in the same order.

        Raises:
            DataError: the corpus, a file, a row or its text is missing or unreadable; the message names it.
        """

    @abstractmethod
    def sources(self) -> list[Source]:
        """The source files, in the order of their documents. Raises DataError as `documents` does."""

    def at_version_of(self, sources: Sequence[Source]) -> Kind:  # noqa: ARG002 - most kinds have no versions
        """The corpus at the version of these sources, so that jobs that run later read the same files."""
        return self.corpus


def file_sources(files: Mapping[str, Path]) -> list[Source]:
    """One source for each file, sorted by name."""
    return [
        Source(name=name, index=index, size=path.stat().st_size)
        for index, (name, path) in enumerate(sorted(files.items()))
    ]


def select_files(files: Mapping[str, Path], sources: Sequence[Source] | None) -> Mapping[str, Path]:
    """The files of `sources`, or all files for None. Raises DataError if one no longer exists."""
    if sources is None:
        return files
    missing = next((source.name for source in sources if source.name not in files), None)
    if missing is not None:
        raise DataError(f"the corpus no longer has the file '{missing}': restore it, or run `tokenize-start` again")
    return {source.name: files[source.name] for source in sources}


def text_files(files: Mapping[str, Path]) -> Iterator[Document]:
    """One document for each file, named after it. Raises DataError if a file can't be read or isn't UTF-8 text."""
    for name, path in sorted(files.items()):
        try:
            yield Document(name, path.read_bytes().decode("utf-8"))
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is not UTF-8 text (byte {error.start}): convert it, or exclude it") from None
        except OSError as error:
            raise DataError(f"{path} can't be read ({error.strerror}): repair it, or exclude it") from None
