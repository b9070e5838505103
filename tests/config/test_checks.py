from typing import Any

import pytest
from small_study import edited

from tlm_repro.config.loading import parse
from tlm_repro.errors import ConfigError

BAD = [
    ("colour", "red", r"f\.yaml: colour: unknown key .*'red'"),
    ("training/rate", 1e-3, r"training\.rate: unknown key"),
    ("training/learning_rate", 1e-3, r"training\.learning_rate: 0\.001 doesn't fit"),
    ("training/learning_rate", ..., r"training\.learning_rate: this key is missing"),
    ("training/learning_rate/kind", ..., r"training\.learning_rate\.kind: this key is missing"),
    ("training/learning_rate/kind", "linear", r"learning_rate\.kind: unknown kind 'linear'. Known: 'cosine', 'wsd'"),
    ("training/learning_rate/peak", "fast", r"training\.learning_rate\.peak: 'fast' doesn't fit"),
    ("training/learning_rate/peak", True, r"a number is expected, not true or false"),
    ("training/learning_rate/peak", ..., r"training\.learning_rate\.peak: this key is missing"),
    ("training/learning_rate/decay_ratio", 0.1, r"training\.learning_rate\.decay_ratio: unknown key"),
    ("training/optimizer", {"kind": "sgd"}, r"training\.optimizer\.kind: 'sgd' doesn't fit.*'adamw'"),
    ("training/optimizer", {"kind": "adamw", "beta1": 1}, r"training\.optimizer\.beta1: 1 doesn't fit.*less than 1"),
    (
        "training/peak_learning_rate",
        1e-3,
        r"training\.peak_learning_rate: 0\.001 doesn't fit: learning_rate\.peak is",
    ),
    ("training/warmup_steps", 5, r"training\.warmup_steps: unknown key"),
    ("scales/440m-toy/layers", "six", r"scales\.440m-toy\.layers: 'six' doesn't fit"),
    ("scales/440m-toy/layers", 6.5, r"scales\.440m-toy\.layers: 6\.5 doesn't fit.*integer"),
    ("scales/440m-toy/layers", True, r"scales\.440m-toy\.layers: True doesn't fit.*integer"),
    (
        "scales/440m-toy/layers",
        8,
        r"experiments\.motivation: allocation 'wider-early'.*divisible by 3, not 8: use 6 or 9",
    ),
    ("scales/440m-toy/model_width", 50, r"scales\.440m-toy\.model_width: 50 isn't an even multiple of heads = 3"),
    ("scales/440m-toy/mlp_width/transformer", 200, r"mlp_width\.transformer: 200 .*multiple of 16.*192 or 208"),
    ("scales/440m-toy/mlp_width/mamba", 256, r"mlp_width\.mamba: unknown architecture 'mamba'"),
    (
        "scales/440m-toy/batch_tokens",
        2000,
        r"batch_tokens: 2000 isn't a multiple of .*128 × processes 1 = 128\. Use 2048",
    ),
    (
        "scales/440m-toy/hardware",
        {"processes": 3},
        r"batch_tokens: 1024 isn't a multiple of .*processes 3 = 384\. Use 1152",
    ),
    (
        "scales/440m-toy/hardware",
        {"processes": 2, "nodes": 4},
        r"440m-toy\.hardware\.nodes: 4 doesn't fit: 2 processes can't be spread evenly over 4 nodes",
    ),
    ("scales/440m-toy/hardware", {"micro_batch_sequences": 5}, r"micro_batch_sequences: 5 doesn't divide the 8"),
    ("scales/440m-toy/tokens", 500, r"tokens: 500 is less than half a batch of 1024"),
    (
        "scales/760m-toy/mlp_width",
        {"transformer": 256},
        r"no width for 'gated_attention', which experiments\.main trains",
    ),
    ("architectures/transfomer", {}, r"unknown architecture 'transfomer'; did you mean 'transformer'\?"),
    ("architectures/transformer", {"window": 5}, r"architectures\.transformer\.window: unknown key"),
    ("allocations/tapered", {"schedule": "cosin"}, r"allocations\.tapered: .*cosin.*cosine"),
    (
        "allocations/tapered",
        {"schedule": "cosine", "start": 1.5, "end": 0.6},
        r"allocations\.tapered: .*average to 1\.05",
    ),
    ("allocations/tapered", {"schedule": "uniform", "start": 1.5}, r"allocations\.tapered: .*start"),
    ("allocations/wider-late/multipliers", [0.5, 1.0, 1.6], r"allocation 'wider-late' .*average to 1\.03"),
    ("experiments/main/allocations", ["uniform", "taperd"], r"unknown allocation 'taperd'; did you mean 'tapered'\?"),
    ("experiments/main/scales", ["760m"], r"experiments\.main: unknown scale '760m'"),
    ("experiments/main/architectures", ["titan"], r"experiments\.main: unknown architecture 'titan'"),
    (
        "experiments/main/allocations",
        ["tapered", "wider-late"],
        r"main\.allocations: the baseline 'uniform' is missing",
    ),
    (
        "experiments/main/allocations",
        ["uniform", "uniform"],
        r"main\.allocations: 'uniform' is listed twice; remove",
    ),
    ("experiments/allocations/allocations", ["crown", "reverse"], r"allocations\.allocations: the baseline 'uniform'"),
    (
        "experiments/allocations/allocations",
        ["uniform", "crwon"],
        r"allocations\.allocations: unknown allocation 'crwon'; did you mean 'crown'\?",
    ),
    (
        "experiments/allocations/allocations",
        ["uniform", "uniform"],
        r"allocations\.allocations: 'uniform' is listed twice; remove",
    ),
    (
        "experiments/sweep/ratios",
        [[1.5, 0.5], [1.5, 0.5]],
        r"sweep\.ratios: \(1\.5, 0\.5\) is listed twice; remove",
    ),
    (
        "allocations/uniform",
        {"schedule": "cosine"},
        r"allocations\.uniform\.schedule: 'cosine' isn't uniform\. 'uniform' is reserved for the baseline; rename",
    ),
    ("scales/440m-toy/layers", 10**30, r"scales\.440m-toy\.layers: 10+ doesn't fit.*1000"),
    ("novelty/models", [{"name": "x"}], r"novelty\.models\.0: .*give either path, or package and gguf"),
    ("novelty/models", [{"name": " ", "path": "y"}], r"novelty\.models\.0\.name: ' ' doesn't fit"),
    ("experiments/main", None, r"evaluation\.zero_shot: it runs on the models of experiments\.main"),
    ("experiments/sweep/ratios", [[1.5, 0.6]], r"experiments\.sweep: allocation 'cosine-1\.5-0\.6'"),
    ("evaluation/zero_shot/tasks", ["mmlu"], r"evaluation\.zero_shot\.tasks\.0: 'mmlu' doesn't fit"),
    ("data/corpus", {"kind": "web"}, r"data\.corpus\.kind: unknown kind 'web'.*'package', 'files', 'hub'"),
    ("data/validation_fraction", 1.0, r"data\.validation_fraction: 1\.0 doesn't fit.*less than 1"),
    ("seeds", [0, 0], r"seeds: 0 is listed twice; remove"),
    ("seeds", [10**30], r"seeds\.0: 10+ doesn't fit"),
    ("experiments", {}, r"experiments: none is given"),
    ("evaluation/validation/tokens", 1, r"evaluation\.validation\.tokens: 1 is less than one window of 128"),
    ("data/corpus/package", "///", r"data\.corpus\.package: '///' doesn't fit"),
    ("data/tokenizer/vocab_size", 10**9, r"data\.tokenizer\.vocab_size: 1000000000 doesn't fit"),
    ("seeds", [], r"seeds: .*at least 1 item"),
    ("experiments/sweep/seeds", [2, 2], r"experiments\.sweep\.seeds: 2 is listed twice; remove"),
    ("experiments/main/seeds", [], r"experiments\.main\.seeds: .*at least 1 item"),
    ("evaluation/niah/lengths", [512, 512], "evaluation.niah.lengths: 512 is listed twice; remove"),
    (
        "evaluation/niah",
        {"generator": "lm_eval", "samples": 501},
        "evaluation.niah.samples: lm-eval makes 500 samples of a task at a length, not 501",
    ),
]


@pytest.mark.parametrize(("path", "value", "message"), BAD, ids=[f"{path}={value}" for path, value, _ in BAD])
def test_bad_values_stop_with_file_key_value_and_remedy(path: str, value: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        parse(edited(path, value), "f.yaml")


def test_every_problem_is_named_at_once():
    raw = edited("seeds", [1, 1])
    raw["scales"]["440m-toy"]["batch_tokens"] = 2000
    with pytest.raises(ConfigError) as caught:
        parse(raw, "f.yaml")
    assert len(str(caught.value).splitlines()) == 2
