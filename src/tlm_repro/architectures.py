"""The one registry of architectures: their options, their closed-form cost, and where their modules live.

No torch here: the configuration and the cost model read it too. A module is named by its import path and loaded when a
decoder is built. An architecture may bring its own token mixer, its own feed-forward block, or both.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tlm_repro import costs
from tlm_repro.errors import ConfigError
from tlm_repro.options import HopeOptions, TitansOptions
from tlm_repro.spec import ModelSpec, Spec


class NoOptions(Spec):
    """An architecture without options of its own."""


def never(_: Any) -> bool:
    """No options make it so: of states, keys and values are all that is cached."""
    return False


def always(_: Any) -> bool:
    """Whatever the options, it is so: there is a state beside keys and values, or positions turn queries and keys."""
    return True


def keeps_levels(options: HopeOptions) -> bool:
    """Levels that change within the sequence are a state; those that change in training alone aren't."""
    return options.fast_levels > 0


def takes_positions(options: TitansOptions) -> bool:
    """A memory alone reads tokens in order; the attention beside or behind it turns by position."""
    return options.variant != "lmm"


@dataclass(frozen=True)
class Architecture:
    """One entry. Costs are those of one layer; FLOPs, of one forward pass of one sequence of `time` tokens.

    `mixer` and `feed_forward` are built as `Class(config, index)`. A mixer maps (hidden, context, cache) to hidden, a
    feed-forward block (hidden, residual, context, cache): its input, normed, and the residual it came from. The cost of
    the latter takes the layer's width, which is never 0; so do `gradient_sums`, the parameters of a layer whose
    gradients the optimiser adds up over several steps. `stateful` says, of the typed options, whether one of the two
    caches more than attention's keys and values, `rotary` whether the mixer turns queries and keys by position.
    """

    title: str
    mixer_parameters: Callable[[ModelSpec], int]
    mixer_flops: Callable[[ModelSpec, int], int]
    mixer: str = "tlm_repro.models.attention:CausalAttention"
    feed_forward: str = "tlm_repro.models.layers:SwiGLU"
    feed_forward_parameters: Callable[[ModelSpec, int], int] = costs.swiglu_parameters
    feed_forward_flops: Callable[[ModelSpec, int, int], int] = costs.swiglu_flops
    gradient_sums: Callable[[ModelSpec, int], int] = costs.no_sums
    options: type[Spec] = NoOptions
    stateful: Callable[[Any], bool] = never
    rotary: Callable[[Any], bool] = always


ARCHITECTURES: dict[str, Architecture] = {
    "transformer": Architecture(
        title="Transformer",
        mixer_parameters=costs.attention_parameters,
        mixer_flops=costs.attention_flops,
    ),
    "gated_attention": Architecture(
        title="Gated Attention",
        mixer_parameters=costs.gated_attention_parameters,
        mixer_flops=costs.gated_attention_flops,
        mixer="tlm_repro.models.attention:GatedAttention",
    ),
    "titans": Architecture(
        title="Titans",
        mixer_parameters=costs.titans_parameters,
        mixer_flops=costs.titans_flops,
        mixer="tlm_repro.models.titans:mixer",
        options=TitansOptions,
        stateful=always,
        rotary=takes_positions,
    ),
    "hope_attention": Architecture(
        title="Hope-attention",
        mixer_parameters=costs.attention_parameters,
        mixer_flops=costs.attention_flops,
        feed_forward="tlm_repro.models.continuum:ContinuumMemory",
        feed_forward_parameters=costs.continuum_parameters,
        feed_forward_flops=costs.continuum_flops,
        gradient_sums=costs.continuum_sums,
        options=HopeOptions,
        stateful=keeps_levels,
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
