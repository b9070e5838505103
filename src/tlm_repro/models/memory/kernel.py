"""One chunk of a `ResidualMLP` memory of depth 2, forward and backward by hand: what training spends its time on.

The same mathematics as the general path of `fast_weights`, with half the matrix products, each twice as large (weights
and momentum stand side by side), and without the many passes over a state that autograd would make. Letters follow the
equations: A = K W₁ᵀ, H = gelu(A), G = gelu'(A), O = H W₂ᵀ, E₂ the error at O, B = E₂ W₂, E₁ = B ∘ G; a prime marks the
reads, whose inputs are queries. J₁ = [W₁ S₁] (R, F, 2N) and J₂ = [W₂; S₂] (R, 2N, F).

Shapes: R rows (batch × heads), C chunk, N memory head width, F = e·N hidden width.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tlm_repro.models.memory.coefficients import Coefficients
from tlm_repro.models.memory.networks import ResidualMLP, Rms, Weights, density, gelu_and_slope
from tlm_repro.models.precision import compute_type


class ChunkFunction(torch.autograd.Function):
    """(J₁, J₂, keys, values, queries, γ, coefficients …) → (reads, J₁', J₂'); the last two None unless `keep`.

    Products are made in `narrow`, sums and everything else in the type of the states. Coefficients are those of
    `fast_weights.Coefficients`: decay, carry, write of its reads, then decay, carry, fade, write, push.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor | None, Tensor | None]:
        first, second, key, value, query, scale, decay, carry, write, *ends, narrow, keep = inputs
        width = key.shape[-1]
        product = Products(narrow)
        before = product(key, first[..., :width].mT)
        hidden, slope = gelu_and_slope(before)
        output = product(hidden, second[:, :width].mT)
        norm = Rms(output)
        error = norm.pull(2 * scale * (key + scale * norm.normed - value))
        back = product(error, second[:, :width])
        hidden_error = back * slope

        scores = product(query, key.mT)
        asked = product(torch.cat((decay * query, carry * query), -1), first.mT)
        product.subtract(asked, write * scores, hidden_error)
        opened = F.gelu(asked)
        hidden_scores = product(opened, hidden.mT)
        both = product(opened, second.mT)
        answer = decay * both[..., :width] + carry * both[..., width:]
        product.subtract(answer, write * hidden_scores, error)
        reads = query + scale * Rms(answer).normed

        ctx.narrow, ctx.keep = narrow, keep
        ctx.save_for_backward(
            first, second, key, value, query, scale, decay, carry, write, *ends,
            before, hidden, slope, output, back, asked, opened, answer, scores, hidden_scores, both,
        )  # fmt: skip
        if not keep:
            return reads, None, None
        end_decay, end_carry, fade, end_write, push = ends
        new_first = first * torch.cat((end_decay.expand(-1, -1, width), fade.expand(-1, -1, width)), -1)
        new_first[..., :width].addcmul_(first[..., width:], end_carry)
        product.subtract(new_first, hidden_error.mT, torch.cat((end_write * key, push * key), -1))
        new_second = second * torch.cat((end_decay.expand(-1, width, -1), fade.expand(-1, width, -1)), 1)
        new_second[:, :width].addcmul_(second[:, width:], end_carry)
        product.subtract(new_second, torch.cat((end_write * error, push * error), -1).mT, hidden)
        return reads, new_first, new_second

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, by_reads: Tensor, by_first: Tensor, by_second: Tensor) -> tuple[Any, ...]:
        backward = Backward(ctx.saved_tensors, Products(ctx.narrow))
        if ctx.keep:
            backward.through_ends(by_first, by_second)
        backward.through_reads(by_reads)
        backward.through_writes()
        return (*backward.gradients(), None, None)


