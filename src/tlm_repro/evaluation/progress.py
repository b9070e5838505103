"""Progress bars of other libraries in a log file."""

import contextlib
import io
import time
from collections.abc import Iterator
from typing import TextIO

LOG_SECONDS = 30.0


class BarLog(io.TextIOBase):
    """Passes text on to `target`, but of a bar that is redrawn in place only one plain line every `seconds`."""

    def __init__(self, target: TextIO, seconds: float = LOG_SECONDS) -> None:
        self.target, self.seconds = target, seconds
        self.told = time.monotonic()
        self.in_bar = False

    def write(self, text: str) -> int:
        if text.startswith("\r"):
            self.in_bar = True
            if text.strip() and time.monotonic() - self.told >= self.seconds:
                print(text.strip(), file=self.target, flush=True)
                self.told = time.monotonic()
        elif not (self.in_bar and text.strip("\n") == ""):  # a bar closes with an end of line
            self.in_bar = False
            self.target.write(text)
        return len(text)

    def flush(self) -> None:
        self.target.flush()


@contextlib.contextmanager
def plain_progress(stream: TextIO) -> Iterator[None]:
    """On a terminal changes nothing; elsewhere, stderr goes through a `BarLog` to `stream` in the block."""
    if stream.isatty():
        yield
        return
    with contextlib.redirect_stderr(BarLog(stream)):
        yield
