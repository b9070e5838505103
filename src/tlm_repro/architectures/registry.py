"""The one registry of architectures. An architecture is one file beside this one and one line below."""

import importlib
from typing import Any

from tlm_repro.architectures import gated_attention, hope_attention, titans, transformer
from tlm_repro.architectures.base import Architecture
from tlm_repro.errors import ConfigError

ARCHITECTURES: dict[str, Architecture] = {
    "transformer": transformer.ARCHITECTURE,
    "gated_attention": gated_attention.ARCHITECTURE,
    "titans": titans.ARCHITECTURE,
    "hope_attention": hope_attention.ARCHITECTURE,
}


def architecture(name: str) -> Architecture:
    """Raises ConfigError, listing the known names, for an unknown one."""
    if name not in ARCHITECTURES:
        raise ConfigError(f"unknown architecture '{name}': choose one of {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]


def load(path: str) -> Any:
    """The object at `module:name`."""
    module, name = path.split(":")
    return getattr(importlib.import_module(module), name)
