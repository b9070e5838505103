"""Progress bars in a log file."""

import contextlib
import io
import time
from collections.abc import Iterator
from typing import TextIO

LOG_SECONDS = 30.0


class BarLog(io.TextIOBase):
    """Writes text to `target`. A bar that is redrawn in place becomes a plain line every `seconds`."""

    def __init__(self, target: TextIO, seconds: float = LOG_SECONDS) -> None:
        self.target, self.seconds = target, seconds
        self.logged_at = time.monotonic()
        self.in_bar = False

    def write(self, text: str) -> int:
        if text.startswith("\r"):
            self.in_bar = True
            if text.strip() and time.monotonic() - self.logged_at >= self.seconds:
                print(text.strip(), file=self.target, flush=True)
                self.logged_at = time.monotonic()
        elif not (self.in_bar and text.strip("\n") == ""):  # a bar ends with a line end
            self.in_bar = False
            self.target.write(text)
        return len(text)

    def flush(self) -> None:
        self.target.flush()


@contextlib.contextmanager
def bars_as_lines(stream: TextIO) -> Iterator[None]:
    """In the block, sends stderr to `stream` through a `BarLog`, unless `stream` is a terminal."""
    if stream.isatty():
        yield
        return
    with contextlib.redirect_stderr(BarLog(stream)):
        yield
