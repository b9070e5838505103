"""Progress bars in a log file."""

import io
import sys
import warnings

from tqdm import tqdm

from tlm_repro.evaluation.progress_bars import BarLog, bars_as_lines


def test_a_bar_becomes_plain_lines_and_other_text_passes() -> None:
    log = io.StringIO()
    stream = BarLog(log, seconds=0)
    print("before", file=stream)
    for _ in tqdm(range(2), file=stream, desc="items", mininterval=0, miniters=1):
        pass
    print("after", file=stream)
    lines = log.getvalue().splitlines()
    assert lines[0] == "before"
    assert lines[-1] == "after"
    assert [line.split(":")[0] for line in lines[1:-1]] == ["items"] * (len(lines) - 2)
    assert "2/2" in lines[-2]
    assert "\r" not in log.getvalue()


def test_a_quick_bar_leaves_no_line() -> None:
    log = io.StringIO()
    with bars_as_lines(log):
        assert sys.stderr is not log
        list(tqdm(range(1000), mininterval=0))
    assert log.getvalue() == ""


def test_a_terminal_is_left_alone() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    before = sys.stderr
    with bars_as_lines(Terminal()):
        assert sys.stderr is before


def test_warnings_reach_the_log() -> None:
    log = io.StringIO()
    with bars_as_lines(log), warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_: print(message, file=sys.stderr)
        warnings.warn("something happened", stacklevel=1)
    assert log.getvalue() == "something happened\n"
