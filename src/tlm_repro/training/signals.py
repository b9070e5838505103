"""Signals that ask a run to stop. They are noted on arrival and acted on at the end of the step."""

import signal
import threading
from types import FrameType
from typing import Any, Self

STOPPING = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class StopSignals:
    """A context in which SIGTERM, SIGUSR1 and SIGINT only set `received`. The previous handlers are restored on exit.

    A second signal changes nothing, so none can cut a save short: SLURM sends SIGUSR1 and then SIGTERM, and a
    terminal's Ctrl-C reaches a job twice. Only the main thread can have handlers; in another one, nothing is caught.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._note) for number in STOPPING}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
