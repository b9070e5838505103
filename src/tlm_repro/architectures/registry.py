"""The registry of architectures: a shipped one is one file beside this one and one line below.

`register` adds one of your own.
"""

import importlib
from typing import Any

from tlm_repro.architectures.base import Architecture
from tlm_repro.architectures.gated_attention import GatedAttention
from tlm_repro.architectures.hope_attention import HopeAttention
from tlm_repro.architectures.titans import Titans
from tlm_repro.architectures.transformer import Transformer
from tlm_repro.errors import ConfigError
from tlm_repro.spec.run import ModelSpec

ARCHITECTURES: dict[str, Architecture] = {
    "transformer": Transformer(),
    "gated_attention": GatedAttention(),
    "titans": Titans(),
    "hope_attention": HopeAttention(),
}
SHIPPED = tuple(ARCHITECTURES)  # without those that `register` adds


def register(name: str, entry: Architecture) -> None:
    """Adds an architecture under a name of its own. Raises ConfigError where the name is taken by another class."""
    if name in ARCHITECTURES and type(ARCHITECTURES[name]) is not type(entry):
        raise ConfigError(f"architecture '{name}' is already registered: choose another name for '{entry.title}'")
    ARCHITECTURES[name] = entry


def architecture(name: str) -> Architecture:
    """Raises ConfigError, listing the known names, for an unknown one."""
    if name not in ARCHITECTURES:
        raise ConfigError(f"unknown architecture '{name}': choose one of {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]


def load(path: str) -> Any:
    """The object at `module:name`."""
    module, name = path.split(":")
    return getattr(importlib.import_module(module), name)


def check_model(model: ModelSpec) -> None:
    """Raises ConfigError where the architecture, its options or the sizes of a decoder don't fit together."""
    architecture(model.architecture).options.of(model)
    width, heads, sizes = model.model_width, model.heads, model.intermediate_sizes
    if len(sizes) != model.layers:
        raise ConfigError(
            f"{len(sizes)} MLP widths for {model.layers} layers: give intermediate_sizes one width a layer"
        )
    if any(size < 0 for size in sizes):
        raise ConfigError(f"an MLP width of {min(sizes)}: widths are 0 (no MLP) or more")
    if width % heads:
        raise ConfigError(f"model width {width} isn't a multiple of {heads} heads: change one of the two")
    if model.head_dim % 2:
        raise ConfigError(
            f"heads of width {model.head_dim} ({width} / {heads}): rotary embeddings turn pairs, so it must be even"
        )
