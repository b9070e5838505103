"""Titans (arXiv 2501.00663): a neural long-term memory as token mixer, alone (LMM), as a gate beside sliding-window
attention (MAG), or as context of attention within segments (MAC).

Shapes as in `mixer`; N memory head width, M memory heads, K kernel, P persistent tokens, W window.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tlm_repro.architectures.titans import CONVOLUTION, TitansOptions
from tlm_repro.models.cache import Cache, layer_state
from tlm_repro.models.memory.fast_weights import Weights, piece_lengths, restart_finished
from tlm_repro.models.memory.neural_memory import BranchState, NeuralMemory
from tlm_repro.models.mixer import Block, Context, Mixer, ResidualProjection
from tlm_repro.models.rotary import rotate
from tlm_repro.models.rows import State, mix_with_state
from tlm_repro.models.window import Pair, Window, band, banded_attention, repeat_over_batch, seen_attention
from tlm_repro.spec.run import ModelSpec

GATES: dict[str, Callable[[Tensor], Tensor]] = {"silu": F.silu, "sigmoid": torch.sigmoid}


class Titans(Mixer):
    """What the three variants share: a memory, a state in the cache, an output map."""

    data_dependent = True
    keeps_state = True

    def __init__(self, model: ModelSpec, index: int) -> None:
        super().__init__()
        self.index = index
        self.memory = NeuralMemory(model)
        self.output = ResidualProjection(model.model_width, model.model_width)

    def forward(self, hidden: Tensor, context: Context, cache: Cache | None = None) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        states = layer_state(cache, self.index)
        mixed = mix_with_state(self.mix, self.initial, hidden, context, states, "titans")
        if states is not None:
            states.advance(hidden.shape[1])
        return self.output(mixed)

    @abstractmethod
    def initial(self, hidden: Tensor) -> State:
        """The state before the first token, for the batch and the type of `hidden` (B, T, D)."""

    @abstractmethod
    def mix(self, hidden: Tensor, rotary: Tensor, state: Any, keep: bool) -> tuple[Tensor, Any]:
        """The `mix` of `rows.mix_with_state`; its output (B, T, D) is that before the output map."""


class MemoryAlone(Titans):
    """LMM: the memory is the mixer; its reads are normalised, gated by silu(W x) and projected."""

    def __init__(self, model: ModelSpec, index: int) -> None:
        super().__init__(model, index)
        self.gate = nn.Linear(model.model_width, model.model_width, bias=False)

    def initial(self, hidden: Tensor) -> BranchState:
        return self.memory.initial(hidden)

    def mix(self, hidden: Tensor, _: Tensor, state: BranchState | None, keep: bool) -> tuple[Tensor, Any]:
        reads, state = self.memory(hidden, state or self.initial(hidden), keep)
        return reads * F.silu(self.gate(hidden)), state


class Attention(Block):
    """Projections of softmax attention with rotary positions, and persistent tokens: learned inputs that all see."""

    def __init__(self, model: ModelSpec) -> None:
        super().__init__()
        self.heads, self.head_dim = model.heads, model.head_dim
        self.qkv = nn.Linear(model.model_width, 3 * model.model_width, bias=False)
        self.persistent = nn.Parameter(torch.empty(TitansOptions.of(model).persistent, model.model_width))
        self.norm = nn.RMSNorm(model.model_width, eps=model.norm_eps)
        self.deviation = model.initializer_range

    def initialise(self) -> None:
        """[ours] Near 0: at first they take a share of the attention and return nothing, as a sink does."""
        nn.init.normal_(self.persistent, std=self.deviation)

    def projected(self, hidden: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, (B, H, T, E) each; positions turn the first two."""
        width = hidden.shape[-1]
        qk, value = self.qkv(hidden).split((2 * width, width), dim=-1)
        query, key = rotate(self.split(qk), rotary).transpose(1, 2).chunk(2, dim=1)
        return query, key, self.split(value).transpose(1, 2)

    def pair(self, hidden: Tensor, rotary: Tensor | None) -> Pair:
        """Keys and values alone, (…, H, T, E); keys without positions where `rotary` is None."""
        width = hidden.shape[-1]
        key, value = F.linear(hidden, self.qkv.weight[width:]).split(width, dim=-1)
        keys = self.split(key) if rotary is None else rotate(self.split(key), rotary)
        return keys.transpose(-3, -2), self.split(value).transpose(-3, -2)

    def split(self, hidden: Tensor) -> Tensor:
        return hidden.unflatten(-1, (-1, self.head_dim))

    def empty_window(self, hidden: Tensor, places: int) -> Window:
        """A window with no token in it, for the batch and the type of `hidden`."""
        return Window.empty(hidden.new_empty(len(hidden), self.heads, 0, self.head_dim), places)

    def merged(self, heads: Tensor) -> Tensor:
        return heads.transpose(1, 2).flatten(2)

    def normed(self, mixed: Tensor) -> Tensor:
        """In fp32 at least, in which the norm's weight is kept."""
        return self.norm(mixed.to(torch.promote_types(mixed.dtype, torch.float32))).to(mixed.dtype)


@dataclass(frozen=True, slots=True)
class GateState:
    branch: BranchState
    window: Window

    @property
    def count(self) -> Tensor:
        return self.branch.count


