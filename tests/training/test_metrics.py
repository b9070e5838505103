import json
from pathlib import Path
from typing import Any

import pytest

from tlm_repro.records.metrics import MetricsRow, read_rows
from tlm_repro.training.metrics import MetricsFile, Progress, scalars


def row(step: int, loss: float | None, **more: Any) -> MetricsRow:
    return MetricsRow(step=step, tokens=8 * step, loss=loss, **more)


def lines(first: int, last: int) -> str:
    return "".join(
        json.dumps({"step": step, "tokens": 8 * step, "loss": 1 / step}) + "\n" for step in range(first, last + 1)
    )


def test_resuming_cuts_off_what_the_checkpoint_does_not_know(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(lines(1, 5))
    file = MetricsFile(path, step=3)
    file.append(MetricsRow(step=4, tokens=32, loss=9.0))
    file.close()
    assert path.read_text() == lines(1, 3) + '{"step": 4, "tokens": 32, "loss": 9.0}\n'


def test_a_line_cut_short_by_a_kill_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(lines(1, 3) + '{"step": 4, "lo')
    MetricsFile(path, step=3).close()
    assert path.read_text() == lines(1, 3)


def test_a_start_from_the_beginning_empties_the_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(lines(1, 5))
    MetricsFile(path, step=0).close()
    assert read_rows(path) == []


def test_missing_rows_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(lines(3, 4))
    MetricsFile(path, step=4).close()
    assert "rows for 2 of the 4 steps" in capsys.readouterr().err


def test_a_log_file_gets_a_plain_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 4.0, 11.0, 12.0, 40.0])
    monkeypatch.setattr("tlm_repro.training.metrics.time.monotonic", lambda: next(clock))
    progress = Progress(step=10, steps=14, seconds=10, shown=True)
    for step in range(11, 15):
        progress.update(row(step, 2.5, tokens_per_second=12345.6))
    assert capsys.readouterr().err.splitlines() == [
        # Two steps took 11 s, so the two that are left take as long.
        "step 12/14, loss 2.5000 nats, 12,346 tokens/s, ETA 0:00:11",
        "step 14/14, loss 2.5000 nats, 12,346 tokens/s, ETA 0:00:00",
    ]


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    progress = Progress(step=1, steps=2, seconds=0, shown=True)
    progress.update(row(2, 2.5, tokens_per_second=12345.6))
    progress.close()
    last = capsys.readouterr().err.split("\r")[-1]
    assert "2/2" in last
    assert "loss 2.5000 nats, 12,346 tokens/s" in last


def test_other_processes_are_silent(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(step=0, steps=1, seconds=0, shown=False)
    progress.update(row(1, 1.0, tokens_per_second=1.0))
    progress.close()
    assert capsys.readouterr().err == ""


def test_skipped_batches_and_utilisation_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(step=0, steps=2, seconds=0, shown=True)
    progress.update(row(1, None, tokens_per_second=10.0, skipped=True))
    progress.update(row(2, 1.0, tokens_per_second=10.0, mfu=0.4567))
    first, second = capsys.readouterr().err.splitlines()
    assert "step 1/2, batch skipped, 10 tokens/s" in first
    assert "loss 1.0000 nats, 10 tokens/s, MFU 45.7%" in second


def test_scalars_are_what_can_be_drawn_by_step() -> None:
    skipped = row(3, None, learning_rate=0.1, skipped=True)
    assert scalars(skipped) == {"learning_rate": 0.1}


def test_lines_that_are_no_rows_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    strange = b'[1]\n"row"\n{"step": "1"}\n{"step": 0, "tokens": 8, "loss": 1.0}\n\xff\xfe\n' + b"[" * 100_000 + b"\n"
    path.write_bytes(lines(1, 1).encode() + strange + lines(2, 2).encode())
    assert [row.step for row in read_rows(path)] == [1, 2]