class Products:
    """Batched matrix products made in one type; what they are added to keeps its own."""

    def __init__(self, narrow: torch.dtype) -> None:
        self.narrow = narrow

    def __call__(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.bmm(left.to(self.narrow), right.to(self.narrow))

    def add(self, base: Tensor, left: Tensor, right: Tensor) -> None:
        """base += left @ right, in place."""
        if base.dtype == self.narrow:
            base.baddbmm_(left.to(self.narrow), right.to(self.narrow))
        else:
            base.add_(self(left, right))

    def subtract(self, base: Tensor, left: Tensor, right: Tensor) -> None:
        if base.dtype == self.narrow:
            base.baddbmm_(left.to(self.narrow), right.to(self.narrow), alpha=-1)
        else:
            base.sub_(self(left, right))


class Backward:
    """Gradients of one chunk, gathered from its end, its reads and its writes, in this order. `d_x` is that of x."""

    def __init__(self, saved: tuple[Tensor, ...], product: Products) -> None:
        (
            self.first, self.second, self.key, self.value, self.query, self.scale, self.decay, self.carry, self.write,
            self.end_decay, self.end_carry, self.fade, self.end_write, self.push,
            self.before, self.hidden, self.slope, self.output, self.back, self.asked, self.opened, self.answer,
            self.scores, self.hidden_scores, self.both,
        ) = saved  # fmt: skip
        self.product, self.width = product, self.key.shape[-1]
        self.norm = Rms(self.output)
        self.miss = self.key + self.scale * self.norm.normed - self.value
        self.error = self.norm.pull(2 * self.scale * self.miss)
        self.hidden_error = self.back * self.slope
        self.d_first, self.d_second = torch.zeros_like(self.first), torch.zeros_like(self.second)
        self.d_key, self.d_error = torch.zeros_like(self.key), torch.zeros_like(self.error)
        self.d_hidden, self.d_hidden_error = torch.zeros_like(self.hidden), torch.zeros_like(self.hidden_error)
        self.d_ends: list[Tensor | None] = [None] * 5

    def through_ends(self, by_first: Tensor, by_second: Tensor) -> None:
        """From J' back to J, to what was written and to the rates."""
        width, product = self.width, self.product
        along, down = (by_first * self.first).sum(1), (by_second * self.second).sum(2)  # (R, 2N) each
        crossed = (by_first[..., :width] * self.first[..., width:]).sum((1, 2))
        crossed = crossed + (by_second[:, :width] * self.second[:, width:]).sum((1, 2))
        sums = along + down
        d_decay, d_fade = sums[:, :width].sum(1), sums[:, width:].sum(1)
        self.d_first = by_first * torch.cat((self.end_decay.expand(-1, -1, width), self.fade.expand(-1, -1, width)), -1)
        self.d_first[..., width:].addcmul_(by_first[..., :width], self.end_carry)
        self.d_second = by_second * torch.cat(
            (self.end_decay.expand(-1, width, -1), self.fade.expand(-1, width, -1)), 1
        )
        self.d_second[:, width:].addcmul_(by_second[:, :width], self.end_carry)

        self.d_hidden_error = -product(torch.cat((self.end_write * self.key, self.push * self.key), -1), by_first.mT)
        by_keys = product(self.hidden_error, by_first)  # (R, C, 2N)
        by_errors = product(self.hidden, by_second.mT)
        self.d_hidden = -product(torch.cat((self.end_write * self.error, self.push * self.error), -1), by_second)
        kept, pushed = slice(None, width), slice(width, None)
        self.d_key = -(self.end_write * by_keys[..., kept] + self.push * by_keys[..., pushed])
        self.d_error = -(self.end_write * by_errors[..., kept] + self.push * by_errors[..., pushed])
        d_write, d_push = (
            -(by_keys[..., half] * self.key + by_errors[..., half] * self.error).sum(-1, keepdim=True)
            for half in (kept, pushed)
        )
        rates = (each[:, None, None] for each in (d_decay, crossed, d_fade))
        self.d_ends = [*rates, d_write, d_push]

    def through_reads(self, by_reads: Tensor) -> None:
        """From the reads back to the queries, J, what the chunk's own tokens wrote and the rates."""
        width, product = self.width, self.product
        norm = Rms(self.answer)
        self.d_scale = (by_reads * norm.normed).sum(1, keepdim=True)
        d_answer = norm.pull(self.scale * by_reads)
        d_both = torch.cat((self.decay * d_answer, self.carry * d_answer), -1)
        d_decay = (d_answer * self.both[..., :width]).sum(-1, keepdim=True)
        d_carry = (d_answer * self.both[..., width:]).sum(-1, keepdim=True)
        d_opened = product(d_both, self.second)
        product.add(self.d_second, d_both.mT, self.opened)
        d_mixed = -product(d_answer, self.error.mT).to(self.write.dtype)
        product.subtract(self.d_error, (self.write * self.hidden_scores).mT, d_answer)
        self.d_write = d_mixed * self.hidden_scores
        d_scores = d_mixed * self.write
        product.add(d_opened, d_scores, self.hidden)
        product.add(self.d_hidden, d_scores.mT, self.opened)

        d_asked = torch.ops.aten.gelu_backward(d_opened, self.asked)
        by_query = product(d_asked, self.first)
        product.add(self.d_first, d_asked.mT, torch.cat((self.decay * self.query, self.carry * self.query), -1))
        kept, moved = by_query[..., :width], by_query[..., width:]
        self.d_decay = d_decay + (kept * self.query).sum(-1, keepdim=True)
        self.d_carry = d_carry + (moved * self.query).sum(-1, keepdim=True)
        self.d_query = by_reads + self.decay * kept + self.carry * moved
        d_mixed = -product(d_asked, self.hidden_error.mT).to(self.write.dtype)
        product.subtract(self.d_hidden_error, (self.write * self.scores).mT, d_asked)
        self.d_write = self.d_write + d_mixed * self.scores
        d_scores = d_mixed * self.write
        product.add(self.d_query, d_scores, self.key)
        product.add(self.d_key, d_scores.mT, self.query)

    def through_writes(self) -> None:
        """From the errors and inputs that were written back to keys, values, W and γ."""
        width, product = self.width, self.product
        d_back, d_slope = self.d_hidden_error * self.slope, self.d_hidden_error * self.back
        product.add(self.d_error, d_back, self.second[:, :width].mT)
        gradient = 2 * self.scale * self.miss  # by the read of its own key: the error is its pull through the norm
        d_gradient = self.norm.pull(self.d_error)
        d_output = self.norm.pull(2 * self.scale.square() * d_gradient) + self.norm.bend(self.d_error, gradient)
        self.d_key += 2 * self.scale * d_gradient
        self.d_value = -2 * self.scale * d_gradient
        own = 2 * d_gradient * (self.miss + self.scale * self.norm.normed)
        self.d_scale = self.d_scale + own.sum(1, keepdim=True)
        product.add(self.d_hidden, d_output, self.second[:, :width])
        self.d_second[:, :width].add_(product(self.error.mT, d_back) + product(d_output.mT, self.hidden))
        d_before = self.d_hidden * self.slope + d_slope * density(self.before) * (2 - self.before.square())
        product.add(self.d_key, d_before, self.first[..., :width])
        self.d_first[..., :width].add_(product(d_before.mT, self.key))

    def gradients(self) -> tuple[Tensor | None, ...]:
        """In the order of the function's inputs."""
        return (
            self.d_first, self.d_second, self.d_key, self.d_value, self.d_query, self.d_scale,
            self.d_decay, self.d_carry, self.d_write, *self.d_ends,
        )  # fmt: skip


def scan_chunks(
    memory: ResidualMLP,
    parts: list[tuple[Tensor, Tensor, Tensor]],
    rates: list[Coefficients],
    weights: Weights,
    momentum: Weights,
    *,
    keep: bool,
) -> tuple[list[Tensor], Weights, Weights, Weights]:
    """Chunk after chunk, from weights that are those of a chunk's start.

    Args:
        memory: of depth 2, expanded to R rows.
        parts: keys, values and queries of each chunk, (R, C, N) each.
        weights, momentum: (R, out, in) each.

    Returns:
        (reads of each chunk; weights at the last chunk's start, weights and momentum at its end).
    """
    width = parts[0][0].shape[-1]
    narrow = compute_type(weights[0])
    first, second = torch.cat((weights[0], momentum[0]), 2), torch.cat((weights[1], momentum[1]), 1)
    old, reads = (first, second), []
    for place, (part, rate) in enumerate(zip(parts, rates, strict=True)):
        ends = (rate.decay, rate.carry, rate.fade, rate.write, rate.push)
        going = keep or place + 1 < len(parts)
        old = (first, second)
        read, first, second = ChunkFunction.apply(
            first, second, *part, memory.scale, *rate.within, *ends, narrow, going
        )
        reads.append(read)
    start = (old[0][..., :width], old[1][:, :width])
    if not keep:
        return reads, start, start, momentum
    return reads, start, (first[..., :width], second[:, :width]), (first[..., width:], second[:, width:])
