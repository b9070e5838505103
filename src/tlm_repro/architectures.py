"""The one registry of architectures: their options, their closed-form cost, and where their modules live.

No torch here: the configuration and the cost model read it too. A module is named by its import path and loaded when a
decoder is built. An architecture may bring its own token mixer, its own feed-forward block, or both.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tlm_repro.errors import ConfigError
from tlm_repro.spec import ModelSpec, Spec


class NoOptions(Spec):
    """An architecture without options of its own."""


def swiglu_parameters(model: ModelSpec, width: int) -> int:
    """Gate, up and down maps, no bias: 3·d·width."""
    return 3 * model.model_width * width


def swiglu_flops(model: ModelSpec, width: int, time: int) -> int:
    """Every weight takes part in one multiply-add a token."""
    return 2 * time * swiglu_parameters(model, width)


@dataclass(frozen=True)
class Architecture:
    """One entry. Costs are those of one layer; FLOPs, of one forward pass of one sequence of `time` tokens.

    `mixer` and `feed_forward` are built as `Class(config, index)`. A mixer maps (hidden, context, cache) to hidden, a
    feed-forward block maps hidden to hidden; the cost of the latter takes the layer's width, which is never 0.
    """

    title: str
    mixer_parameters: Callable[[ModelSpec], int]
    mixer_flops: Callable[[ModelSpec, int], int]
    mixer: str = "tlm_repro.models.attention:CausalAttention"
    feed_forward: str = "tlm_repro.models.layers:SwiGLU"
    feed_forward_parameters: Callable[[ModelSpec, int], int] = swiglu_parameters
    feed_forward_flops: Callable[[ModelSpec, int, int], int] = swiglu_flops
    options: type[Spec] = NoOptions


def attention_parameters(model: ModelSpec) -> int:
    """Query, key, value and output projections, no bias: 4·d²."""
    return 4 * model.model_width**2


def attention_flops(model: ModelSpec, time: int) -> int:
    """Four d×d projections and the full T×T scores and mixture, two FLOPs a multiply-add."""
    return 2 * time * attention_parameters(model) + 4 * time * time * model.model_width


def gated_attention_parameters(model: ModelSpec) -> int:
    """Attention and one more d×d map, for the output gate (arXiv 2505.06708, position G1)."""
    return attention_parameters(model) + model.model_width**2


def gated_attention_flops(model: ModelSpec, time: int) -> int:
    return attention_flops(model, time) + 2 * time * model.model_width**2


ARCHITECTURES: dict[str, Architecture] = {
    "transformer": Architecture(
        title="Transformer",
        mixer_parameters=attention_parameters,
        mixer_flops=attention_flops,
    ),
    "gated_attention": Architecture(
        title="Gated Attention",
        mixer_parameters=gated_attention_parameters,
        mixer_flops=gated_attention_flops,
        mixer="tlm_repro.models.attention:GatedAttention",
    ),
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
