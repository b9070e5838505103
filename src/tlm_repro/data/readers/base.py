"""What a reader of a corpus is, and the documents and files that it gives."""

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
    index: int  # its place among the corpus's files
    size: int  # in bytes, of a hub's data set in rows
    first_row: int = 0  # the number of its first document, where documents are numbered over all files


class Reader(ABC, Generic[Kind]):
    """Reads the corpora of one kind.

    Names of documents depend neither on the number of documents nor, for files, on where the corpus lies: the held-out
    split hashes them.
    """

    smallest_part: ClassVar[int] = 4_000_000  # small sources are grouped into parts of at least this size

    def __init__(self, corpus: Kind) -> None:
        self.corpus = corpus

    @abstractmethod
    def documents(self, only: Sequence[Source] | None = None) -> Iterator[Document]:
        """The documents, or those of some sources alone, always in the same order.

        Raises:
            DataError: the corpus, a file, a row or its text is missing or unreadable; the message names it.
        """

    @abstractmethod
    def sources(self) -> list[Source]:
        """The source files, in the order of their documents. Raises DataError as `documents` does."""

    def pinned(self, sources: Sequence[Source]) -> Kind:  # noqa: ARG002 - kinds without versions need no sources
        """The corpus at the version of these sources, so that jobs of another day read the same files."""
        return self.corpus


def file_sources(files: Mapping[str, Path]) -> list[Source]:
    """One source a file, in the order of their names."""
    return [
        Source(name=name, index=index, size=path.stat().st_size)
        for index, (name, path) in enumerate(sorted(files.items()))
    ]


def files_of(files: Mapping[str, Path], only: Sequence[Source] | None) -> Mapping[str, Path]:
    """The files of these sources. Raises DataError when one isn't there any more."""
    if only is None:
        return files
    missing = next((source.name for source in only if source.name not in files), None)
    if missing is not None:
        raise DataError(f"the corpus has no file '{missing}' any more: put it back, or plan the tokenising again")
    return {source.name: files[source.name] for source in only}


def text_files(files: Mapping[str, Path]) -> Iterator[Document]:
    """One document a file, named after it. Raises DataError for a file that is not UTF-8 text or can't be read."""
    for name, path in sorted(files.items()):
        try:
            yield Document(name, path.read_bytes().decode("utf-8"))
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is not UTF-8 text (byte {error.start}): convert it, or leave it out") from None
        except OSError as error:
            raise DataError(f"{path} can't be read ({error.strerror}): mend it, or leave it out") from None
