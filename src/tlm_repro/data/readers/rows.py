"""Documents from rows that have a text field."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tlm_repro.data.readers.base import Document
from tlm_repro.errors import DataError

Rows = Iterable[Mapping[str, Any]]


@contextlib.contextmanager
def reading_errors_as_data_errors(source: str, remedy: str) -> Iterator[None]:
    """Turns any error in the block into a DataError that names `source` and says what to do."""
    try:
        yield
    except Exception as error:  # the libraries raise dozens of unrelated types
        cause = next(iter(str(error).strip().splitlines()), "no reason given")
        raise DataError(f"{source} can't be read ({type(error).__name__}: {cause}): {remedy}") from error


def row_documents(
    rows: Callable[[], Rows], field: str, name: str, *, source: str, remedy: str, first: int = 0
) -> Iterator[Document]:
    """One document for each of `rows()`, named `<name>#<row number>`; `first` is the number of the first row.

    Raises:
        DataError: the source can't be opened or read (the message ends in `remedy`), or a row has no text.
    """

    def readable_rows() -> Iterator[Mapping[str, Any]]:
        with reading_errors_as_data_errors(source, remedy):
            yield from rows()

    for number, row in enumerate(readable_rows(), first):
        text = row.get(field)
        if not isinstance(text, str):
            raise DataError(row_problem(row, field, number, source))
        yield Document(f"{name}#{number}", text)


def row_problem(row: Mapping[str, Any], field: str, number: int, source: str) -> str:
    """The message about a row without text, with what to do."""
    fields = ", ".join(sorted(row))
    if field not in row:
        return f"row {number} of {source} has no field '{field}': name one of {fields}"
    text = row[field]
    return (
        f"row {number} of {source} has {'nothing' if text is None else repr(text)[:60]} in field '{field}' "
        f"instead of text: drop the row, or name another of its fields {fields}"
    )


def parquet_options() -> Any:
    """Scan options without Arrow's pre-buffering, which keeps all data in memory until the end of the file."""
    from pyarrow.dataset import ParquetFragmentScanOptions

    return ParquetFragmentScanOptions(pre_buffer=False)
