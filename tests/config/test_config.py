import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_study import study

from tlm_repro.config.loading import load, parse
from tlm_repro.config.reference import reference, schema
from tlm_repro.errors import ConfigError
from tlm_repro.spec.learning_rates import Cosine
from tlm_repro.spec.optimizers import AdamW

ROOT = Path(__file__).parents[2]
FILES = [ROOT / "config.yaml", *sorted((ROOT / "config").glob("*.yaml"))]


def changed(path: str, value: Any) -> dict[str, Any]:
    """The tests' own study with one key set, or deleted where `value` is `...`."""
    raw = study()
    *parents, last = path.split("/")
    node: Any = raw
    for key in parents:
        node = node[int(key)] if isinstance(node, list) else node[key]
    if value is ...:
        del node[last]
    else:
        node[last] = value
    return raw


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_shipped_configuration_loads(path: Path):
    assert load(path).name


def test_the_paper_configuration_states_the_paper_s_numbers():
    paper = load(ROOT / "config/paper.yaml")
    assert {name: scale.tokens for name, scale in paper.scales.items()} == {
        "440m": 30_000_000_000,
        "760m": 50_000_000_000,
        "1.3b": 100_000_000_000,
    }
    training = paper.training
    assert (training.learning_rate.kind, training.optimizer.kind) == ("cosine", "adamw")
    assert (training.learning_rate.peak, training.optimizer.weight_decay) == (4e-4, 0.1)
    assert training.sequence_length == 4096
    assert paper.data.tokenizer.vocab_size == 32_000
    sweep = paper.experiments.sweep
    assert sweep is not None
    assert len(sweep.ratios) * len(sweep.schedules) == 15
    assert not paper.toy


def test_every_number_of_the_paper_configuration_names_its_source():
    unmarked = [
        line
        for line in (ROOT / "config/paper.yaml").read_text().split("data:", 1)[1].splitlines()
        if re.search(r":\s*[\[{]?\s*\d[\d_.e-]*\b(?!m|\.3b)", line) and not re.search(r"\[(paper|lineage|ours)\]", line)
    ]
    # The widths of the three groups have their source above them; a repeated batch has it where it stands first.
    assert [line.split(":")[0].strip() for line in unmarked] == [
        "batch_tokens",
        "batch_tokens",
        "wider-early",
        "wider-middle",
        "wider-late",
    ]


def test_generated_files_are_in_step():
    assert (ROOT / "config/README.md").read_text() == reference(), "run `make schema`"
    assert json.loads((ROOT / "workflow/schemas/config.schema.json").read_text()) == schema(), "run `make schema`"


def test_the_schema_accepts_what_ships_and_refuses_an_unknown_key():
    import jsonschema

    validator = jsonschema.Draft202012Validator(schema())
    for path in FILES:
        assert validator.is_valid(json.loads(json.dumps(yaml.safe_load(path.read_text())))), path
    assert not validator.is_valid({**study(), "colour": "red"})


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
    ("scales/440m-toy/model_width", 50, r"scales\.440m-toy\.model_width: 50 must be an even multiple of heads = 3"),
    ("scales/440m-toy/mlp_width/transformer", 200, r"mlp_width\.transformer: 200 .*multiple of 16.*192 or 208"),
    ("scales/440m-toy/mlp_width/mamba", 256, r"mlp_width\.mamba: unknown architecture 'mamba'"),
    (
        "scales/440m-toy/batch_tokens",
        2000,
        r"batch_tokens: 2000 is no multiple of .*128 × processes 1 = 128: take 2048",
    ),
    (
        "scales/440m-toy/hardware",
        {"processes": 3},
        r"batch_tokens: 1024 is no multiple of .*processes 3 = 384: take 1152",
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
    ("evaluation/niah/lengths", [512, 512], "evaluation.niah.lengths: 512 stands twice"),
    (
        "evaluation/niah",
        {"generator": "lm_eval", "samples": 501},
        "evaluation.niah.samples: lm-eval makes 500 samples of a task at a length, not 501",
    ),
]


@pytest.mark.parametrize(("path", "value", "message"), BAD, ids=[f"{path}={value}" for path, value, _ in BAD])
def test_bad_values_stop_with_file_key_value_and_remedy(path: str, value: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        parse(changed(path, value), "f.yaml")


def test_every_problem_is_named_at_once():
    raw = changed("seeds", [1, 1])
    raw["scales"]["440m-toy"]["batch_tokens"] = 2000
    with pytest.raises(ConfigError) as caught:
        parse(raw, "f.yaml")
    assert len(str(caught.value).splitlines()) == 2


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
    assert parse(changed("training/learning_rate/peak", "3e-3"), "f.yaml").training.learning_rate.peak == 0.003


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
    training = parse(changed("training", FLAT), "f.yaml").training
    assert training.learning_rate == Cosine(peak=3e-3, final_ratio=0.2, warmup_ratio=0.1)
    assert training.optimizer == AdamW(kind="adamw", weight_decay=0.3, beta1=0.8, beta2=0.99, eps=1e-6)
    assert training.clip_norm == 2.0
    short = parse(changed("training", {"sequence_length": 128, "peak_learning_rate": 3e-3}), "f.yaml").training
    assert short == parse(changed("training/learning_rate", {"kind": "cosine", "peak": 3e-3}), "f.yaml").training


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
        parse(changed("training", FLAT | {key: value}), "f.yaml")


def test_a_key_path_is_what_the_user_wrote():
    with pytest.raises(ConfigError, match=r"f\.yaml: data\.corpus\.pattern: 5 doesn't fit"):
        parse(changed("data/corpus/pattern", 5), "f.yaml")
