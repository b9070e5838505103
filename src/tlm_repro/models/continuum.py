"""The continuum memory system of Hope-attention: a chain of SwiGLU levels that change at different rates.

    u_0 = z,   u_j = u_{j−1} + MLP_j(norm_j(u_{j−1})),   output u_k − z

(Nested Learning, arXiv 2512.24695; the residual chain and the widths are ours.) A level either changes in
training alone, by an optimiser step every `update_period` steps, or within the sequence, every so many tokens. The
weights are those of one SwiGLU of the layer's width, 3·D·F, split over the levels.

Shapes: B batch, T time, D model width, F feed-forward width of one level, C tokens of a level's period.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tlm_repro.architectures.hope_attention import HopeOptions, level_widths
from tlm_repro.models.cache import Cache, layer_state
from tlm_repro.models.memory.coefficients import Rates, token_rates
from tlm_repro.models.memory.fast_weights import MemoryState, initial_state, scan
from tlm_repro.models.memory.networks import GatedMLP
from tlm_repro.models.mixer import Block, Context, FeedForward, ResidualProjection
from tlm_repro.models.rows import mix_with_state
from tlm_repro.spec.run import ModelSpec

# The rates of an untrained map [ours]: momentum for each token, and two shares for one period of C tokens, so that
# levels of all periods start the same: the share of the weights that is forgotten, and of the largest step.
MOMENTUM, FORGOTTEN, STEP = 0.9, 0.005, 0.01


@dataclass(frozen=True, slots=True)
class LevelState:
    """memory: the level's weights; last: (B, 1, D), the input of the last token, 0 before the first."""

    memory: MemoryState
    last: Tensor

    @property
    def count(self) -> Tensor:
        return self.memory.count


class Level(Block):
    """W_down(silu(W_gate n) ∘ W_up n), 3·D·F parameters, the same at every token."""

    def __init__(self, model_width: int, width: int, update_period: int = 1) -> None:
        super().__init__()
        self.update_period = update_period
        self.gate = nn.Linear(model_width, width, bias=False)
        self.up = nn.Linear(model_width, width, bias=False)
        self.down = ResidualProjection(width, model_width)

    def forward(self, normed: Tensor, context: Context, cache: Cache | None = None) -> Tensor:  # noqa: ARG002
        """(B, T, D) → (B, T, D)."""
        return self.down(F.silu(self.gate(normed)) * self.up(normed))


class RateMap(Block):
    """η, θ and α of every token, sigmoids of a linear map of its input; θ is at most `max_learning_rate`. 3·D + 3.

    Untrained, it gives every token the rates above.
    """

    def __init__(self, model_width: int, chunk: int, max_learning_rate: float) -> None:
        super().__init__()
        self.chunk, self.max_learning_rate = chunk, max_learning_rate
        self.weight = nn.Parameter(torch.empty(3, model_width))
        self.bias = nn.Parameter(torch.empty(3))
        self.initialise()

    def initialise(self) -> None:
        shares = (MOMENTUM, STEP / self.chunk, FORGOTTEN / self.chunk)
        nn.init.zeros_(self.weight)
        with torch.no_grad():
            self.bias.copy_(torch.tensor([math.log(share / (1 - share)) for share in shares]))

    def forward(self, normed: Tensor, has_past: Tensor) -> Rates:
        """Inputs (B, T, D), and which rows (B,) hold tokens before them: without one, the first step is 0."""
        rates = token_rates(normed, self.weight, self.bias, self.max_learning_rate)
        paired = torch.ones_like(rates.step)
        paired[:, :, 0] = has_past[:, None].to(paired)
        return replace(rates, step=rates.step * paired)


class FastLevel(Level):
    """A level whose weights start each sequence as trained and then change every C tokens, by what they have read.

    At token t the pair (n_{t−1}, n_t) is written: the level learns to predict its next input from the last one. The
    reads of a chunk, query n_t, all use the weights at its start. Objective and rates are ours: the source leaves both
    open.
    """

    data_dependent = True
    keeps_state = True

    def __init__(self, model_width: int, width: int, options: HopeOptions, layer: int, level: int) -> None:
        super().__init__(model_width, width)
        self.chunk = options.periods[level]
        self.layer, self.name = layer, f"continuum_{level}"
        self.rates = RateMap(model_width, self.chunk, cast(float, options.max_learning_rate))

    def forward(self, normed: Tensor, context: Context, cache: Cache | None = None) -> Tensor:
        """(B, T, D) → (B, T, D); with a cache, continues from the weights there and leaves the new ones."""
        return mix_with_state(self.learn, self.initial, normed, context, layer_state(cache, self.layer), self.name)

    def initial(self, normed: Tensor) -> LevelState:
        weights = tuple(part.weight[None] for part in (self.gate, self.up, self.down))
        return LevelState(initial_state(weights, len(normed)), torch.zeros_like(normed[:, :1]))

    def learn(self, normed: Tensor, _: Any, state: LevelState | None, keep: bool) -> tuple[Tensor, LevelState | None]:
        """The level's output (B, T, D) for the next T tokens and, with `keep`, its state after them."""
        state = self.initial(normed) if state is None else state
        before = torch.cat((state.last, normed[:, :-1]), dim=1)
        key, value = before[:, None], normed[:, None]
        rates = self.rates(normed, has_past=state.count > 0)
        reads, memory = scan(
            GatedMLP(), key, value, value, rates, state.memory, chunk=self.chunk, read="chunk", keep=keep
        )
        new = None if memory is None else LevelState(memory, normed[:, -1:])
        return reads[:, 0].to(normed.dtype), new


class ContinuumMemory(FeedForward):
    """The chain, as a feed-forward block. The first norm is the layer's own; the others have no weight.

    A weight there would scale the columns of W_gate and W_up and nothing else, and cost parameters beyond 3·D·F.
    Raises ConfigError when the layer's width holds less than 1 for every level.
    """

    def __init__(self, model: ModelSpec, index: int) -> None:
        super().__init__()
        options = HopeOptions.of(model)
        width, self.eps = model.model_width, model.norm_eps
        parts = level_widths(options, model.intermediate_sizes[index])
        self.levels = nn.ModuleList()
        for level, (part, period) in enumerate(zip(parts, options.periods, strict=True)):
            if options.update == "in_context" and period > 0:
                self.levels.append(FastLevel(width, part, options, index, level))
            else:
                self.levels.append(Level(width, part, update_period=max(period, 1)))

    def forward(self, hidden: Tensor, residual: Tensor, context: Context, cache: Cache | None = None) -> Tensor:
        """`hidden`, the layer's norm of `residual`, and `residual` → what the chain adds to it; (B, T, D) each."""
        added = self.levels[0](hidden, context, cache)
        for level in self.levels[1:]:
            between = residual + added
            added = added + level(F.rms_norm(between, between.shape[-1:], eps=self.eps), context, cache)
        return added
