"""A finished run's evaluation file, end to end from the files of both stages."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from manifests import model_summary, write_manifest

from tlm_repro.artifacts.files import write_json
from tlm_repro.data.shards import TokenData
from tlm_repro.data.tokenisation import build
from tlm_repro.errors import ArtifactError, ConfigError, EvaluationError
from tlm_repro.evaluation.subject import find_subject
from tlm_repro.evaluation.suites import Inputs, evaluate, suite_spec
from tlm_repro.models.hugging_face.configuration import TLMConfig
from tlm_repro.models.hugging_face.decoder import TLMForCausalLM
from tlm_repro.spec.base import Spec
from tlm_repro.spec.data import DataSpec, FilesCorpus, TrainedTokenizer
from tlm_repro.spec.evaluation import ValidationSpec, ZeroShotSpec
from tlm_repro.spec.learning_rates import Cosine
from tlm_repro.spec.run import ModelSpec, RunLabels, RunSpec, TrainingSpec

LENGTH = 32


@pytest.fixture(scope="module")
def evaluation_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(20):
        lines = [f"In year {year} of reign {number} the harvest was brought in early." for year in range(30)]
        (folder / f"{number}.txt").write_text("\n".join(lines), encoding="utf-8")
    return build_data(folder, validation_fraction=0.3)


def build_data(folder: Path, *, validation_fraction: float) -> Path:
    spec = DataSpec(
        corpus=FilesCorpus(paths=(str(folder / "*.txt"),), format="text"),
        tokenizer=TrainedTokenizer(vocab_size=300),
        validation_fraction=validation_fraction,
        shard_tokens=1024,
    )
    product = folder / "data" / spec.name
    build(spec, product, workers=1)
    return product / "manifest.json"


@pytest.fixture(scope="module")
def evaluation_run(evaluation_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The manifest of an untrained run, and its model in memory."""
    data = TokenData.open(evaluation_data)
    model_spec = ModelSpec(
        architecture="transformer",
        layers=3,
        model_width=32,
        heads=2,
        intermediate_sizes=(64, 48, 32),
        vocab_size=300,
        sequence_length=LENGTH,
        tied_embeddings=False,
        rope_theta=10000.0,
        norm_eps=1e-5,
        initializer_range=0.2,
    )
    training = TrainingSpec(
        steps=5,
        batch_sequences=4,
        sequence_length=LENGTH,
        learning_rate=Cosine(peak=1e-3, warmup_ratio=0.2),
        seed=7,
    )
    labels = RunLabels(architecture="transformer", scale="tiny", allocation="linear-1.25-0.75", seed=7)
    spec = RunSpec(labels=labels, model=model_spec, data=data.manifest.spec, training=training)
    torch.manual_seed(0)
    model = TLMForCausalLM(TLMConfig.from_spec(model_spec)).eval()
    folder = tmp_path_factory.mktemp("models") / spec.id
    model.save_pretrained(folder / "model")
    data.tokenizer().save_pretrained(folder / "model")
    write_json(folder / "spec.json", spec.canonical())
    (folder / "metrics.jsonl").write_text('{"step": 1, "tokens": 64, "loss": 5.5, "validation_loss": 5.25}\n')
    files = [path for path in folder.rglob("*") if path.is_file()]
    manifest = write_manifest(
        folder,
        kind="model",
        id=spec.id,
        spec=spec.canonical(),
        summary=model_summary(spec),
        files=files,
        device="cpu",
        wall_time_s=4,
    )
    return manifest, model


def content(spec: Spec, manifest: Path, data: Path, batch_size: int) -> dict[str, Any]:
    """What the evaluation writes to a file."""
    inputs = Inputs(data=data, batch_size=batch_size, device="cpu")
    return evaluate(spec, model=str(manifest), inputs=inputs).content()


def test_validation_file(evaluation_data: Path, evaluation_run: tuple[Path, Any]) -> None:
    manifest, model = evaluation_run
    spec = ValidationSpec(tokens=10 * LENGTH, sequence_length=LENGTH)
    result = evaluate(
        spec, model=str(manifest), inputs=Inputs(data=evaluation_data, batch_size=4, device="cpu")
    ).content()
    stream = TokenData.open(evaluation_data).validation
    ids = torch.from_numpy(stream.window(0, 10 * LENGTH + 1))
    rows = torch.stack([ids[start : start + LENGTH + 1] for start in range(0, 10 * LENGTH, LENGTH)])
    with torch.no_grad():
        log_probabilities = model(rows[:, :-1]).logits.double().log_softmax(-1)
    expected = -log_probabilities.gather(-1, rows[:, 1:, None]).mean().item()
    assert result["metrics"]["val_loss"]["value"] == pytest.approx(expected, rel=1e-5)
    assert result["metrics"]["val_ppl"]["value"] == pytest.approx(math.exp(expected), rel=1e-4)
    assert result["metrics"]["val_loss"]["items"] == 10 * LENGTH
    curve = {"step": [1], "tokens": [64], "loss": [5.5], "validation": {"tokens": [64], "loss": [5.25]}}
    blocks = result["details"].pop("blocks")
    training = {"device": "cpu", "wall_time_s": 4, "device_seconds": 8.0}
    assert result["details"] == {"windows": 10, "batch_size": 4, "curve": curve, "training": training}
    each = -log_probabilities.gather(-1, rows[:, 1:, None]).mean(dim=(1, 2))
    assert blocks.pop("loss") == pytest.approx(each.tolist(), rel=1e-5)
    assert blocks == {"data": evaluation_data.parent.name, "sequence_length": LENGTH, "windows": [1] * 10}


