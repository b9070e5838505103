"""The parts that every architecture shares: rotary positions, the feed-forward block and what a forward pass passes on.

Shapes: B batch, T time, D model width, H heads, E head width, F feed-forward width.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tlm_repro.models.configuration import TLMConfig


class ResidualProjection(nn.Linear):
    """A map without bias that ends a residual branch; the decoder initialises it with a smaller deviation."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)


class Rotary:
    """Cosines and sines of rotary positions (RoFormer, arXiv 2104.09864), computed once a forward pass for all layers."""

    def __init__(self, head_dim: int, theta: float) -> None:
        self.exponents = torch.arange(0, head_dim, 2, dtype=torch.float64, device="cpu") / head_dim
        self.theta = theta
        self._table: tuple[Tensor, Tensor] | None = None

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T) integer positions → cosines and sines, each (B, T, 1, E/2) in fp32."""
        frequencies = (self.theta**-self.exponents).to(device=positions.device, dtype=torch.float32)
        angles = positions[:, :, None, None].float() * frequencies
        return angles.cos(), angles.sin()

    def first(self, time: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """The same for positions 0…time−1, each (1, T, 1, E/2), kept from call to call."""
        table = self._table
        if table is None or table[0].shape[1] < time or table[0].device != device:
            table = self._table = self.at(torch.arange(time, device=device)[None])
        return table[0][:, :time], table[1][:, :time]


@dataclass(frozen=True, slots=True)
class Context:
    """What one forward pass knows of its tokens, the same for every layer.

    rotary: cosines and sines, each (1 or B, T, 1, E/2).
    mask: (B, 1, T, keys), True where a query may see a key; None: plain causal attention.
    padding: (B, T), True at real tokens, for mixers that carry a state; None: all are real.
    """

    rotary: tuple[Tensor, Tensor]
    mask: Tensor | None = None
    padding: Tensor | None = None


def rotate(heads: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Turns `heads` (B, T, H, E): pair (i, i + E/2) by the angle of its position."""
    cosines, sines = rotary
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1).to(heads.dtype)


class SwiGLU(nn.Module):
    """W_down(silu(W_gate x) ∘ W_up x), 3·D·F parameters (arXiv 2002.05202). Gate and up are one matrix: one product less."""

    def __init__(self, config: TLMConfig, index: int) -> None:
        super().__init__()
        width = config.intermediate_sizes[index]
        self.gate_up = nn.Linear(config.hidden_size, 2 * width, bias=False)
        self.down = ResidualProjection(width, config.hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        gate, up = self.gate_up(hidden).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)
