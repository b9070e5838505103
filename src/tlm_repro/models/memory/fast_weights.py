"""Fast weights: a small network whose weights learn along the sequence, by gradient descent with momentum and decay.

    S_t = η_t S_{t−1} − θ_t ∇ℓ(M; k_t, v_t),   M_t = (1 − α_t) M_{t−1} + S_t,   y_t = M_t(q_t),   ℓ = ‖M(k) − v‖²

(Titans, arXiv 2501.00663, Section 3). Gradients are taken at the weights at the start of the token's chunk, so each is
a sum of outer products, error ⊗ input, and a chunk of C tokens needs no weight matrix a token:

    W_t x = β_t W x + μ_t S x − Σ_{s≤t} c_{ts} (input_s · x) error_s

where W and S stand at the chunk's start and β, μ and the lower-triangular c are products of the rates alone. Memory
grows with T·C and T·N and with one state a chunk. A chunk of one token is the recurrent form.

Shapes: B batch, H heads, R = B·H, T time, C chunk, N memory head width, e expansion. Weights stand as (…, out, in).
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tlm_repro.errors import ConfigError
from tlm_repro.models.memory.coefficients import Coefficients, Rates, coefficients
from tlm_repro.models.memory.kernel import scan_chunks
from tlm_repro.models.memory.networks import Apply, Memory, ResidualMLP, Weights, Write
from tlm_repro.models.precision import autocasting


@dataclass(frozen=True, slots=True)
class MemoryState:
    """A memory's state between calls. Its size doesn't depend on the number of tokens seen.

    start: weights (B, H, out, in) at the start of the chunk under way, where gradients are taken.
    weights, momentum: M and S after the last token.
    count: (B,) tokens seen, on the CPU, so that finding the start of a chunk waits for no device.
    """

    start: Weights
    weights: Weights
    momentum: Weights
    count: Tensor


def initial_state(weights: Weights, batch: int) -> MemoryState:
    """The state before the first token: the trained weights (H, out, in) in every row, no momentum."""
    rows = tuple(weight.expand(batch, *weight.shape) for weight in weights)
    rest = tuple(torch.zeros_like(row) for row in rows)
    return MemoryState(
        start=rows, weights=rows, momentum=rest, count=torch.zeros(batch, dtype=torch.int64, device="cpu")
    )


def scan(
    memory: Memory,
    keys: Tensor,
    values: Tensor,
    queries: Tensor,
    rates: Rates,
    state: MemoryState,
    *,
    chunk: int,
    read: Literal["token", "chunk"] = "token",
    keep: bool = True,
) -> tuple[Tensor, MemoryState | None]:
    """Writes T tokens into the memory, one after the other, and reads it at each.

    Chunks count from the first token of the sequence, so one call or many give the same: a chunk that an earlier call
    left unfinished is finished first. With one token, rows may have seen different numbers of tokens.

    Args:
        keys, values, queries: (B, H, T, N).
        read: "token" reads M_t(q_t), the token's own write included; "chunk" the weights at the start of its chunk.
        keep: whether to return the state after the last token; otherwise the last writes aren't made.

    Returns:
        (reads (B, H, T, N), in fp32 at least; the state after the last token, or None).

    Raises:
        ConfigError: several tokens for rows that stand at different places of their chunks.
    """
    batch, heads, time, _ = keys.shape
    lengths = piece_lengths(state.count, time, chunk)
    memory = memory.expand(batch * heads)
    wide = torch.promote_types(keys.dtype, torch.float32)
    flat = (each.to(wide).flatten(0, 1) for each in (keys, values, queries))
    parts = list(zip(*(each.split(lengths, dim=1) for each in flat), strict=True))
    start, weights, momentum = (
        tuple(weight.flatten(0, 1) for weight in part) for part in (state.start, state.weights, state.momentum)
    )
    factors = coefficients(rates, lengths, read)
    count = state.count + time
    whole = time > 1 and bool((state.count % chunk == 0).all())
    if whole and read == "token" and isinstance(memory, ResidualMLP) and memory.depth == 2:
        reads, start, weights, momentum = scan_chunks(memory, parts, factors, weights, momentum, keep=keep)
        start = restart_finished(start, weights, count % chunk == 0)
    else:
        reads, start, weights, momentum = scan_pieces(
            memory, parts, factors, (start, weights, momentum), state.count, chunk=chunk, keep=keep
        )
    output = torch.cat(reads, dim=1).unflatten(0, (batch, heads))
    if not keep:
        return output, None
    start, weights, momentum = (
        tuple(weight.unflatten(0, (batch, heads)) for weight in part) for part in (start, weights, momentum)
    )
    return output, MemoryState(start, weights, momentum, count)


def scan_pieces(
    memory: Memory,
    parts: list[tuple[Tensor, Tensor, Tensor]],
    factors: list[Coefficients],
    state: tuple[Weights, Weights, Weights],
    count: Tensor,
    *,
    chunk: int,
    keep: bool,
) -> tuple[list[Tensor], Weights, Weights, Weights]:
    """Piece after piece, for any memory and any place in a chunk; arguments and result as in `scan_chunks`.

    `state` is start, weights and momentum; unless `keep`, what comes back of them is of no use.
    """
    start, weights, momentum = state
    reads = []
    for place, ((key, value, query), factor) in enumerate(zip(parts, factors, strict=True)):
        unread = not keep and place + 1 == len(parts)  # what this piece leaves behind
        writes = [] if unread and not factor.within else memory.writes(start, key, value)
        apply = apply_with_writes(weights, momentum, writes, factor) if factor.within else apply_weights(start)
        reads.append(memory.read(apply, query))
        if unread:
            break
        weights, momentum = write_chunk(weights, momentum, writes, factor)
        count = count + key.shape[1]
        start = restart_finished(start, weights, count % chunk == 0)
    return reads, start, weights, momentum


def recall(memory: Memory, queries: Tensor, weights: Weights) -> Tensor:
    """Reads at weights (B, H, out, in), writing nothing: (B, H, T, N) → (B, H, T, N)."""
    batch, heads, _, _ = queries.shape
    wide = torch.promote_types(queries.dtype, torch.float32)
    apply = apply_weights(tuple(weight.flatten(0, 1) for weight in weights))
    flat = memory.expand(batch * heads).read(apply, queries.to(wide).flatten(0, 1))
    return flat.unflatten(0, (batch, heads))


def piece_lengths(count: Tensor, time: int, chunk: int) -> list[int]:
    """How `time` tokens fall on chunks when `count` (B,) tokens have been seen: [rest of a chunk, C, C, …, tail]."""
    if time == 1:
        return [1]
    places = (count % chunk).unique().tolist()
    if len(places) > 1:
        raise ConfigError(
            f"{time} tokens for rows at different places of their chunks ({places} of {chunk}): pass such rows one by "
            "one, or one token at a time"
        )
    opened = min((chunk - places[0]) % chunk, time)
    whole, tail = divmod(time - opened, chunk)
    return [length for length in (opened, *[chunk] * whole, tail) if length]


def apply_weights(weights: Weights) -> Apply:
    """Uses weights as they are."""
    return lambda which, inputs: inputs @ weights[which].mT


def apply_with_writes(weights: Weights, momentum: Weights, writes: list[Write], rate: Coefficients) -> Apply:
    """Uses at each token the weights that the chunk's writes up to it have made."""
    decay, carry, write = rate.within

    def apply(which: int, inputs: Tensor) -> Tensor:
        weight, moment, (written_inputs, errors) = weights[which].mT, momentum[which].mT, writes[which]
        if inputs.shape[-1] <= errors.shape[-1]:  # scale whichever side is narrower
            output = accumulate((decay * inputs) @ weight, carry * inputs, moment)
        else:
            output = decay * (inputs @ weight) + carry * (inputs @ moment)
        scores = write * (inputs @ written_inputs.mT)
        return accumulate(output, scores, errors, sign=-1)

    return apply


