"""Attention within a sliding window, over persistent tokens that every query sees.

Shapes: B batch, H heads, T time, E head width, P persistent tokens, W window.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

Pair = tuple[Tensor, Tensor]  # keys and values


@dataclass(frozen=True, slots=True)
class Window:
    """What later tokens can still see: keys and values (B, H, S, E) and which of the S places are taken, (B, S).

    Places fill up from the right, and there are always S, so that rows of different length stand side by side.
    """

    keys: Tensor
    values: Tensor
    taken: Tensor

    @classmethod
    def empty(cls, like: Tensor, places: int) -> "Window":
        """`like` (B, H, T, E) gives everything but the number of places."""
        batch, heads, _, width = like.shape
        rest = like.new_zeros(batch, heads, places, width)
        return cls(rest, rest, torch.zeros(batch, places, dtype=torch.bool, device=like.device))

    def appended(self, keys: Tensor, values: Tensor, places: int) -> "Window":
        """`places` places after T more tokens."""
        new = self.taken.new_ones(len(keys), keys.shape[2])
        parts = ((self.keys, keys, 2), (self.values, values, 2), (self.taken, new, 1))
        return Window(*(take_last(torch.cat((old, more), dim=axis), places, axis) for old, more, axis in parts))

    def cleared(self, rows: Tensor) -> "Window":
        """Nothing taken in those rows, (B,) boolean; no places at all where that is all of them."""
        if bool(rows.all()):
            return Window.empty(self.keys, 0)
        return Window(self.keys, self.values, self.taken & ~rows.to(self.taken.device)[:, None])


def take_last(tensor: Tensor, length: int, axis: int) -> Tensor:
    """The last `length` entries along an axis, zeros in front where there are fewer."""
    present = tensor.shape[axis]
    if present < length:
        return F.pad(tensor, (0, 0) * (tensor.ndim - 1 - axis) + (length - present, 0))
    return tensor.narrow(axis, present - length, length)


def band(queries: int, keys: int, window: int, device: torch.device) -> Tensor:
    """(queries, keys), True where a query sees a key: the last query and the last key are the same token."""
    query, key = torch.arange(keys - queries, keys, device=device)[:, None], torch.arange(keys, device=device)
    return (key <= query) & (key > query - window)


def banded_attention(query: Tensor, key: Tensor, value: Tensor, persistent: Pair, window: int) -> Tensor:
    """Each token attends to the persistent ones and to the last W tokens, itself among them; no token came before.

    Query, key and value (B, H, T, E); persistent (H, P, E) each. The first W tokens take the plain causal kernel, the
    rest goes in blocks of W that see the block before: T·2W scores, never T².

    Returns:
        (B, H, T, E).
    """
    batch, _, time, _ = query.shape
    fixed_keys, fixed_values = repeat_over_batch(persistent, batch)
    count, first = fixed_keys.shape[2], min(time, window)
    # Queries are padded in front, for the kernel's causal pattern to hold with the persistent keys in front.
    opening = F.scaled_dot_product_attention(
        F.pad(query[:, :, :first], (0, 0, count, 0)),
        torch.cat((fixed_keys, key[:, :, :first]), dim=2),
        torch.cat((fixed_values, value[:, :, :first]), dim=2),
        is_causal=True,
    )[:, :, count:]
    if time <= window:
        return opening
    blocks = -(-(time - window) // window)
    spare = (blocks + 1) * window - time

    def spread(fixed: Tensor, each: Tensor) -> Tensor:
        """(B, blocks, H, P + 2W, E): the persistent ones, the block before, the block."""
        two = F.pad(each, (0, 0, 0, spare)).unfold(2, 2 * window, window).movedim(-1, 3).movedim(2, 1)
        return torch.cat((fixed[:, None].expand(-1, blocks, -1, -1, -1), two), dim=3)

    queries = F.pad(query[:, :, window:], (0, 0, 0, spare)).unflatten(2, (blocks, window)).movedim(2, 1)
    seen = F.pad(band(window, 2 * window, window, query.device), (count, 0), value=True)
    rest = F.scaled_dot_product_attention(queries, spread(fixed_keys, key), spread(fixed_values, value), attn_mask=seen)
    rest = rest.movedim(1, 2).flatten(2, 3)[:, :, : time - window]
    return torch.cat((opening, rest), dim=2)


def repeat_over_batch(pair: Pair, batch: int) -> Pair:
    """(H, P, E) each → (B, H, P, E) each."""
    keys, values = pair
    return keys.expand(batch, *keys.shape), values.expand(batch, *values.shape)


def seen_attention(query: Tensor, pairs: list[Pair], seen: Tensor) -> Tensor:
    """Attention over several lists of keys and values, one after the other, `seen` (1 or B, T, keys) of them."""
    keys, values = (torch.cat(parts, dim=2) for parts in zip(*pairs, strict=True))
    return F.scaled_dot_product_attention(query, keys, values, attn_mask=seen[:, None])
