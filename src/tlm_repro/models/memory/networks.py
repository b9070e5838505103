"""Networks that can serve as a memory: how one is read, and what a token writes into it.

The engine that turns writes into weights is `fast_weights`. Shapes: R rows (batch × heads), C chunk, N memory head
width, e expansion. Weights stand as (…, out, in).
"""

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from tlm_repro.errors import ConfigError

# Added to the mean square of what a memory's norm divides. With a small one the norm would undo all forgetting, which
# shrinks the weights and not their direction, while steps grew as the weights shrank: at 4,096 tokens the gradient of
# an untrained memory then passes 1e18. With 1 a forgotten memory returns its key alone and a step stays a step. [ours]
FLOOR = 1.0
Weights = tuple[Tensor, ...]
Apply = Callable[[int, Tensor], Tensor]  # (which weight, inputs (R, C, in)) → outputs (R, C, out)
Write = tuple[Tensor, Tensor]  # inputs (R, C, in) and errors (R, C, out): the gradient at a token is error ⊗ input


class Memory(Protocol):
    """A network with fast weights: how it's read, and what each token writes."""

    def expand(self, rows: int) -> "Memory":
        """The same memory for R rows: what it holds one a head is repeated over the batch."""

    def read(self, apply: Apply, queries: Tensor) -> Tensor:
        """(R, C, N) → (R, C, N), every weight used through `apply`."""

    def writes(self, weights: Weights, keys: Tensor, values: Tensor) -> list[Write]:
        """The gradient of ℓ by each weight, in the form of `Write`; keys and values (R, C, N)."""


class ResidualMLP:
    """M(k) = k + γ ∘ rms(W₂ gelu(W₁ k)), or k + γ ∘ rms(W₁ k) at depth 1. W₁ (eN, N), W₂ (N, eN).

    The norm bounds what a read can return, however large the weights grow; it and the residual are those of TTT
    (arXiv 2407.04620). γ (H, N) is learned outside and doesn't change in the sequence.
    """

    def __init__(self, scale: Tensor, depth: int) -> None:
        if depth not in (1, 2):
            raise ConfigError(f"a memory of depth {depth}: 1 (linear) or 2 (one hidden layer) was expected")
        self.scale, self.depth = scale, depth

    def expand(self, rows: int) -> "ResidualMLP":
        heads, width = self.scale.shape
        scale = self.scale.expand(rows // heads, heads, width).reshape(rows, 1, width)
        return ResidualMLP(scale, self.depth)

    def read(self, apply: Apply, queries: Tensor) -> Tensor:
        output = apply(0, queries)
        if self.depth == 2:
            output = apply(1, F.gelu(output))
        return queries + self.scale * Rms(output).normed

    def writes(self, weights: Weights, keys: Tensor, values: Tensor) -> list[Write]:
        first = keys @ weights[0].mT
        if self.depth == 1:
            return [(keys, self.output_error(first, keys, values))]
        hidden, slope = gelu_and_slope(first)
        error = self.output_error(hidden @ weights[1].mT, keys, values)
        return [(keys, (error @ weights[1]) * slope), (hidden, error)]

    def output_error(self, output: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """∂ℓ/∂output."""
        norm = Rms(output)
        return norm.pull(2 * self.scale * (keys + self.scale * norm.normed - values))


class GatedMLP:
    """A SwiGLU network, W_down(silu(W_gate x) ∘ W_up x), weights in the order gate, up, down.

    A read returns the network's output as it is; what it learns to predict is compared after normalisation,
    ℓ = ‖rms(output) − v‖², so that gradients stay bounded.
    """

    def expand(self, rows: int) -> "GatedMLP":  # noqa: ARG002 - nothing of it is one a head
        return self

    def read(self, apply: Apply, queries: Tensor) -> Tensor:
        return apply(2, F.silu(apply(0, queries)) * apply(1, queries))

    def writes(self, weights: Weights, keys: Tensor, values: Tensor) -> list[Write]:
        gate, up = keys @ weights[0].mT, keys @ weights[1].mT
        share = torch.sigmoid(gate)
        opened = gate * share
        hidden = opened * up
        norm = Rms(hidden @ weights[2].mT)
        error = norm.pull(2 * (norm.normed - values))
        back = error @ weights[2]
        return [
            (keys, back * up * share * (1 + gate - opened)),
            (keys, back * opened),
            (hidden, error),
        ]


class Rms:
    """n = o / √(mean o² + 1) over the last axis, in fp32 at least, and its first and second derivative.

    The Jacobian is symmetric: J = r (1 − n nᵀ / N), with r = 1 / √(mean o² + 1).
    """

    def __init__(self, output: Tensor) -> None:
        output = output.to(torch.promote_types(output.dtype, torch.float32))
        self.scale = torch.rsqrt(output.square().mean(-1, keepdim=True) + FLOOR)
        self.normed = output * self.scale

    def pull(self, gradient: Tensor) -> Tensor:
        """J · gradient: from a gradient by n to the gradient by o."""
        return self.scale * (gradient - self.normed * mean_product(gradient, self.normed))

    def bend(self, left: Tensor, right: Tensor) -> Tensor:
        """The gradient of leftᵀ J right by o, through J."""
        along, across = mean_product(left, self.normed), mean_product(right, self.normed)
        turned = self.normed * (mean_product(left, right) - 3 * along * across) + across * left + along * right
        return -self.scale.square() * turned


def mean_product(left: Tensor, right: Tensor) -> Tensor:
    return (left * right).mean(-1, keepdim=True)


def gelu_and_slope(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """gelu(x) = x Φ(x) and its derivative Φ(x) + x φ(x), elementwise."""
    return _GeluAndSlope.apply(inputs)


class _GeluAndSlope(torch.autograd.Function):
    """One pass for both and one back: as separate operations the two and their gradients take a dozen."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> tuple[Tensor, Tensor]:
        share = torch.special.ndtr(inputs)
        slope = torch.addcmul(share, inputs, density(inputs))
        ctx.save_for_backward(inputs, slope)
        return inputs * share, slope

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, by_value: Tensor, by_slope: Tensor) -> Tensor:
        inputs, slope = ctx.saved_tensors
        bend = density(inputs) * (2 - inputs.square())
        return torch.addcmul(by_value * slope, by_slope, bend)


def density(inputs: Tensor) -> Tensor:
    """Of the standard normal distribution."""
    return torch.exp(-0.5 * inputs.square()) / math.sqrt(2 * math.pi)
