"""Writes a trained decoder in the format of another architecture, for servers that read that one.

Most servers know one `intermediate_size` for all layers, so narrower MLPs are padded to the widest with zeros. Padding
adds silu(0)·0 = 0: logits are the same up to rounding, at the cost of a uniform model of the widest width.
"""

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from tlm_repro import models
from tlm_repro.architectures.accounting import forward_flops, parameters
from tlm_repro.architectures.registry import ARCHITECTURES, architecture, load
from tlm_repro.artifacts.files import read_json, staging, write_json
from tlm_repro.artifacts.manifest import versions
from tlm_repro.errors import ArtifactError, ConfigError
from tlm_repro.models.attention import CausalAttention
from tlm_repro.models.feed_forward import SwiGLU
from tlm_repro.models.hugging_face.configuration import TLMConfig
from tlm_repro.models.hugging_face.decoder import TLMForCausalLM
from tlm_repro.models.hugging_face.pretrained import Source, check_source
from tlm_repro.records.manifests import ModelManifest
from tlm_repro.spec.run import ModelSpec

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SHARD = "5GB"  # of one weight file
RECORD = "export.json"
LEAST_WIDTH = 16  # where no layer has an MLP: no server expects a width of 0
TOKENIZER_CONFIG = "tokenizer_config.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)


@dataclass(frozen=True)
class Format:
    """A format: `convert` takes a decoder whose layers have this mixer and this MLP, and a dtype."""

    mixer: type[nn.Module]
    feed_forward: type[nn.Module]
    convert: Callable[[TLMForCausalLM, torch.dtype], PreTrainedModel]

    def expresses(self, name: str) -> bool:
        """Whether architecture `name` has exactly these modules: a subclass computes something else."""
        entry = architecture(name)
        return load(entry.mixer) is self.mixer and load(entry.feed_forward) is self.feed_forward


@dataclass(frozen=True)
class Size:
    """What a decoder takes: weights in bytes, FLOPs of a forward pass over one token of a sequence of full length."""

    parameters: int
    mlp_parameters: int
    weight_bytes: int
    forward_flops_per_token: int


@dataclass(frozen=True)
class Report:
    """What an export did and what it costs: `export.json`. `source` is the run's id or the folder's name."""

    source: str
    format: str
    dtype: str
    tokenizer: bool
    intermediate_sizes: list[int]
    intermediate_size: int
    trained: Size
    exported: Size
    versions: dict[str, str]

    def to_text(self) -> str:
        """A few lines for a terminal."""
        sizes = self.intermediate_sizes
        before, after = self.trained, self.exported
        rows = [
            ("parameters, M", before.parameters, after.parameters),
            ("of these in MLPs, M", before.mlp_parameters, after.mlp_parameters),
            ("weights, MB", before.weight_bytes, after.weight_bytes),
            ("forward MFLOPs a token", before.forward_flops_per_token, after.forward_flops_per_token),
        ]
        lines = [
            f"{self.source} as {self.format}, {self.dtype}: "
            f"{len(sizes)} layers, MLP widths {min(sizes)} to {max(sizes)} filled up to {self.intermediate_size}",
            f"{'':24}{'trained':>12}{'exported':>12}",
        ]
        for name, old, new in rows:
            change = f"{100 * (new / old - 1):+10.1f} %" if old else ""
            lines.append(f"{name:24}{old / 1e6:12,.1f}{new / 1e6:12,.1f}{change}")
        if not self.tokenizer:
            lines.append("no tokenizer: the source has none; add its files before you serve the folder")
        return "\n".join(lines)


