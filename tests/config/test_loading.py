from pathlib import Path
from typing import Any

import pytest
from small_study import edited

from tlm_repro.config.loading import load, parse
from tlm_repro.errors import ConfigError
from tlm_repro.spec.learning_rates import Cosine
from tlm_repro.spec.optimizers import AdamW


def test_unreadable_files_are_explained(tmp_path: Path):
    with pytest.raises(ConfigError, match="can't be read"):
        load(tmp_path / "none.yaml")
    (tmp_path / "twice.yaml").write_text("name: a\nname: b\n")
    with pytest.raises(ConfigError, match="'name' is given twice"):
        load(tmp_path / "twice.yaml")
    (tmp_path / "broken.yaml").write_text("name: [\n")
    with pytest.raises(ConfigError, match="not valid YAML"):
        load(tmp_path / "broken.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(ConfigError, match="the whole file"):
        load(tmp_path / "list.yaml")


def test_numbers_that_yaml_reads_as_text_are_numbers():
    assert parse(edited("training/learning_rate/peak", "3e-3"), "f.yaml").training.learning_rate.peak == 0.003


FLAT = {
    "sequence_length": 128,
    "peak_learning_rate": "3e-3",
    "final_learning_rate_ratio": 0.2,
    "warmup_ratio": 0.1,
    "weight_decay": 0.3,
    "beta1": 0.8,
    "beta2": 0.99,
    "eps": 1e-6,
    "clip_norm": 2.0,
}


def test_the_flat_keys_of_the_first_release_are_read():
    training = parse(edited("training", FLAT), "f.yaml").training
    assert training.learning_rate == Cosine(peak=3e-3, final_ratio=0.2, warmup_ratio=0.1)
    assert training.optimizer == AdamW(kind="adamw", weight_decay=0.3, beta1=0.8, beta2=0.99, eps=1e-6)
    assert training.clip_norm == 2.0
    short = parse(edited("training", {"sequence_length": 128, "peak_learning_rate": 3e-3}), "f.yaml").training
    assert short == parse(edited("training/learning_rate", {"kind": "cosine", "peak": 3e-3}), "f.yaml").training


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("peak_learning_rate", "fast", r"f\.yaml: training\.peak_learning_rate: 'fast' doesn't fit"),
        ("beta1", 1, r"f\.yaml: training\.beta1: 1 doesn't fit.*less than 1"),
        ("colour", "red", r"f\.yaml: training\.colour: unknown key"),
    ],
)
def test_a_mistake_in_a_flat_key_is_named_as_written(key: str, value: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        parse(edited("training", FLAT | {key: value}), "f.yaml")


def test_a_key_path_is_what_the_user_wrote():
    with pytest.raises(ConfigError, match=r"f\.yaml: data\.corpus\.pattern: 5 doesn't fit"):
        parse(edited("data/corpus/pattern", 5), "f.yaml")