def write_chunk(
    weights: Weights, momentum: Weights, writes: list[Write], rate: Coefficients
) -> tuple[Weights, Weights]:
    """Weights and momentum at the chunk's end."""
    new_weights: list[Tensor] = []
    new_momentum: list[Tensor] = []
    for weight, moment, (inputs, errors) in zip(weights, momentum, writes, strict=True):
        faded = (torch.addcmul(rate.decay * weight, rate.carry, moment), rate.fade * moment)
        narrow_inputs = inputs.shape[-1] <= errors.shape[-1]
        for base, share, into in zip(faded, (rate.write, rate.push), (new_weights, new_momentum), strict=True):
            left, right = (errors, share * inputs) if narrow_inputs else (share * errors, inputs)
            into.append(accumulate(base, left.mT, right, sign=-1))
    return tuple(new_weights), tuple(new_momentum)


def restart_finished(start: Weights, weights: Weights, finished: Tensor) -> Weights:
    """`weights` in the batch's rows that have finished a chunk, (B,), `start` in the others; (B, …) or (R, …) each."""
    if bool(finished.all()):
        return weights
    if not bool(finished.any()):
        return start
    rows = finished.to(weights[0].device).repeat_interleave(len(weights[0]) // len(finished))
    rows = rows.view(-1, *[1] * (weights[0].ndim - 1))
    return tuple(torch.where(rows, new, old) for new, old in zip(weights, start, strict=True))


def accumulate(base: Tensor, left: Tensor, right: Tensor, *, sign: int = 1) -> Tensor:
    """base + sign · left @ right, the sum in base's precision whatever that of the product under autocast."""
    if autocasting(base.device):
        return torch.add(base, left @ right, alpha=sign)
    return torch.baddbmm(base, left, right, alpha=sign)
