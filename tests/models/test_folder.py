"""Model folders written and read without transformers, against those of transformers."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import SHIPPED_OPTIONS, small_spec
from transformers import AutoModelForCausalLM

from tlm_repro import models
from tlm_repro.data import tokenizer as tokenizers
from tlm_repro.errors import ArtifactError
from tlm_repro.models.decoder import LanguageModel
from tlm_repro.models.folder import read_decoder, read_tokenizer, write_decoder
from tlm_repro.models.hugging_face.configuration import TLMConfig
from tlm_repro.models.hugging_face.decoder import TLMForCausalLM
from tlm_repro.spec.data import TrainedTokenizer
from tlm_repro.spec.run import ModelSpec

CASES = [pytest.param(architecture, options, id=name) for name, (architecture, options) in SHIPPED_OPTIONS.items()]


def seeded(spec: ModelSpec) -> LanguageModel:
    torch.manual_seed(3)
    return LanguageModel(spec)


def written(folder: Path, spec: ModelSpec) -> LanguageModel:
    folder.mkdir()
    model = seeded(spec)
    write_decoder(model, folder, bos_token_id=0, eos_token_id=1)
    return model


@pytest.mark.parametrize(("architecture", "options"), CASES)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("tokens", [(0, 1), (None, 1), (None, None)])
def test_a_folder_is_what_save_pretrained_writes(
    tmp_path: Path, architecture: str, options: dict, tied: bool, tokens: tuple[int | None, int | None]
) -> None:
    spec = small_spec(architecture, tied_embeddings=tied, mixer=options)
    bos, eos = tokens
    torch.manual_seed(3)
    TLMForCausalLM(TLMConfig.from_spec(spec, bos_token_id=bos, eos_token_id=eos)).save_pretrained(tmp_path / "theirs")
    (tmp_path / "ours").mkdir()
    write_decoder(seeded(spec), tmp_path / "ours", bos_token_id=bos, eos_token_id=eos)
    theirs, ours = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("theirs", "ours")
    )
    assert ours == theirs


@pytest.mark.parametrize(("architecture", "options"), CASES)
@pytest.mark.parametrize("tied", [True, False])
def test_a_folder_is_read_by_the_core_and_by_transformers(
    tmp_path: Path, architecture: str, options: dict, tied: bool
) -> None:
    spec = small_spec(architecture, tied_embeddings=tied, mixer=options)
    model, core = written(tmp_path / "model", spec), read_decoder(tmp_path / "model")
    assert core.spec == spec
    assert not core.training
    assert (core.lm_head.weight is core.model.embed_tokens.weight) is tied
    models.register()
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    for loaded in (core, theirs):
        torch.testing.assert_close(loaded.state_dict(), model.state_dict(), atol=0, rtol=0)
    tokens = torch.randint(61, (2, 20), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.equal(core(tokens).logits, model.eval()(tokens).logits)


def change_config(folder: Path, **values: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def change_weights(folder: Path, name: str, tensor: torch.Tensor | None) -> None:
    weights = load_file(folder / "model.safetensors")
    weights.pop(name)
    save_file(weights if tensor is None else weights | {name: tensor}, folder / "model.safetensors")


NORM = "model.layers.1.input_norm.weight"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: change_config(folder, model_type="llama"), "model_type is 'llama', 'tlm' is expected"),
        (lambda folder: change_config(folder, architecture="perceptron"), "unknown architecture 'perceptron'"),
        (lambda folder: change_config(folder, hidden_size=0), "model_width: Input should be greater than or equal"),
        (lambda folder: (folder / "config.json").unlink(), r"config\.json does not exist"),
        (lambda folder: (folder / "model.safetensors").unlink(), r"model\.safetensors can't be read"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"{}"), r"model\.safetensors can't be read"),
        (lambda folder: change_weights(folder, NORM, None), rf"{NORM} has shape None, \(32,\) is expected"),
        (
            lambda folder: change_weights(folder, NORM, torch.ones(31)),
            rf"{NORM} has shape \(31,\), \(32,\) is expected",
        ),
        (lambda folder: change_weights(folder, NORM, torch.full((32,), torch.nan)), f"{NORM} holds NaN or infinity"),
    ],
)
def test_a_damaged_folder_is_refused(tmp_path: Path, damage, message: str) -> None:
    written(tmp_path / "model", small_spec())
    damage(tmp_path / "model")
    with pytest.raises(ArtifactError, match=message):
        read_decoder(tmp_path / "model")


def test_a_tokenizer_must_fit_the_decoder(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"tokenizer\.json can't be read"):
        read_tokenizer(tmp_path, small_spec())
    tokenizers.train(["some text to learn from"], TrainedTokenizer(vocab_size=300)).save_pretrained(tmp_path)
    tokens = read_tokenizer(tmp_path, small_spec(vocab_size=300)).get_vocab_size()
    with pytest.raises(
        ArtifactError, match=f"tokens up to number {tokens - 1}, the decoder embeds {tokens - 1} tokens"
    ):
        read_tokenizer(tmp_path, small_spec(vocab_size=tokens - 1))


@pytest.mark.parametrize(
    "changes", [{"vocab_size": 10**10}, {"num_hidden_layers": 5_000, "intermediate_sizes": [4096] * 5_000}]
)
def test_a_configuration_promises_no_more_than_is_stored(tmp_path: Path, changes: dict) -> None:
    folder = tmp_path / "model"
    written(folder, small_spec("transformer"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ArtifactError, match=r"config\.json describes a model of [\d,]+ numbers, its weight files hold"):
        read_decoder(folder)