def export(source: Path, out: Path, *, format: str = "llama", dtype: str = "fp32") -> Report:
    """Writes the decoder and its tokenizer to the folder `out`, which appears only when it is whole.

    Args:
        source: manifest.json of a trained run, or a Hugging Face folder that this project saved.
        format: a key of FORMATS.
        dtype: of the weights, a key of DTYPES.

    Raises:
        ConfigError: the format or the dtype is unknown, or the format can't express the architecture.
        ArtifactError: the source isn't a whole decoder of this project, or `out` already holds something.
    """
    target, kind, out = _choice("format", format, FORMATS), _choice("dtype", dtype, DTYPES), out.resolve()
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ArtifactError(f"{out} already exists and isn't an empty folder: remove it or name another one")
    folder, name = _located(source)
    config = _configuration(folder)
    if not target.expresses(config.architecture):
        possible = ", ".join(known for known in ARCHITECTURES if target.expresses(known)) or "none"
        raise ConfigError(
            f"format '{format}' can't express architecture '{config.architecture}'; those that it can: {possible}"
        )
    model = _decoder(folder)
    trained = config.to_spec()
    exported = padded(trained)
    with staging(out.parent, out.name) as temporary:
        target.convert(model, kind).save_pretrained(temporary, max_shard_size=SHARD)
        report = Report(
            source=name,
            format=format,
            dtype=dtype,
            tokenizer=copy_tokenizer(folder, temporary),
            intermediate_sizes=list(trained.intermediate_sizes),
            intermediate_size=exported.intermediate_sizes[0],
            trained=size(trained, model.lm_head.weight.dtype),
            exported=size(exported, kind),
            versions=versions(),
        )
        write_json(temporary / RECORD, asdict(report))
    return report


def padded(model: ModelSpec) -> ModelSpec:
    """The same decoder with every MLP as wide as its widest."""
    widest = max(model.intermediate_sizes) or LEAST_WIDTH
    return model.model_copy(update={"intermediate_sizes": (widest,) * model.layers})


def size(model: ModelSpec, dtype: torch.dtype) -> Size:
    """In closed form, from the spec alone."""
    count = parameters(model)
    return Size(
        parameters=count.total,
        mlp_parameters=sum(count.mlp),
        weight_bytes=count.total * dtype.itemsize,
        forward_flops_per_token=forward_flops(model, model.sequence_length) // model.sequence_length,
    )


def copy_tokenizer(source: Path, target: Path) -> bool:
    """Copies the tokenizer's files; returns whether there are any. Two entries of its configuration may change.

    The class name that transformers 5 writes is unknown to transformers 4, which many servers use. And if the tokenizer
    adds no begin-of-text token, the configuration says so, because llama.cpp adds one by default.
    """
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    if not (source / TOKENIZER_CONFIG).is_file():
        return False
    settings = read_json(source / TOKENIZER_CONFIG)
    if settings.get("tokenizer_class") == "TokenizersBackend":
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    if (source / "tokenizer.json").is_file():
        tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
        if tokenizer.encode("a").ids == tokenizer.encode("a", add_special_tokens=False).ids:
            settings.setdefault("add_bos_token", False)
    write_json(target / TOKENIZER_CONFIG, settings)
    return True


def to_llama(model: TLMForCausalLM, dtype: torch.dtype) -> LlamaForCausalLM:
    """A Llama (transformers' own class) with the same logits, its weights in `dtype`."""
    config = llama_config(model.config)
    weights = {
        "model.embed_tokens.weight": model.model.embed_tokens.weight,
        "model.norm.weight": model.model.norm.weight,
    }
    if not config.tie_word_embeddings:
        weights["lm_head.weight"] = model.lm_head.weight
    for index, layer in enumerate(model.model.layers):
        tensors = llama_layer(layer, config)
        weights |= {f"model.layers.{index}.{name}.weight": tensor for name, tensor in tensors.items()}
    weights = {name: tensor.detach().to(dtype) for name, tensor in weights.items()}
    llama = LlamaForCausalLM.from_pretrained(None, config=config, state_dict=weights, dtype=dtype)
    llama.generation_config = model.generation_config
    return llama


