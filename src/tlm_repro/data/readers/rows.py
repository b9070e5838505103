"""Documents from rows that have a text field."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tlm_repro.data.readers.base import Document
from tlm_repro.errors import DataError

Rows = Iterable[Mapping[str, Any]]


@contextlib.contextmanager
def reading_errors_as_data_errors(source: str, remedy: str) -> Iterator[None]:
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
        with reading_errors_as_data_errors(source, remedy):
            yield from rows()

    for number, row in enumerate(readable(), first):
        text = row.get(field)
        if not isinstance(text, str):
            raise DataError(row_problem(row, field, number, source))
        yield Document(f"{name}#{number}", text)


def row_problem(row: Mapping[str, Any], field: str, number: int, source: str) -> str:
    """Why a row gives no document, and what to do."""
    fields = ", ".join(sorted(row))
    if field not in row:
        return f"row {number} of {source} has no field '{field}': name one of {fields}"
    text = row[field]
    return (
        f"row {number} of {source} has {'nothing' if text is None else repr(text)[:60]} in field '{field}', "
        f"text was expected: drop the row, or name another of its fields {fields}"
    )


def parquet_options() -> Any:
    """Reading without Arrow's buffer, which keeps what it has read until the end of the file."""
    from pyarrow.dataset import ParquetFragmentScanOptions

    return ParquetFragmentScanOptions(pre_buffer=False)
