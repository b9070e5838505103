import errno
import hashlib
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import AdamW

from tlm_repro.errors import CheckpointError
from tlm_repro.training import checkpoint
from tlm_repro.training.checkpoint import Checkpoints, Snapshot, random_state
from tlm_repro.training.saving import Saver


def state() -> tuple[nn.Module, AdamW]:
    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    optimizer = AdamW(model.parameters(), lr=0.1)
    model(torch.randn(4, 8)).square().sum().backward()
    optimizer.step()
    return model, optimizer


def snapshot(step: int) -> Snapshot:
    return Snapshot.of(step, *state(), [random_state()], {})


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def wait_for(condition: str, saver: Saver) -> None:
    end = time.monotonic() + 10
    while not getattr(saver, condition):
        assert time.monotonic() < end, condition
        time.sleep(0.002)


def test_training_may_change_its_tensors_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer is held back until every tensor has been overwritten: the files are those of the moment before."""
    plain = Checkpoints(tmp_path / "plain", "run").write(snapshot(3))
    go, save_file = threading.Event(), checkpoint.save_file

    def held_back(*arguments: object) -> None:
        assert go.wait(timeout=10)
        save_file(*arguments)

    monkeypatch.setattr(checkpoint, "save_file", held_back)
    model, optimizer = state()
    with Saver(Checkpoints(tmp_path / "beside", "run")) as saver:
        saver.begin(Snapshot.of(3, model, optimizer, [random_state()], {}))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(7)
                optimizer.state[parameter]["exp_avg"].fill_(7)
        assert not list((tmp_path / "beside").glob("step-*"))  # and begin didn't wait
        go.set()
        saver.finish()
        assert saver.slowest > 0
    assert digests(tmp_path / "beside" / "step-00000003") == digests(plain)


def test_only_one_is_written_at_a_time(tmp_path: Path) -> None:
    with Saver(Checkpoints(tmp_path, "run")) as saver:
        saver.begin(snapshot(1))
        with pytest.raises(RuntimeError, match="finish first"):
            saver.begin(snapshot(2))
        saver.finish()
        saver.begin(snapshot(2))
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-00000001", "step-00000002"]


def test_an_error_is_seen_and_raised_with_the_usual_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint.os, "fsync", full)
    with Saver(Checkpoints(tmp_path, "run")) as saver:
        assert not saver.failed
        saver.begin(snapshot(4))
        wait_for("failed", saver)
        with pytest.raises(CheckpointError, match=r"step-00000004 could not be written .*No space left on device"):
            saver.finish()
    assert not list(tmp_path.iterdir())


def test_leaving_waits_for_what_is_written_and_hides_no_other_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Saver(Checkpoints(tmp_path, "run")) as saver:  # noqa: PT012
        saver.begin(snapshot(1))
        raise ZeroDivisionError
    assert Checkpoints(tmp_path, "run").latest() is not None
