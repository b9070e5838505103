"""Losses that stop being finite: the run stops and says so once and for all, or skips as many batches as it may."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from attempts import untracked
from plain_training import by_hand
from safetensors.torch import load_file
from torch import nn

from tlm_repro.artifacts.files import read_json
from tlm_repro.artifacts.manifest import read_manifest
from tlm_repro.data.shards import TokenData
from tlm_repro.errors import ArtifactError, DivergenceError
from tlm_repro.spec.run import RunSpec
from tlm_repro.training import trainer
from tlm_repro.training.trainer import pretrain

Run = Callable[..., RunSpec]
EACH_STEP = untracked(validations=1, checkpoint_seconds=0)


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Callable[[set[int]], None]:
    """Makes the loss of these steps, counted from 1 in one attempt without accumulation, not a number."""
    mean_loss = trainer.mean_loss

    def poison(steps: set[int]) -> None:
        calls: list[None] = []

        def spoiled(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
            calls.append(None)
            loss = mean_loss(model, batch)
            return loss * math.nan if len(calls) in steps else loss

        monkeypatch.setattr(trainer, "mean_loss", spoiled)

    return poison


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("architecture", ["transformer", "hope_attention"])
def test_a_skipped_batch_changes_nothing_and_is_recorded(
    tiny_run: Run,
    periodic_data: TokenData,
    place: dict[str, Path],
    poisoned: Callable[[set[int]], None],
    architecture: str,
) -> None:
    # Step 4 ends a period of the second and third level, step 7 is in the middle of every one.
    spec = tiny_run(steps=10, eps=1e-4, skip_nonfinite=2, model={"architecture": architecture})
    poisoned({4, 7})
    summary = pretrain(spec, periodic_data, **place, execution=EACH_STEP)
    found = load_file(place["folder"] / "model" / "model.safetensors")
    wanted = by_hand(spec, periodic_data, frozenset({4, 7}))
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, wanted[name], atol=2e-5, rtol=0, msg=name)
    history = rows(place["folder"])
    assert [row["step"] for row in history] == list(range(1, 11))
    assert [row["step"] for row in history if row.get("skipped")] == [4, 7]
    assert [(row["loss"], row["grad_norm"]) for row in history if row.get("skipped")] == [(None, None)] * 2
    assert summary["skipped_steps"] == [4, 7]
    assert read_manifest(place["folder"] / "manifest.json").summary == summary
    assert math.isfinite(summary["final_loss"])


def test_one_more_than_allowed_stops_the_run(
    tiny_run: Run, periodic_data: TokenData, place: dict[str, Path], poisoned: Callable[[set[int]], None]
) -> None:
    poisoned({3, 5})
    with pytest.raises(DivergenceError, match=r"step 5: the loss is nan, .* after 1 skipped batches; .*step-00000004"):
        pretrain(tiny_run(skip_nonfinite=1), periodic_data, **place, execution=EACH_STEP)


def test_the_number_skipped_survives_a_restart(
    tiny_run: Run, periodic_data: TokenData, place: dict[str, Path], poisoned: Callable[[set[int]], None]
) -> None:
    spec = tiny_run(skip_nonfinite=1)
    poisoned({3, 5})
    with pytest.raises(DivergenceError, match="step 5"):
        pretrain(spec, periodic_data, **place, execution=EACH_STEP)
    (place["checkpoints"] / "diverged.json").unlink()
    poisoned({1})  # the first step of the second attempt, step 5 of the run
    with pytest.raises(DivergenceError, match=r"step 5: .* after 1 skipped batches"):
        pretrain(spec, periodic_data, **place, execution=EACH_STEP)


def test_a_run_that_diverged_says_so_at_once_until_its_note_is_deleted(
    tiny_run: Run,
    periodic_data: TokenData,
    place: dict[str, Path],
    poisoned: Callable[[set[int]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec, note = tiny_run(), place["checkpoints"] / "diverged.json"
    poisoned({5})
    with pytest.raises(DivergenceError, match="step 5"):
        pretrain(spec, periodic_data, **place, execution=EACH_STEP)
    assert read_json(note)["step"] == 4
    poisoned(set())
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "Trainer", None)  # nothing is prepared, nothing trained
        with pytest.raises(
            DivergenceError, match=r"earlier attempt diverged.*step 5: the loss is nan.*delete .*diverged\.json"
        ):
            pretrain(spec, periodic_data, **place, execution=EACH_STEP)
    note.unlink()
    pretrain(spec, periodic_data, **place, execution=EACH_STEP)
    assert [row["step"] for row in rows(place["folder"])] == list(range(1, 13))


def test_a_note_that_is_not_one_is_named(tiny_run: Run, periodic_data: TokenData, place: dict[str, Path]) -> None:
    place["checkpoints"].mkdir()
    (place["checkpoints"] / "diverged.json").write_text("[]")
    with pytest.raises(ArtifactError, match=r"diverged\.json should say how the run diverged"):
        pretrain(tiny_run(), periodic_data, **place, execution=EACH_STEP)


def test_skipping_is_part_of_a_run_only_where_it_is_allowed(tiny_run: Run) -> None:
    assert "skip_nonfinite" not in tiny_run().training.canonical()
    assert tiny_run(skip_nonfinite=0).id == tiny_run().id
    assert tiny_run(skip_nonfinite=1).id != tiny_run().id