def test_file_describes_run_and_model(evaluation_data: Path, evaluation_run: tuple[Path, Any]) -> None:
    manifest, model = evaluation_run
    spec = ValidationSpec(tokens=LENGTH, sequence_length=LENGTH)
    result = evaluate(
        spec, model=str(manifest), inputs=Inputs(data=evaluation_data, batch_size=4, device="cpu")
    ).content()
    assert set(result) == {
        *("schema", "kind", "suite", "run", "model", "spec", "metrics"),
        *("details", "versions", "device", "wall_time_s"),
    }
    assert (result["schema"], result["kind"], result["suite"], result["device"]) == (
        1,
        "evaluation",
        "validation",
        "cpu",
    )
    assert result["run"] == {
        "id": manifest.parent.name,
        "architecture": "transformer",
        "scale": "tiny",
        "allocation": "linear-1.25-0.75",
        "seed": 7,
    }
    facts = result["model"]
    assert facts["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert facts["tokens"] == 5 * 4 * LENGTH
    assert facts["training_flops"] == 3 * 5 * 4 * facts["forward_flops"]
    assert (facts["layers"], facts["model_width"], facts["intermediate_sizes"]) == (3, 32, [64, 48, 32])
    assert result["spec"] == spec.canonical()
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_zero_shot_file(evaluation_data: Path, evaluation_run: tuple[Path, Any]) -> None:
    manifest, _ = evaluation_run
    spec = ZeroShotSpec(source="demo", tasks=("wikitext", "boolq"), max_length=LENGTH, limit=3)
    result = evaluate(
        spec, model=str(manifest), inputs=Inputs(data=evaluation_data, batch_size=8, device="cpu")
    ).content()
    assert {name: metric["items"] for name, metric in result["metrics"].items()} == {"wikitext_ppl": 3, "boolq": 3}
    assert result["details"]["task_versions"] == {"wikitext": 2.0, "boolq": 2.0}
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_scores_do_not_depend_on_the_batch_size(evaluation_data: Path, evaluation_run: tuple[Path, Any]) -> None:
    manifest, _ = evaluation_run
    spec = ValidationSpec(sequence_length=LENGTH)
    one, many = (
        evaluate(
            spec, model=str(manifest), inputs=Inputs(data=evaluation_data, batch_size=size, device="cpu")
        ).content()["metrics"]
        for size in (1, 64)
    )
    assert one["val_loss"]["value"] == pytest.approx(many["val_loss"]["value"], rel=1e-6)
    assert one["val_loss"]["items"] == many["val_loss"]["items"]


def test_a_run_is_named_by_its_manifest_or_its_folder(evaluation_run: tuple[Path, Any]) -> None:
    manifest, _ = evaluation_run
    one, other = find_subject(str(manifest)), find_subject(str(manifest.parent))
    assert one.block == other.block
    assert one.block["run"]["id"] == manifest.parent.name
    assert one.identity == other.identity


def test_another_data_set_is_refused(evaluation_run: tuple[Path, Any], evaluation_data: Path, tmp_path: Path) -> None:
    manifest, _ = evaluation_run
    for number in range(10):
        (tmp_path / f"{number}.txt").write_text(f"Quite another text, number {number}.\n" * 9, encoding="utf-8")
    other = build_data(tmp_path, validation_fraction=0.5)
    spec = ValidationSpec(sequence_length=LENGTH)
    with pytest.raises(EvaluationError, match=evaluation_data.parent.name):
        evaluate(spec, model=str(manifest), inputs=Inputs(data=other, batch_size=1))
    with pytest.raises(ArtifactError, match="model product"):
        evaluate(spec, model=str(evaluation_data), inputs=Inputs(data=other, batch_size=1))


@pytest.mark.parametrize(
    "spec", [ValidationSpec(sequence_length=8), ZeroShotSpec(source="hub", tasks=("piqa",), max_length=8)]
)
def test_spec_text_gives_its_suite_back(spec: Any) -> None:
    assert suite_spec(spec.to_json()) == spec


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"suite": "needle"}', '{"suite": ["validation"]}'])
def test_text_without_a_suite_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="validation or zero_shot or niah"):
        suite_spec(text)


def test_wrong_value_is_named() -> None:
    with pytest.raises(ConfigError, match=r"sequence_length.*0"):
        suite_spec('{"suite": "validation", "sequence_length": 0}')