def llama_config(config: TLMConfig) -> LlamaConfig:
    """The same shape with the widest MLP in every layer."""
    result = LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=padded(config.to_spec()).intermediate_sizes[0],
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        max_position_embeddings=config.max_position_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        rms_norm_eps=config.rms_norm_eps,
        initializer_range=config.initializer_range,
        tie_word_embeddings=config.tie_word_embeddings,
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
    )
    result.rope_theta = config.rope_theta  # where readers older than transformers 5 look for it
    return result


def llama_layer(layer: Any, config: LlamaConfig) -> dict[str, Tensor]:
    """The weights of one `DecoderLayer` under Llama's names."""
    query, key, value = layer.mixer.qkv.weight.chunk(3)
    heads, width = config.num_attention_heads, config.intermediate_size
    if layer.mlp is None:
        mlp_norm = torch.ones_like(layer.input_norm.weight)
        gate = up = query.new_zeros(0, config.hidden_size)
        down = gate.t()
    else:
        mlp_norm = layer.mlp_norm.weight
        gate, up, down = layer.mlp.gate.weight, layer.mlp.up.weight, layer.mlp.down.weight
    return {
        "input_layernorm": layer.input_norm.weight,
        "self_attn.q_proj": halves(query, heads),
        "self_attn.k_proj": halves(key, heads),
        "self_attn.v_proj": value,
        "self_attn.o_proj": layer.mixer.output.weight,
        "post_attention_layernorm": mlp_norm,
        "mlp.gate_proj": F.pad(gate, (0, 0, 0, width - len(gate))),
        "mlp.up_proj": F.pad(up, (0, 0, 0, width - len(up))),
        "mlp.down_proj": F.pad(down, (0, width - down.shape[1])),
    }


def halves(rows: Tensor, heads: int) -> Tensor:
    """A query or key map (D, D), the rows of each head reordered.

    `rotate` turns channels 2i and 2i + 1 of a head together, Llama channels i and i + E/2.
    """
    return rows.unflatten(0, (heads, -1, 2)).transpose(1, 2).reshape(rows.shape)


FORMATS: dict[str, Format] = {"llama": Format(CausalAttention, SwiGLU, to_llama)}


def _choice(what: str, name: str, known: dict[str, Any]) -> Any:
    if name not in known:
        raise ConfigError(f"unknown {what} '{name}': choose one of {', '.join(known)}")
    return known[name]


def _located(source: Path) -> tuple[Path, str]:
    """The Hugging Face folder that `source` means, and what to call it."""
    if (source / "config.json").is_file():
        return source, source.resolve().name
    if source.is_dir():
        source = source / "manifest.json"
        if not source.is_file():
            raise ArtifactError(
                f"{source.parent} holds neither manifest.json nor config.json: pass the manifest of a trained run or a "
                "Hugging Face folder of this project"
            )
    manifest = ModelManifest.read(source, verify="sha256")
    return manifest.folder / "model", manifest.id


def _configuration(folder: Path) -> TLMConfig:
    kind = read_json(folder / "config.json").get("model_type")
    if kind != TLMConfig.model_type:
        raise ArtifactError(
            f"{folder} holds a model of type '{kind}', one of type '{TLMConfig.model_type}' is expected: pass the "
            "manifest of a trained run, or the model folder beside it"
        )
    return TLMConfig.from_pretrained(folder, trust_remote_code=False)


def _decoder(folder: Path) -> TLMForCausalLM:
    models.register()
    try:
        check_source(Source(str(folder)))
        model, info = TLMForCausalLM.from_pretrained(
            folder, dtype="auto", output_loading_info=True, trust_remote_code=False, use_safetensors=True
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ArtifactError(f"{folder} holds no usable weights ({reason}): train the run again or fetch it") from error
    if info["missing_keys"] or info["unexpected_keys"]:
        name = min((*info["missing_keys"], *info["unexpected_keys"]))
        raise ArtifactError(f"the weights in {folder} don't fit its config.json (see '{name}'): fetch the folder anew")
    return model
