"""A decoder as a folder that transformers loads, written and read without importing transformers.

The files are those that `TLMForCausalLM.save_pretrained` writes, to the byte; a test compares them.
"""

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tlm_repro.architectures.accounting import parameters
from tlm_repro.architectures.registry import check_model
from tlm_repro.artifacts.files import read_json
from tlm_repro.errors import ArtifactError, ConfigError
from tlm_repro.models.decoder import LanguageModel
from tlm_repro.models.stored import check_promise, stored_in
from tlm_repro.spec.run import ModelSpec

REMEDY = "train the run again or fetch it anew"
CONFIG, GENERATION, WEIGHTS = "config.json", "generation_config.json", "model.safetensors"
MODEL_TYPE, CLASS = "tlm", "TLMForCausalLM"
# Fields of `ModelSpec` under the names that transformers' configurations use.
NAMES = {
    "architecture": "architecture",
    "layers": "num_hidden_layers",
    "model_width": "hidden_size",
    "heads": "num_attention_heads",
    "intermediate_sizes": "intermediate_sizes",
    "vocab_size": "vocab_size",
    "sequence_length": "max_position_embeddings",
    "tied_embeddings": "tie_word_embeddings",
    "rope_theta": "rope_theta",
    "norm_eps": "rms_norm_eps",
    "initializer_range": "initializer_range",
    "mixer": "mixer",
}


def write_decoder(model: LanguageModel, folder: Path, *, bos_token_id: int | None, eos_token_id: int | None) -> None:
    """Writes the weights and the configuration to an existing folder."""
    dtype = str(model.lm_head.weight.dtype).removeprefix("torch.")
    version = {"transformers_version": importlib.metadata.version("transformers")}
    config: dict[str, Any] = {NAMES[name]: value for name, value in model.spec.canonical().items()}
    config |= {"model_type": MODEL_TYPE, "architectures": [CLASS], "dtype": dtype, **version}
    config |= {"bos_token_id": bos_token_id, "eos_token_id": eos_token_id, "pad_token_id": None}
    tokens = {"bos_token_id": bos_token_id, "eos_token_id": eos_token_id}
    generation: dict[str, Any] = {name: token for name, token in tokens.items() if token is not None}
    generation |= {"_from_model_config": True, "output_attentions": False, "output_hidden_states": False, **version}
    _write_sorted_json(folder / CONFIG, config)
    _write_sorted_json(folder / GENERATION, generation)
    # A shared tensor once, under its first name.
    weights = {name: parameter.detach().contiguous() for name, parameter in model.named_parameters()}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


# What torch and the decoder initialise modules with, as far as it draws random numbers.
INITIALISERS = (nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_)


class SkippedInitialisation(TorchFunctionMode):
    """In the block, random initialisation changes nothing. On the meta device it would load torch's compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in INITIALISERS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def read_decoder(folder: Path, *, device: str = "cpu") -> LanguageModel:
    """The decoder that `write_decoder` or `save_pretrained` wrote, in float32 and in evaluation mode.

    Raises:
        ArtifactError: a file is missing or damaged, weights don't fit the configuration, or one isn't finite.
    """
    spec = read_spec(folder)
    try:
        check_promise(folder / CONFIG, parameters(spec).total, stored_in([folder / WEIGHTS]).elements)
        weights = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ArtifactError(f"{folder / WEIGHTS} can't be read ({error}): {REMEDY}") from error
    with torch.device("meta"), SkippedInitialisation():
        model = LanguageModel(spec)
    _check_weights(folder, model, weights)
    # Copied: a tensor of a memory-mapped file may be aligned differently, and matrix products round with that.
    copies = {name: tensor.to(device, torch.float32, copy=True) for name, tensor in weights.items()}
    model.load_state_dict(copies, strict=False, assign=True)  # a tied head isn't in the file
    model.tie_head()
    return model.eval()


def read_tokenizer(folder: Path, model: ModelSpec) -> Tokenizer:
    """The tokenizer in a decoder's folder.

    Raises:
        ArtifactError: it is missing or damaged, or has more tokens than the decoder embeds.
    """
    path = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ArtifactError(f"{path} can't be read ({error}): {REMEDY}") from error
    largest = max(tokenizer.get_vocab().values())
    if largest >= model.vocab_size:
        raise ArtifactError(
            f"{path} has tokens up to number {largest}, the decoder embeds {model.vocab_size} tokens: {REMEDY}"
        )
    return tokenizer


def read_spec(folder: Path) -> ModelSpec:
    """What `config.json` says of the decoder. Raises ArtifactError when it is another model's, damaged or missing."""
    config = read_json(folder / CONFIG)
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind != MODEL_TYPE:
        raise ArtifactError(f"{folder / CONFIG}: model_type is '{kind}', '{MODEL_TYPE}' is expected: {REMEDY}")
    try:
        spec = ModelSpec.from_values({name: config[key] for name, key in NAMES.items()}, CONFIG)
        check_model(spec)
    except (KeyError, ConfigError) as error:
        raise ArtifactError(f"{folder / CONFIG} describes no decoder ({error}): {REMEDY}") from error
    return spec


def _check_weights(folder: Path, model: LanguageModel, weights: dict[str, Tensor]) -> None:
    expected = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    if model.spec.tied_embeddings:
        shapes.pop("lm_head.weight", None)
    if shapes != expected:
        name = min(name for name in shapes.keys() | expected.keys() if shapes.get(name) != expected.get(name))
        raise ArtifactError(
            f"{folder / WEIGHTS}: {name} has shape {shapes.get(name)}, {expected.get(name)} is expected: {REMEDY}"
        )
    for name, tensor in weights.items():
        if not tensor.isfinite().all():
            raise ArtifactError(f"{folder / WEIGHTS}: {name} holds NaN or infinity: train the run again")


def _write_sorted_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
