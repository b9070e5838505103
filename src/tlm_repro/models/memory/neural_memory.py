"""The neural long-term memory of Titans (arXiv 2501.00663, Section 3) as one branch of a token mixer.

Shapes as in `mixer`; N memory head width, M memory heads, K taps of the convolutions.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tlm_repro.architectures.titans import CONVOLUTION, TitansOptions, memory_heads
from tlm_repro.models.memory.coefficients import token_rates
from tlm_repro.models.memory.fast_weights import MemoryState, initial_state, recall, scan
from tlm_repro.models.memory.networks import ResidualMLP, Weights
from tlm_repro.models.mixer import Block
from tlm_repro.spec.run import ModelSpec

EPS = 1e-6
# Of an untrained memory [ours]: it fades over a thousand tokens, with short momentum and a tenth of the largest step.
INITIAL_MOMENTUM, INITIAL_STEP, INITIAL_FORGETTING = 0.5, 0.1, 0.001


@dataclass(frozen=True, slots=True)
class BranchState:
    """history: (B, K − 1, 3D), what the convolutions still need; memory: the fast weights."""

    history: Tensor
    memory: MemoryState

    @property
    def count(self) -> Tensor:
        return self.memory.count


class HeadNorm(Block):
    """RMS normalisation of each head's channels, then one learned weight a channel: (B, T, M, N) → (B, T, D)."""

    def __init__(self, model: ModelSpec) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(model.model_width))
        self.eps = model.norm_eps

    def initialise(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, heads: Tensor) -> Tensor:
        return F.rms_norm(heads, heads.shape[-1:], eps=self.eps).flatten(-2) * self.weight


class NeuralMemory(Block):
    """Projections, convolutions, rates and fast weights of one memory, without a gate or an output map.

    q, k and v are linear maps, a depthwise causal convolution and SiLU; q and k have length 1 in each head. η, θ and α
    are sigmoids of a linear map with bias, one each a head; θ is bounded by `max_learning_rate`.
    """

    def __init__(self, model: ModelSpec) -> None:
        super().__init__()
        options = TitansOptions.of(model)
        width, head = model.model_width, options.memory_head_dim
        self.head, self.heads, self.chunk = head, memory_heads(width, head), options.chunk
        self.max_learning_rate = options.max_learning_rate
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.conv = nn.Parameter(torch.empty(3 * width, CONVOLUTION))
        self.rates = nn.Linear(width, 3 * self.heads)
        hidden = options.expansion * head
        shapes = [(head, head)] if options.depth == 1 else [(hidden, head), (head, hidden)]
        self.weights = nn.ParameterList(nn.Parameter(torch.empty(self.heads, *shape)) for shape in shapes)
        self.scale = nn.Parameter(torch.ones(self.heads, head))
        self.norm = HeadNorm(model)

    def initialise(self) -> None:
        """[ours] Convolutions as torch has them; rates as above; fast weights of deviation 1, so that a key of length 1
        gives hidden units of that size and a step θ moves the read at a key by about 2θ of its error.
        """
        nn.init.uniform_(self.conv, -1 / math.sqrt(CONVOLUTION), 1 / math.sqrt(CONVOLUTION))
        for weight in self.weights:
            nn.init.normal_(weight, std=1.0)
        shares = (INITIAL_MOMENTUM, INITIAL_STEP, INITIAL_FORGETTING)
        logits = torch.tensor([math.log(share / (1 - share)) for share in shares])
        with torch.no_grad():
            self.rates.bias.copy_(logits.repeat_interleave(self.heads))
        nn.init.ones_(self.scale)

    def initial(self, hidden: Tensor) -> BranchState:
        batch, _, width = hidden.shape
        history = hidden.new_zeros(batch, CONVOLUTION - 1, 3 * width)
        return BranchState(history, initial_state(tuple(self.weights), batch))

    def forward(self, hidden: Tensor, state: BranchState, keep: bool) -> tuple[Tensor, BranchState | None]:
        """Writes (B, T, D) token by token and reads at each: ((B, T, D), normalised a head; with `keep`, the state)."""
        projected, history = self.projected(hidden, state.history, slice(None))
        query, key, value = projected.chunk(3, dim=2)
        reads, memory = scan(
            ResidualMLP(self.scale, len(self.weights)),
            unit(key).transpose(1, 2),
            value.transpose(1, 2),
            unit(query).transpose(1, 2),
            token_rates(hidden, self.rates.weight, self.rates.bias, self.max_learning_rate),
            state.memory,
            chunk=self.chunk,
            keep=keep,
        )
        new = None if memory is None else BranchState(history, memory)
        return self.norm(reads.transpose(1, 2)).to(hidden.dtype), new

    def retrieve(self, hidden: Tensor, history: Tensor, weights: Weights) -> tuple[Tensor, Tensor]:
        """Reads at queries of (B, T, D), writing nothing: ((B, T, M, N), new history (B, K − 1, D))."""
        query, history = self.projected(hidden, history, slice(hidden.shape[-1]))
        reads = recall(ResidualMLP(self.scale, len(self.weights)), unit(query).transpose(1, 2), weights)
        return reads.transpose(1, 2), history

    def projected(self, hidden: Tensor, history: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        """silu(conv(W x)) for some rows of W, split into heads (B, T, …, N), and the inputs the next call needs."""
        inputs = torch.cat((history, F.linear(hidden, self.qkv.weight[rows])), dim=1)
        convolved = F.conv1d(inputs.mT, self.conv[rows, None], groups=inputs.shape[-1]).mT
        return F.silu(convolved).unflatten(-1, (-1, self.head)), inputs[:, 1 - CONVOLUTION :]


def unit(heads: Tensor) -> Tensor:
    """Vectors of length 1 along the last axis, in fp32 at least."""
    wide = heads.to(torch.promote_types(heads.dtype, torch.float32))
    return wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + EPS)
