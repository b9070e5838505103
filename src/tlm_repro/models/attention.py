"""Causal softmax attention, plain and with an output gate. Shapes as in `mixer`."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tlm_repro.models.cache import Cache
from tlm_repro.models.mixer import Context, Mixer, ResidualProjection
from tlm_repro.models.rotary import rotate
from tlm_repro.spec.run import ModelSpec


def causal_mask(time: int, past: int, padding: Tensor | None, device: torch.device) -> Tensor | None:
    """Which of `past + time` keys each of the last `time` queries may see; None where plain causal attention is right.

    Args:
        time, past: how many tokens come now and how many the cache holds.
        padding: (B, past + time), True at real tokens, or None.

    Returns:
        (1 or B, 1, time, past + time), boolean. A query at padding sees itself, so that no row is empty.
    """
    if padding is None and (past == 0 or time == 1):
        return None
    keys = torch.arange(past + time, device=device)
    queries = keys[past:, None]
    visible = (keys <= queries)[None, None]
    return visible if padding is None else visible & padding[:, None, None, :] | (keys == queries)


class CausalAttention(Mixer):
    """Softmax attention with rotary positions, without bias, 4·D² parameters. Query, key and value are one matrix."""

    def __init__(self, model: ModelSpec, index: int) -> None:
        super().__init__()
        self.index = index
        self.heads, self.head_dim = model.heads, model.head_dim
        self.qkv = nn.Linear(model.model_width, 3 * model.model_width, bias=False)
        self.output = ResidualProjection(model.model_width, model.model_width)

    def forward(self, hidden: Tensor, context: Context, cache: Cache | None = None) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        return self.output(self.mix(hidden, context, cache))

    def mix(self, hidden: Tensor, context: Context, cache: Cache | None) -> Tensor:
        """Attention before the output projection, (B, T, D)."""
        batch, time, width = hidden.shape
        qk, value = self.qkv(hidden).split((2 * width, width), dim=-1)
        qk = rotate(qk.view(batch, time, 2 * self.heads, self.head_dim), context.rotary).transpose(1, 2)
        query, key = qk.split(self.heads, dim=1)
        value = value.view(batch, time, self.heads, self.head_dim).transpose(1, 2)
        if cache is not None:
            key, value = cache.append(self.index, key, value)
        causal = context.mask is None and time > 1
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=context.mask, is_causal=causal)
        return mixed.transpose(1, 2).reshape(batch, time, width)


class GatedAttention(CausalAttention):
    """Attention whose heads pass an elementwise sigmoid gate, a map of the layer's input, before the output projection.

    arXiv 2505.06708, position G1 (after the scaled dot products), head-specific and elementwise: D² parameters more.
    """

    def __init__(self, model: ModelSpec, index: int) -> None:
        super().__init__(model, index)
        self.gate = nn.Linear(model.model_width, model.model_width, bias=False)

    def mix(self, hidden: Tensor, context: Context, cache: Cache | None) -> Tensor:
        return super().mix(hidden, context, cache) * torch.sigmoid(self.gate(hidden))
