"""Signals that ask a run to stop: noted when they come, acted on at the end of the step."""

import signal
import threading
from types import FrameType
from typing import Any, Self

STOPPING = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class StopSignals:
    """While entered, SIGTERM, SIGUSR1 and SIGINT only set `received`; on leaving, the former handlers return.

    A second signal changes nothing: a scheduler sends SIGUSR1 and then SIGTERM, and a terminal's Ctrl-C reaches a job
    twice, and neither may cut a save short. Handlers belong to the main thread; elsewhere nothing is caught.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._former: dict[signal.Signals, Any] = {}

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._former = {number: signal.signal(number, self._note) for number in STOPPING}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
