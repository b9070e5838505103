"""The rates of a fast-weight memory, and what those of one chunk amount to.

M_t and S_t are linear in what they were at the chunk's start and in the chunk's gradients, and the factors are products
and sums of rates alone. Shapes: B batch, H heads, R = B·H, T time, C chunk, D model width.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from tlm_repro.models.precision import full_precision


@dataclass(frozen=True, slots=True)
class Rates:
    """Token-dependent rates, each (B, H, T): log η ≤ 0, log(1 − α) ≤ 0 and θ ≥ 0."""

    momentum: Tensor
    retention: Tensor
    step: Tensor


def token_rates(hidden: Tensor, weight: Tensor, bias: Tensor, max_step: float) -> Rates:
    """Sigmoids of a linear map of (B, T, D), rows (3H, D) in the order η, θ, α; θ is bounded by `max_step`.

    In fp32 at least: a bf16 logit can't tell a forgetting of 1e-4 a token from one of 2e-4.
    """
    wide = torch.promote_types(hidden.dtype, torch.float32)
    with full_precision(hidden.device):
        logits = F.linear(hidden.to(wide), weight.to(wide), bias.to(wide)).mT
    momentum, step, forgetting = logits.chunk(3, dim=1)
    return Rates(F.logsigmoid(momentum), F.logsigmoid(-forgetting), max_step * torch.sigmoid(step))


@dataclass(frozen=True, slots=True)
class Coefficients:
    """What the rates of one chunk amount to, in fp32 at least: a decay of 1e-4 is lost in bf16.

    within: (decay β, carry μ, write c) for the weights at each token, W_t = β_t W + μ_t S − Σ_s c_{ts} gradient_s, with
        shapes (R, C, 1), (R, C, 1) and (R, C, C), 0 above the diagonal; () where reads use the chunk's first weights.
    decay, carry, fade: (R, 1, 1), the shares of W and S in W, and of S in S, at the chunk's end.
    write, push: (R, C, 1), the shares of each token's gradient in W and in S at the chunk's end.
    """

    within: tuple[Tensor, ...]
    decay: Tensor
    carry: Tensor
    fade: Tensor
    write: Tensor
    push: Tensor


def coefficients(rates: Rates, lengths: list[int], read: Literal["token", "chunk"]) -> list[Coefficients]:
    """Those of every piece, pieces of one length computed together."""
    wide = torch.promote_types(rates.step.dtype, torch.float32)
    flat = (each.to(wide).flatten(0, 1) for each in (rates.momentum, rates.retention, rates.step))
    split = [each.split(lengths, dim=-1) for each in flat]
    by_place: dict[int, Coefficients] = {}
    with full_precision(rates.step.device):
        for length in set(lengths):
            places = [place for place, each in enumerate(lengths) if each == length]
            momentum, retention, step = (torch.stack([parts[place] for place in places]) for parts in split)
            by_place.update(zip(places, _unrolled(momentum, retention, step, read), strict=True))
    return [by_place[place] for place in range(len(lengths))]


def _unrolled(momentum: Tensor, retention: Tensor, step: Tensor, read: Literal["token", "chunk"]) -> list[Coefficients]:
    """The recurrences of M and S unrolled, for n pieces (n, R, C) at once.

    W_t gathers S_i kept from i to t, and S_i gathers gradients faded from s to i: two triangular factors, of which the
    weights at the chunk's end need the last row alone.
    """
    last = slice(-1, None)
    keep = triangle(retention)
    push = triangle(momentum) * step[..., None, :]
    decay, fade = retention.cumsum(-1).exp()[..., None], momentum.cumsum(-1).exp()[..., None]
    if read == "chunk":
        keep = keep[..., last, :]
    carry, write = keep @ fade, keep @ push
    ends = (decay[..., last, :], carry[..., last, :], fade[..., last, :], write[..., last, :].mT, push[..., last, :].mT)
    pieces = zip(*(part.unbind(0) for part in ends), strict=True)
    if read == "chunk":
        return [Coefficients((), *piece) for piece in pieces]
    reads = zip(*(part.unbind(0) for part in (decay, carry, write)), strict=True)
    return [Coefficients(each, *piece) for each, piece in zip(reads, pieces, strict=True)]


def triangle(logarithms: Tensor) -> Tensor:
    """Logarithms (…, C) → (…, C, C), the product over s < j ≤ t at (t, s), 0 above the diagonal.

    Sums run between s and t alone: as differences of sums from the start they'd lose small rates beside large ones.
    """
    size = logarithms.shape[-1]
    below = torch.ones(size, size, dtype=torch.bool, device=logarithms.device).tril(-1)
    sums = logarithms[..., :, None].expand(*logarithms.shape, size).masked_fill(~below, 0).cumsum(-2)
    return sums.masked_fill(below.mT, -math.inf).exp()
