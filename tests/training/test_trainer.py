import functools
import hashlib
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from attempts import untracked
from plain_training import by_hand, reference
from safetensors import safe_open
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from tlm_repro import models
from tlm_repro.architectures.accounting import training_flops
from tlm_repro.artifacts.manifest import read_manifest
from tlm_repro.data.batches import Batches
from tlm_repro.data.shards import TokenData
from tlm_repro.data.tokenisation import build
from tlm_repro.devices import Utilisation
from tlm_repro.errors import ArtifactError, CheckpointError, ConfigError, DivergenceError
from tlm_repro.evaluation.validation import validation_loss
from tlm_repro.records.manifests import ModelManifest
from tlm_repro.spec.run import RunSpec
from tlm_repro.training import checkpoint, compilation, trainer
from tlm_repro.training.trainer import initial_model, pretrain, validation_steps

Run = Callable[..., RunSpec]
QUIET = untracked(validations=1)


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("micro_batch", [8, 2, 1])
def test_equals_a_plain_loop_whatever_the_accumulation(
    tiny_run: Run, periodic_data: TokenData, place: dict[str, Path], micro_batch: int
) -> None:
    # Gradients of norm 0.3 and more, clipped to 0.05: eps 1e-3 keeps AdamW from hiding a wrong scale.
    spec = tiny_run(steps=10, clip_norm=0.05, eps=1e-3)
    model, losses, norms = reference(spec, periodic_data)
    pretrain(spec, periodic_data, **place, execution=untracked(micro_batch_sequences=micro_batch, validations=1))
    assert min(norms) > 0.05
    assert [row["loss"] for row in rows(place["folder"])] == pytest.approx(losses, abs=1e-5)
    assert [row["grad_norm"] for row in rows(place["folder"])] == pytest.approx(norms, rel=1e-3)
    wanted = dict(model.named_parameters())
    with safe_open(place["folder"] / "model" / "model.safetensors", framework="np") as file:
        for name in file.keys():  # noqa: SIM118 - not a mapping
            np.testing.assert_allclose(file.get_tensor(name), wanted[name].detach().numpy(), atol=2e-5, err_msg=name)


