"""Titans (arXiv 2501.00663): a neural long-term memory, alone or beside attention.

Shapes: d model width, T time, N memory head width, C chunk, P persistent tokens.
"""

from typing import Literal, Self

from pydantic import Field, model_validator

from tlm_repro.architectures.base import Architecture, Options, split_lengths
from tlm_repro.errors import ConfigError
from tlm_repro.spec.run import ModelSpec


class TitansOptions(Options):
    """The neural long-term memory of Titans (arXiv 2501.00663) and its combination with attention. [ours: numbers]"""

    variant: Literal["mag", "lmm", "mac"] = Field(
        default="mag",
        description="Memory as a gate beside sliding-window attention, alone, or as context of attention in segments.",
    )
    memory_head_dim: int = Field(default=64, ge=1, description="Width of a memory head: divides the model width.")
    depth: Literal[1, 2] = Field(default=2, description="Layers of a head's network: 1 linear, 2 with GELU between.")
    expansion: int = Field(default=4, ge=1, description="Hidden width of a head's network ÷ its width.")
    chunk: int = Field(default=64, ge=1, description="Tokens whose gradients are taken at one state of the memory.")
    max_learning_rate: float = Field(
        default=0.01, gt=0, allow_inf_nan=False, description="Bound of a token's inner learning rate θ."
    )
    window: int = Field(default=1024, ge=1, description="mag: tokens that attention sees, the current one included.")
    gate: Literal["silu", "sigmoid"] = Field(
        default="silu", description="mag, mac: what the memory's reads pass before they multiply attention's output."
    )
    persistent: int = Field(default=16, ge=0, description="mag, mac: learned tokens that attention always sees.")
    segment: int = Field(default=512, ge=1, description="mac: tokens of a segment, a multiple of `chunk`.")

    @model_validator(mode="after")
    def _segments_hold_chunks(self) -> Self:
        if self.variant == "mac" and self.segment % self.chunk:
            raise ValueError(
                f"a segment of {self.segment} tokens doesn't hold whole chunks of {self.chunk}: make it a multiple"
            )
        return self


def memory_heads(model_width: int, head_dim: int) -> int:
    """Heads of a memory over the whole model width. Raises ConfigError when it doesn't divide."""
    if model_width % head_dim:
        raise ConfigError(
            f"memory heads of width {head_dim} don't fill a model width of {model_width}: set memory_head_dim to a "
            "divisor of it"
        )
    return model_width // head_dim


CONVOLUTION = 4  # taps of the depthwise convolution over queries, keys and values


class Titans(Architecture):
    title = "Titans"
    options = TitansOptions
    mixer = "tlm_repro.models.titans:build_mixer"

    def mixer_parameters(self, model: ModelSpec) -> int:
        """The memory and its projections, the output map, and what the variant adds."""
        options, width = TitansOptions.of(model), model.model_width
        head, heads = options.memory_head_dim, memory_heads(width, options.memory_head_dim)
        fast = head if options.depth == 1 else 2 * options.expansion * head  # fast weights of all heads ÷ model width
        memory = 3 * width**2 + 3 * width * CONVOLUTION + 3 * heads * (width + 1) + width * fast + 2 * width
        if options.variant == "lmm":
            return memory + 2 * width**2
        attention = 3 * width**2 + options.persistent * width + width
        return memory + attention + width**2 + (width if options.variant == "mac" else 0)

    def mixer_flops(self, model: ModelSpec, time: int) -> int:
        options, width = TitansOptions.of(model), model.model_width
        if options.variant == "lmm":
            return _memory_flops(options, width, time) + 4 * time * width**2
        persistent = 4 * options.persistent * width**2
        if options.variant == "mag":
            opening, blocks = min(time, options.window), -(-max(0, time - options.window) // options.window)
            scores = (options.persistent + opening) ** 2
            scores += blocks * options.window * (options.persistent + 2 * options.window)
            attention = 6 * time * width**2 + persistent + 4 * scores * width
            return _memory_flops(options, width, time) + attention + 2 * time * width**2
        segments = split_lengths(time, options.segment)
        total = sum(_segment_flops(options, width, tokens) for tokens in segments)
        return total - _write_flops(options, width, segments[-1])

    def keeps_state(self, model: ModelSpec) -> bool:  # noqa: ARG002
        """True: the memory."""
        return True

    def uses_positions(self, model: ModelSpec) -> bool:
        """False for a memory alone; the attention beside or behind it rotates by position."""
        return TitansOptions.of(model).variant != "lmm"


def _segment_flops(options: TitansOptions, width: int, time: int) -> int:
    """One segment of `mac`: recall, attention, memory and output map; its last chunk is written for the next one."""
    recall = 2 * time * width * (width + CONVOLUTION) + _read_flops(options, width, time)
    keys = options.persistent + 2 * time
    attention = 10 * time * width**2 + 4 * options.persistent * width**2 + 4 * time * keys * width
    memory = _memory_flops(options, width, time) + _write_flops(options, width, time)
    return recall + attention + memory + 2 * time * width**2


def _memory_flops(options: TitansOptions, width: int, time: int) -> int:
    heads = memory_heads(width, options.memory_head_dim)
    projections = 2 * time * (3 * width * (width + CONVOLUTION) + 3 * heads * width)
    chunks = sum(_chunk_flops(options, width, tokens) for tokens in split_lengths(time, options.chunk))
    return projections + chunks - _write_flops(options, width, time)


def _write_flops(options: TitansOptions, width: int, time: int) -> int:
    """New weights and momentum after the last of the chunks of `time` tokens: nobody reads the sequence's last ones."""
    return 2 * _read_flops(options, width, split_lengths(time, options.chunk)[-1])


def _read_flops(options: TitansOptions, width: int, time: int) -> int:
    """All fast weights of all heads times one vector a token."""
    head = options.memory_head_dim
    return 2 * time * width * (head if options.depth == 1 else 2 * options.expansion * head)


def _chunk_flops(options: TitansOptions, width: int, time: int) -> int:
    """One chunk of all heads: errors, reads in the dual form, new weights and momentum, the rates' products."""
    head, heads = options.memory_head_dim, memory_heads(width, options.memory_head_dim)
    hidden = options.expansion * head
    once = _read_flops(options, width, time)
    errors = once if options.depth == 1 else once + once // 2  # the last layer's error goes back through it
    pairs = 4 * time**2 * (head if options.depth == 1 else head + hidden) * heads
    rates = 2 * time**3 + 2 * time**2
    return errors + 4 * once + pairs + rates * heads
