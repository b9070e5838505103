"""Curves in TensorBoard's own reader, over attempts that were stopped; W&B where it is installed."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tlm_repro.data.shards import TokenData
from tlm_repro.errors import ConfigError
from tlm_repro.records.metrics import read_rows
from tlm_repro.spec.execution import Execution
from tlm_repro.spec.run import RunSpec
from tlm_repro.training import trackers, trainer
from tlm_repro.training.trainer import pretrain


class Killed(Exception):
    pass


def test_a_killed_and_resumed_run_has_each_step_once(
    tiny_run: Callable[..., RunSpec],
    periodic_data: TokenData,
    place: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = tiny_run(steps=9)
    execution = Execution(validations=3, trackers=("tensorboard",), tracking=tmp_path / "logs", checkpoint_seconds=0)
    mean_loss, calls = trainer.mean_loss, []

    def killed(*arguments: object) -> object:
        calls.append(None)
        if len(calls) == 8:
            raise Killed
        return mean_loss(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "mean_loss", killed)
        with pytest.raises(Killed):
            pretrain(spec, periodic_data, **place, execution=execution)
    # The newest checkpoint is lost, so a step comes a second time.
    newest = max(place["checkpoints"].glob("step-*"))
    (newest / "state.json").write_text("{")
    pretrain(spec, periodic_data, **place, execution=execution)

    reader = EventAccumulator(str(tmp_path / "logs" / "tensorboard" / spec.id))
    reader.Reload()
    rows = read_rows(place["folder"] / "metrics.jsonl")
    losses = reader.Scalars("loss")
    assert [event.step for event in losses] == list(range(1, 10))
    assert [event.value for event in losses] == pytest.approx([row.loss for row in rows], rel=1e-6)
    assert [event.step for event in reader.Scalars("validation_loss")] == [3, 6, 9]
    assert set(reader.Tags()["scalars"]) == {
        "loss", "validation_loss", "learning_rate", "grad_norm", "tokens_per_second"
    }  # fmt: skip


def test_a_tracker_that_is_not_installed_is_named_before_anything_starts(
    tiny_run: Callable[..., RunSpec],
    periodic_data: TokenData,
    place: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="wandb is not installed: pip install wandb, or take it off the list"):
        pretrain(tiny_run(), periodic_data, **place, execution=Execution(trackers=("wandb",)))
    assert not place["checkpoints"].exists()


def test_an_unknown_tracker_is_refused() -> None:
    with pytest.raises(ConfigError, match="'comet' is unknown: choose among tensorboard, wandb"):
        trackers.check(["comet"])


def test_a_tracker_that_cannot_start_says_what_to_do(
    tiny_run: Callable[..., RunSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: object) -> None:
        raise RuntimeError("no API key")

    monkeypatch.setattr("accelerate.tracking.WandBTracker.start", refused)
    with pytest.raises(ConfigError, match=r"wandb can't start \(no API key\): log in .* WANDB_MODE=offline"):
        trackers.start(["wandb"], tiny_run(), tmp_path, step=0)


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")
def test_wandb_writes_offline(
    tiny_run: Callable[..., RunSpec],
    periodic_data: TokenData,
    place: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    spec = tiny_run(steps=2)
    execution = Execution(validations=1, trackers=("wandb",), tracking=tmp_path / "logs")
    pretrain(spec, periodic_data, **place, execution=execution)
    (file,) = (tmp_path / "logs" / "wandb").glob("offline-run-*/*.wandb")
    content = file.read_bytes()
    assert spec.id.encode() in content
    assert b"grad_norm" in content