@pytest.mark.parametrize("micro_batch", [8, 2])
def test_levels_of_a_continuum_take_their_steps_on_clipped_gradients(
    tiny_run: Run, periodic_data: TokenData, place: dict[str, Path], micro_batch: int
) -> None:
    spec = tiny_run(steps=11, clip_norm=0.05, eps=1e-4, model={"architecture": "hope_attention"})
    wanted = by_hand(spec, periodic_data)
    pretrain(spec, periodic_data, **place, execution=untracked(micro_batch_sequences=micro_batch, validations=1))
    initial = initial_model(spec.model, spec.training.seed).state_dict()
    with safe_open(place["folder"] / "model" / "model.safetensors", framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - not a mapping
            found = file.get_tensor(name)
            torch.testing.assert_close(found, wanted[name], atol=2e-5, rtol=0, msg=name)
            assert (found - initial[name]).abs().max() > 2e-4, name


def test_sees_exactly_the_planned_tokens(
    tiny_run: Run, periodic_data: TokenData, place: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, seen = tiny_run(), []
    mean_loss = trainer.mean_loss

    def counted(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        seen.append(batch)
        return mean_loss(model, batch)

    monkeypatch.setattr(trainer, "mean_loss", counted)
    summary = pretrain(spec, periodic_data, **place, execution=untracked(micro_batch_sequences=4))
    assert sum(batch[:, 1:].numel() for batch in seen) == 12 * 8 * 16 == summary["tokens"] == spec.training.tokens
    assert [row["tokens"] for row in rows(place["folder"])] == [128 * step for step in range(1, 13)]
    batches = Batches(periodic_data.train, sequence_length=16, batch_sequences=8, seed=3)
    assert torch.equal(torch.cat(seen), torch.from_numpy(np.concatenate([batches.batch(step) for step in range(12)])))


def test_learns_a_periodic_text_down_to_its_entropy(
    tiny_run: Run, periodic_data: TokenData, place: dict[str, Path]
) -> None:
    """The stream is one sentence over and over: a token tells the next, but for the few that occur in it twice."""
    spec = tiny_run(steps=150, warmup_steps=10)
    summary = pretrain(spec, periodic_data, **place, execution=untracked(validations=3))
    found = rows(place["folder"])
    assert found[0]["loss"] == pytest.approx(math.log(300), abs=0.1)  # untrained: uniform over the vocabulary
    assert summary["validation_loss"] < 0.15
    assert [row["step"] for row in found if "validation_loss" in row] == [50, 100, 150]
    assert summary["final_loss"] == pytest.approx(np.mean([row["loss"] for row in found[-8:]]))


def test_the_product_is_complete_and_loads(tiny_run: Run, periodic_data: TokenData, place: dict[str, Path]) -> None:
    spec, folder = tiny_run(), place["folder"]
    summary = pretrain(spec, periodic_data, **place, execution=QUIET)
    manifest = read_manifest(folder / "manifest.json", kind="model", verify="sha256")
    assert (manifest.id, manifest.spec, manifest.summary) == (spec.id, spec.canonical(), summary)
    assert manifest.summary["device_seconds"] == pytest.approx(manifest.wall_time_s, abs=1e-3)  # one process
    assert set(digests(folder)) == {*manifest.files, "manifest.json"}
    assert RunSpec.from_json((folder / "spec.json").read_text()) == spec
    models.register()
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    again = validation_loss(model, periodic_data.validation, sequence_length=16)
    assert again.loss == pytest.approx(summary["validation_loss"], abs=1e-6)
    assert sum(parameter.numel() for parameter in model.parameters()) == summary["parameters"]
    assert summary["training_flops"] == training_flops(spec.model, 12 * 8 * 16)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    assert tokenizer("lazy dog").input_ids == periodic_data.tokenizer()("lazy dog").input_ids
    assert model.config.eos_token_id == periodic_data.eos_token_id


def test_seeds_name_weights(tiny_run: Run) -> None:
    first, same, other = (initial_model(tiny_run().model, seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


@pytest.mark.parametrize(
    ("steps", "validations", "expected"),
    [(100, 4, {25, 50, 75, 100}), (10, 3, {3, 7, 10}), (5, 0, {5}), (2, 10, {1, 2})],
)
def test_validations_are_evenly_spaced_and_end_at_the_end(steps: int, validations: int, expected: set[int]) -> None:
    assert validation_steps(steps, validations) == expected


def test_bf16_trains_float32_weights(tiny_run: Run, periodic_data: TokenData, place: dict[str, Path]) -> None:
    AcceleratorState._reset_state(reset_partial_state=True)  # one precision a process otherwise
    try:
        pretrain(tiny_run(steps=4, precision="bf16"), periodic_data, **place, execution=QUIET)
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
    with safe_open(place["folder"] / "model" / "model.safetensors", framework="pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.float32}  # noqa: SIM118
    _, losses, _ = reference(tiny_run(steps=4), periodic_data)
    found = [row["loss"] for row in rows(place["folder"])]
    assert found == pytest.approx(losses, rel=0.01)
    assert found != pytest.approx(losses, rel=1e-6)


def test_divergence_names_the_step_and_leaves_good_checkpoints(
    tiny_run: Run, periodic_data: TokenData, place: dict[str, Path]
) -> None:
    spec = tiny_run(peak_learning_rate=1e30)
    with pytest.raises(DivergenceError, match=r"step 2: .* nan; the last good checkpoint is .*step-00000001"):
        pretrain(spec, periodic_data, **place, execution=untracked(checkpoint_seconds=0))
    (kept,) = place["checkpoints"].glob("step-*")
    with safe_open(kept / "weights.safetensors", framework="pt") as file:
        assert all(file.get_tensor(name).isfinite().all() for name in file.keys())  # noqa: SIM118
    assert not (place["folder"] / "manifest.json").exists()


def test_weights_that_are_not_finite_are_not_saved(
    tiny_run: Run, periodic_data: TokenData, place: dict[str, Path]
) -> None:
    spec = tiny_run(peak_learning_rate=1e39, warmup_steps=1)  # beyond float32
    with pytest.raises(DivergenceError, match=r"step 1: weights are not finite; the last good checkpoint is none"):
        pretrain(spec, periodic_data, **place, execution=untracked(checkpoint_seconds=0))
    assert not list(place["checkpoints"].glob("step-*"))


def test_a_run_killed_while_it_writes_its_product_ends_the_same(
    tiny_run: Run, periodic_data: TokenData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, calm, rough = tiny_run(), tmp_path / "calm", tmp_path / "rough"
    pretrain(spec, periodic_data, folder=calm, checkpoints=tmp_path / "calm-state", execution=QUIET)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    where = {"folder": rough, "checkpoints": tmp_path / "rough-state"}
    with monkeypatch.context() as patch:
        patch.setattr(ModelManifest, "write_product", killed)
        with pytest.raises(KeyboardInterrupt):
            pretrain(spec, periodic_data, **where, execution=QUIET)
    before = digests(rough)
    assert "manifest.json" not in before
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "mean_loss", killed)  # nothing is left to train
        pretrain(spec, periodic_data, **where, execution=QUIET)
    after = digests(rough)
    after.pop("manifest.json")
    assert after == before
    assert after["model/model.safetensors"] == digests(calm)["model/model.safetensors"]


def test_a_finished_run_is_not_trained_again(
    tiny_run: Run, periodic_data: TokenData, place: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, folder = tiny_run(), place["folder"]
    summary = pretrain(spec, periodic_data, **place, execution=QUIET)
    assert not list(place["checkpoints"].glob("step-*"))
    before = digests(folder)
    monkeypatch.setattr(trainer, "Trainer", None)
    assert pretrain(spec, periodic_data, **place, execution=QUIET) == summary
    (folder / "manifest.json").unlink()  # as a workflow does with a job that it lost sight of
    assert pretrain(spec, periodic_data, **place, execution=QUIET) == summary
    assert digests(folder) == before


def test_a_damaged_product_is_trained_again(tiny_run: Run, periodic_data: TokenData, place: dict[str, Path]) -> None:
    spec, folder = tiny_run(steps=3), place["folder"]
    pretrain(spec, periodic_data, **place, execution=untracked(validations=1, keep_checkpoints=True))
    assert [path.name for path in place["checkpoints"].glob("step-*")] == ["step-00000003"]
    before = digests(folder)
    with (folder / "model" / "model.safetensors").open("r+b") as file:
        file.write(b"damage")
    with pytest.raises(ArtifactError, match="sha256"):
        read_manifest(folder / "manifest.json", verify="sha256")
    (folder / "manifest.json").unlink()
    pretrain(spec, periodic_data, **place, execution=QUIET)
    assert digests(folder) == before


def test_another_run_in_the_same_folder_is_refused(
    tiny_run: Run, periodic_data: TokenData, place: dict[str, Path]
) -> None:
    pretrain(tiny_run(steps=3), periodic_data, **place, execution=untracked(validations=1, keep_checkpoints=True))
    other = tiny_run(steps=4)
    with pytest.raises(ArtifactError, match=f"holds the run {tiny_run(steps=3).id}, this is {other.id}"):
        pretrain(other, periodic_data, **place, execution=QUIET)
    shutil.rmtree(place["folder"])
    with pytest.raises(CheckpointError, match="belongs to the run"):
        pretrain(other, periodic_data, **place, execution=QUIET)


def test_another_data_set_is_refused(
    tiny_run: Run, periodic_data: TokenData, place: dict[str, Path], tmp_path: Path
) -> None:
    spec = periodic_data.manifest.spec.model_copy(update={"split_seed": 5})
    build(spec, tmp_path / "data", workers=1)
    other = TokenData.open(tmp_path / "data" / "manifest.json")
    message = f"the data set is {spec.name}, the run needs {periodic_data.manifest.id}"
    with pytest.raises(ConfigError, match=message):
        pretrain(tiny_run(), other, **place, execution=QUIET)


@pytest.mark.parametrize(
    ("model", "training", "options", "message"),
    [
        ({"vocab_size": 320}, {}, {}, "vocabulary of 300, the model of 320"),
        ({"sequence_length": 8}, {}, {}, "16 tokens, the model is made for 8"),
        ({}, {}, {"micro_batch_sequences": 3}, "8 sequences a batch don't divide into 1 processes × 3"),
    ],
)
def test_what_does_not_fit_is_refused(
    tiny_run: Run,
    periodic_data: TokenData,
    place: dict[str, Path],
    model: dict[str, Any],
    training: dict[str, Any],
    options: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(ConfigError, match=message):
        pretrain(tiny_run(model=model, **training), periodic_data, **place, execution=untracked(**options))


def test_a_launch_whose_processes_do_not_meet_is_refused(
    tiny_run: Run, periodic_data: TokenData, place: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretrain(tiny_run(steps=2), periodic_data, **place, execution=QUIET)  # this process is a group of one from here on
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"2 processes were launched .* accelerate joined 1"):
        pretrain(tiny_run(steps=2), periodic_data, **place, execution=QUIET)


def test_utilisation_stands_in_the_rows_where_the_device_is_known(
    tiny_run: Run, periodic_data: TokenData, place: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = tiny_run(steps=3)
    monkeypatch.setattr(trainer, "device_name", lambda _: "NVIDIA H100 80GB HBM3")
    seen: list[float] = []

    def counted(*, flops_per_token: float, tokens_per_second: float, device: str, **_: object) -> Utilisation:
        assert (flops_per_token, device) == (training_flops(spec.model, 16) / 16, "NVIDIA H100 80GB HBM3")
        seen.append(tokens_per_second)
        return Utilisation(0.41236)

    monkeypatch.setattr(trainer, "utilisation", counted)
    pretrain(spec, periodic_data, **place, execution=QUIET)
    assert [row["mfu"] for row in rows(place["folder"])] == [0.4124] * 3
    assert [row["tokens_per_second"] for row in rows(place["folder"])] == seen


def test_a_checkpoint_that_cannot_be_written_stops_the_run_within_a_step(
    tiny_run: Run, periodic_data: TokenData, place: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(CheckpointError, match=r"step-0000000\d could not be written .*No space left on device"):
        pretrain(tiny_run(), periodic_data, **place, execution=untracked(validations=1, checkpoint_seconds=0))
    assert len(rows(place["checkpoints"])) <= 2


def test_compiled_and_checkpointed_it_ends_like_any_other(
    tiny_run: Run, periodic_data: TokenData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, summaries = tiny_run(steps=5, eps=1e-3), []
    eager = functools.partial(compilation.compile_layers, backend="eager")
    monkeypatch.setattr(compilation, "compile_layers", eager)
    for name, options in (("plain", {}), ("both", {"compile": True, "activation_checkpointing": True})):
        places = {"folder": tmp_path / name, "checkpoints": tmp_path / f"{name}-state"}
        summaries.append(pretrain(spec, periodic_data, **places, execution=untracked(validations=2, **options)))
    plain, both = summaries
    assert both["final_loss"] == pytest.approx(plain["final_loss"], abs=1e-5)
    assert both["validation_loss"] == pytest.approx(plain["validation_loss"], abs=1e-5)
    loaded = safe_open(tmp_path / "both" / "model" / "model.safetensors", framework="pt")
    with loaded as file, safe_open(tmp_path / "plain" / "model" / "model.safetensors", framework="pt") as other:
        assert set(file.keys()) == set(other.keys())


def test_a_folder_with_other_things_in_it_is_left_alone(
    tiny_run: Run, periodic_data: TokenData, place: dict[str, Path]
) -> None:
    mine = place["folder"] / "model" / "own.safetensors"
    for path in (mine, place["folder"] / "thesis.tex"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("years of work")
    with pytest.raises(ArtifactError, match=r"holds 'thesis\.tex'"):
        pretrain(tiny_run(), periodic_data, **place, execution=untracked())
    assert mine.read_text() == "years of work"
