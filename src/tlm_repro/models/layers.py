"""The parts that every architecture shares: rotary positions, the feed-forward block and what a forward pass passes on.

Shapes: B batch, T time, D model width, H heads, E head width, F feed-forward width.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tlm_repro.models.configuration import TLMConfig


class ResidualProjection(nn.Linear):
    """A map without bias that ends a residual branch; the decoder initialises it with a smaller deviation."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)


class Rotary:
    """Rotations by position (RoFormer, arXiv 2104.09864), computed once a forward pass for all layers.

    A rotation is a complex number: channels 2i and 2i + 1 of a head are a real and an imaginary part.
    """

    def __init__(self, head_dim: int, theta: float) -> None:
        self.frequencies = [theta ** (-channel / head_dim) for channel in range(0, head_dim, 2)]
        self.magnitude = 1.0  # other than 1 only where a rule for longer sequences asks for it
        self._first: Tensor | None = None

    @contextmanager
    def changed(self, frequencies: list[float], magnitude: float) -> Iterator[None]:
        """Other frequencies (E/2), and another length of the rotations, in the block."""
        before = self.frequencies, self.magnitude
        self.frequencies, self.magnitude, self._first = frequencies, magnitude, None
        try:
            yield
        finally:
            (self.frequencies, self.magnitude), self._first = before, None

    def at(self, positions: Tensor) -> Tensor:
        """(B, T) integer positions → rotations (B, T, 1, E/2), complex64."""
        frequencies = torch.tensor(self.frequencies, dtype=torch.float32, device=positions.device)
        angles = positions[:, :, None, None].float() * frequencies
        return torch.polar(torch.full_like(angles, self.magnitude), angles)

    def first(self, time: int, device: torch.device) -> Tensor:
        """The rotations of positions 0…time − 1, (1, T, 1, E/2), kept from call to call."""
        table = self._first
        if table is None or table.shape[1] < time or table.device != device:
            # A table made in inference mode couldn't take part in training later on.
            with torch.inference_mode(False):
                table = self._first = self.at(torch.arange(time, device=device)[None])
        return table[:, :time]


def unmasked() -> None:
    """Plain causal attention needs no mask."""


@dataclass(frozen=True)
class Context:
    """What one forward pass knows of its tokens, the same for every layer.

    rotary: rotation of each position, complex (1 or B, T, 1, E/2).
    padding: (B, T), True at real tokens, for mixers that carry a state; None: all are real.
    make_mask: makes `mask`, which grows with the number of keys and which not every mixer asks for.
    """

    rotary: Tensor
    padding: Tensor | None = None
    make_mask: Callable[[], Tensor | None] = unmasked
    _masks: list[Tensor] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def mask(self) -> Tensor | None:
        """(1 or B, 1, T, keys), True where a query may see a key; None: plain causal attention."""
        # Kept for the other layers. Not a cached_property: torch.compile can't enter the lock of Python 3.11's.
        if self._masks:
            return self._masks[0]
        mask = self.make_mask()
        if mask is not None:
            self._masks.append(mask)
        return mask


def rotate(heads: Tensor, rotary: Tensor) -> Tensor:
    """Turns each pair of channels of `heads` (B, T, H, E) by its position's rotation, in fp32 at least."""
    wide = heads.to(torch.promote_types(heads.dtype, torch.float32)).unflatten(-1, (-1, 2))
    if torch.compiler.is_compiling():  # it makes no code for complex numbers
        (real, imaginary), (cos, sin) = wide.unbind(-1), torch.view_as_real(rotary).unbind(-1)
        turned = torch.stack((real * cos - imaginary * sin, real * sin + imaginary * cos), dim=-1)
    else:
        turned = torch.view_as_real(torch.view_as_complex(wide) * rotary)
    return turned.flatten(-2).to(heads.dtype)


class SwiGLU(nn.Module):
    """W_down(silu(W_gate x) ∘ W_up x), 3·D·F parameters (arXiv 2002.05202).

    Gate and up are two matrices: as halves of one they'd be strided, and the elementwise half of the work would cost
    more than the saved product (10.7 against 6.9 ms for 4,096 tokens and F 384 on a CPU).
    """

    def __init__(self, config: TLMConfig, index: int) -> None:
        super().__init__()
        width = config.intermediate_sizes[index]
        self.gate = nn.Linear(config.hidden_size, width, bias=False)
        self.up = nn.Linear(config.hidden_size, width, bias=False)
        self.down = ResidualProjection(width, config.hidden_size)

    def forward(self, hidden: Tensor, *_: Any) -> Tensor:
        """(B, T, D) → (B, T, D); what else a feed-forward block is given has no part in it."""
        return self.down(F.silu(self.gate(hidden)) * self.up(hidden))
