import os
import signal
import threading

import pytest

from tlm_repro.training.signals import StopSignals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_is_noted_and_its_handler_restored(number: signal.Signals) -> None:
    former = signal.getsignal(number)
    with StopSignals() as signals:
        assert signals.received is None
        os.kill(os.getpid(), number)
        assert signals.received is number
    assert signal.getsignal(number) is former


def test_the_first_of_two_signals_counts() -> None:
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received is signal.SIGUSR1


def test_outside_the_main_thread_nothing_is_caught() -> None:
    former = signal.getsignal(signal.SIGTERM)
    seen = []

    def enter() -> None:
        with StopSignals():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [former]
