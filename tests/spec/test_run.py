"""The spec of a run, and the flat keys that the first release wrote for AdamW and the cosine."""

import json
from typing import Any

import pytest
from small_study import study_grid

from tlm_repro.errors import ConfigError
from tlm_repro.spec.learning_rates import Cosine, WarmupStableDecay
from tlm_repro.spec.optimizers import AdamW
from tlm_repro.spec.run import RunSpec, TrainingSpec

FLAT = {
    "steps": 57_220,
    "batch_sequences": 128,
    "sequence_length": 4096,
    "warmup_steps": 572,
    "peak_learning_rate": 4e-4,
    "final_learning_rate_ratio": 0.1,
    "weight_decay": 0.1,
    "beta1": 0.9,
    "beta2": 0.95,
    "eps": 1e-8,
    "clip_norm": 1.0,
    "precision": "bf16",
    "seed": 0,
}
SIZES = {"steps": 57_220, "batch_sequences": 128, "sequence_length": 4096, "precision": "bf16", "seed": 0}


def spec(**keys: Any) -> TrainingSpec:
    return TrainingSpec.from_values(SIZES | keys, "test")


def test_adamw_and_the_cosine_are_hashed_as_in_the_first_release():
    nested = {"learning_rate": Cosine(peak=4e-4).in_whole_steps(57_220), "optimizer": AdamW(kind="adamw")}
    assert spec(**nested).canonical() == FLAT
    assert spec(learning_rate={"kind": "cosine", "peak": 4e-4}).canonical() == FLAT
    assert {key: type(value) for key, value in spec(**nested).canonical().items()} == {
        key: type(value) for key, value in FLAT.items()
    }


def test_flat_keys_of_files_and_command_lines_are_read():
    flat = TrainingSpec.from_json(json.dumps(FLAT))
    assert flat == spec(learning_rate=Cosine(peak=4e-4).in_whole_steps(57_220))
    assert flat.to_json() == json.dumps(FLAT, sort_keys=True, separators=(",", ":"))
    assert TrainingSpec.from_json(flat.to_json()) == flat


def test_a_run_of_the_first_release_keeps_its_id():
    """`--spec`, spec.json and manifests hold specs with flat keys."""
    for run, run_spec in study_grid().runs.items():
        values = run_spec.canonical()
        assert not {"learning_rate", "optimizer"} & values["training"].keys()
        assert RunSpec.from_values(values, "spec.json") == RunSpec.from_json(run_spec.to_json()) == run_spec
        assert RunSpec.from_values(values, "spec.json").id == run


@pytest.mark.parametrize("steps", [1, 3, 80, 57_220, 1_000_003])
def test_the_steps_of_the_warm_up_survive(steps: int):
    for warmup in {0, 1, steps // 3, steps - 1, steps}:
        assert spec(**FLAT | {"steps": steps, "warmup_steps": warmup}).canonical()["warmup_steps"] == warmup


def test_another_kind_is_hashed_with_its_own_keys():
    schedule = WarmupStableDecay(peak=4e-4, decay_ratio=0.1)
    stable = spec(learning_rate=schedule)
    flat = {key for key in FLAT if "learning_rate" not in key and key != "warmup_steps"}
    assert stable.canonical() == {key: FLAT[key] for key in flat} | {
        "learning_rate": {"kind": "wsd", "peak": 4e-4, "warmup_ratio": 0.01, "final_ratio": 0.0, "decay_ratio": 0.1}
    }
    assert TrainingSpec.from_json(stable.to_json()) == stable


def test_flat_keys_complete_a_section_that_lacks_them():
    mixed = spec(learning_rate={"kind": "wsd", "peak": 1e-3}, warmup_ratio=0.25, beta1=0.8)
    assert mixed.learning_rate == WarmupStableDecay(peak=1e-3, warmup_ratio=0.25)
    assert mixed.optimizer == AdamW(kind="adamw", beta1=0.8)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"learning_rate": {"kind": "cosine", "peak": 1e-3}, "peak_learning_rate": 2e-3},
            "test: peak_learning_rate: learning_rate.peak is given too: remove one of them",
        ),
        (
            FLAT | {"steps": 12, "warmup_steps": 13},
            "test: warmup_steps: 13 warm-up steps in a run of 12: lower warmup_steps",
        ),
        (FLAT | {"warmup_steps": "few"}, "test: warmup_steps: whole numbers are expected .*'few'"),
        ({"learning_rate": {"kind": "linear", "peak": 1e-3}}, "test: learning_rate: .*'cosine', 'wsd'"),
        ({"learning_rate": {"kind": "cosine", "peak": 1e-3, "decay_ratio": 0.1}}, "test: learning_rate.*decay_ratio"),
        (
            {"peak_learning_rate": 1e-3, "optimizer": {"kind": "sgd"}},
            "test: optimizer.kind: .*'adamw'",
        ),
        ({"peak_learning_rate": 1e-3, "optimizer": {"beta1": 0.8}}, "test: optimizer.kind"),
    ],
)
def test_what_does_not_fit_is_one_line_with_its_key(keys: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message) as caught:
        spec(**keys)
    assert "\n" not in str(caught.value)