class MemoryAsGate(Titans):
    """MAG: sliding-window attention over persistent tokens and x, gated by the memory's reads of the same x.

    The paper normalises both branches with learned vectors, applies a non-linearity and multiplies; here the memory's
    alone takes it. Persistent tokens aren't written into the memory, whose trained first state does as much. [ours]
    """

    def __init__(self, model: ModelSpec, index: int) -> None:
        super().__init__(model, index)
        self.attention = Attention(model)
        options = TitansOptions.of(model)
        self.window, self.activation = options.window, GATES[options.gate]

    def initial(self, hidden: Tensor) -> GateState:
        return GateState(self.memory.initial(hidden), self.attention.empty_window(hidden, self.window - 1))

    def mix(self, hidden: Tensor, rotary: Tensor, state: GateState | None, keep: bool) -> tuple[Tensor, Any]:
        query, key, value = self.attention.projected(hidden, rotary)
        persistent = self.attention.pair(self.attention.persistent, None)
        if state is None:
            heads = banded_attention(query, key, value, persistent, self.window)
            state = self.initial(hidden)
        else:
            heads = self.attend(query, key, value, persistent, state.window)
        reads, branch = self.memory(hidden, state.branch, keep)
        mixed = self.attention.normed(self.attention.merged(heads)) * self.activation(reads)
        return mixed, GateState(branch, state.window.appended(key, value, self.window - 1)) if keep else None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, persistent: Pair, past: Window) -> Tensor:
        """As `banded_attention`, after the tokens of `past`."""
        batch, _, time, _ = query.shape
        places = past.taken.shape[1]
        taken = F.pad(past.taken, (0, time), value=True)[:, None] & band(time, places + time, self.window, query.device)
        seen = F.pad(taken, (len(self.attention.persistent), 0), value=True)
        fixed = repeat_over_batch(persistent, batch)
        return seen_attention(query, [fixed, (past.keys, past.values), (key, value)], seen)


@dataclass(frozen=True, slots=True)
class SegmentState:
    """The memory, and of the segment under way: the memory at its start, retrieved and own keys and values."""

    branch: BranchState
    queries: Tensor  # history (B, K − 1, D) of the convolution that makes queries of x
    start: Weights
    retrieved: Window
    own: Window

    @property
    def count(self) -> Tensor:
        return self.branch.count


class MemoryAsContext(Titans):
    """MAC: within a segment, attention over persistent tokens, what the memory recalls for each token, and the tokens.

    Recall is from the memory as it was at the segment's start; attention's output is then written into the memory and
    gated by reading it there. Everything is causal within the segment too: token t sees recalls up to its own. [ours]
    """

    def __init__(self, model: ModelSpec, index: int) -> None:
        super().__init__(model, index)
        self.attention = Attention(model)
        self.recall_norm = nn.RMSNorm(model.model_width, eps=model.norm_eps)
        options = TitansOptions.of(model)
        self.segment, self.activation = options.segment, GATES[options.gate]

    def initial(self, hidden: Tensor) -> SegmentState:
        branch = self.memory.initial(hidden)
        queries = hidden.new_zeros(len(hidden), CONVOLUTION - 1, hidden.shape[-1])
        empty = self.attention.empty_window(hidden, self.segment - 1)
        return SegmentState(branch, queries, branch.memory.weights, empty, empty)

    def mix(self, hidden: Tensor, rotary: Tensor, state: SegmentState | None, keep: bool) -> tuple[Tensor, Any]:
        state = state or self.initial(hidden)
        lengths = piece_lengths(state.count, hidden.shape[1], self.segment)
        parts = list(zip(hidden.split(lengths, dim=1), rotary.split(lengths, dim=1), strict=True))
        mixed: list[Tensor] = []
        while state is not None and len(mixed) < len(parts):
            last = len(mixed) + 1 == len(parts)
            output, state = self.within(*parts[len(mixed)], self.opened(state), keep or not last)
            mixed.append(output)
        return torch.cat(mixed, dim=1), state

    def opened(self, state: SegmentState) -> SegmentState:
        """Rows at the end of a segment begin the next one."""
        rows = state.count % self.segment == 0
        start = restart_finished(state.start, state.branch.memory.weights, rows)
        return replace(state, start=start, retrieved=state.retrieved.cleared(rows), own=state.own.cleared(rows))

    def within(
        self, hidden: Tensor, rotary: Tensor, state: SegmentState, keep: bool
    ) -> tuple[Tensor, SegmentState | None]:
        """Tokens of one segment, and with `keep` what the next ones need."""
        batch, time, _ = hidden.shape
        recalled, queries = self.memory.retrieve(hidden, state.queries, state.start)
        query, key, value = self.attention.projected(hidden, rotary)
        context = self.attention.pair(self.recall_norm(recalled.flatten(2)).to(hidden.dtype), rotary)
        fixed = repeat_over_batch(self.attention.pair(self.attention.persistent, None), batch)
        past = [(window.keys, window.values) for window in (state.retrieved, state.own)]
        pairs = [fixed, past[0], context, past[1], (key, value)]
        causal = band(time, time, time, hidden.device).expand(batch, -1, -1)
        taken = torch.cat((state.own.taken[:, None].expand(-1, time, -1), causal), dim=-1)
        seen = F.pad(torch.cat((taken, taken), dim=-1), (len(self.attention.persistent), 0), value=True)
        heads = self.attention.merged(seen_attention(query, pairs, seen))
        reads, branch = self.memory(heads, state.branch, keep)
        mixed = self.attention.normed(heads) * self.activation(reads)
        if branch is None:
            return mixed, None
        retrieved, own = (
            window.appended(*pair, self.segment - 1)
            for window, pair in ((state.retrieved, context), (state.own, (key, value)))
        )
        return mixed, SegmentState(branch, queries, state.start, retrieved, own)


VARIANTS: dict[str, Callable[[ModelSpec, int], Titans]] = {
    "lmm": MemoryAlone,
    "mag": MemoryAsGate,
    "mac": MemoryAsContext,
}


def build_mixer(model: ModelSpec, index: int) -> Titans:
    """The variant that the options name."""
    return VARIANTS[TitansOptions.of(model).variant](model, index)
