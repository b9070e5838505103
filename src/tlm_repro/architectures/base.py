"""What an architecture declares: title, options, costs of one layer in closed form, and where its modules live.

No torch here: the configuration and the cost model read it too. FLOPs are those of matrix products and convolutions,
two a multiply-add, of one forward pass of one sequence; they are what torch's own counter counts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tlm_repro.architectures.feed_forward import no_sums, swiglu_flops, swiglu_parameters
from tlm_repro.spec.base import Spec
from tlm_repro.spec.run import ModelSpec


def pieces(time: int, length: int) -> list[int]:
    """`time` tokens in pieces of `length`, the last one shorter where they don't divide."""
    whole, rest = divmod(time, length)
    return [length] * whole + ([rest] if rest else [])


class NoOptions(Spec):
    """An architecture without options of its own."""


def never(_: Any) -> bool:
    """No options make it so: of states, keys and values are all that is cached."""
    return False


def always(_: Any) -> bool:
    """Whatever the options, it is so: there is a state beside keys and values, or positions turn queries and keys."""
    return True


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
    feed_forward_parameters: Callable[[ModelSpec, int], int] = swiglu_parameters
    feed_forward_flops: Callable[[ModelSpec, int, int], int] = swiglu_flops
    gradient_sums: Callable[[ModelSpec, int], int] = no_sums
    options: type[Spec] = NoOptions
    stateful: Callable[[Any], bool] = never
    rotary: Callable[[Any], bool] = always
