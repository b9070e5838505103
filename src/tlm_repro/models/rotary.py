"""Rotary positions (RoFormer, arXiv 2104.09864). Shapes as in `mixer`."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class Rotary:
    """Rotations by position, computed once a forward pass for all layers.

    A rotation is a complex number: channels 2i and 2i + 1 of a head are a real and an imaginary part.
    """

    def __init__(self, head_dim: int, theta: float) -> None:
        self.frequencies = [theta ** (-channel / head_dim) for channel in range(0, head_dim, 2)]
        self.magnitude = 1.0  # other than 1 only where a rule for longer sequences asks for it
        self._table: Tensor | None = None

    @contextmanager
    def replaced(self, frequencies: list[float], magnitude: float) -> Iterator[None]:
        """Rotates by other frequencies (E/2) and to another length in the block."""
        before = self.frequencies, self.magnitude
        self.frequencies, self.magnitude, self._table = frequencies, magnitude, None
        try:
            yield
        finally:
            (self.frequencies, self.magnitude), self._table = before, None

    def rotations(self, positions: Tensor) -> Tensor:
        """(B, T) integer positions → rotations (B, T, 1, E/2), complex64."""
        frequencies = torch.tensor(self.frequencies, dtype=torch.float32, device=positions.device)
        angles = positions[:, :, None, None].float() * frequencies
        return torch.polar(torch.full_like(angles, self.magnitude), angles)

    def leading_rotations(self, time: int, device: torch.device) -> Tensor:
        """The rotations of positions 0…time − 1, (1, T, 1, E/2), kept from call to call."""
        table = self._table
        if table is None or table.shape[1] < time or table.device != device:
            # A table made in inference mode couldn't take part in training later on.
            with torch.inference_mode(False):
                table = self._table = self.rotations(torch.arange(time, device=device)[None])
        return table[:, :time]


def rotate(heads: Tensor, rotary: Tensor) -> Tensor:
    """Turns each pair of channels of `heads` (B, T, H, E) by its position's rotation, in fp32 at least."""
    wide = heads.to(torch.promote_types(heads.dtype, torch.float32)).unflatten(-1, (-1, 2))
    if torch.compiler.is_compiling():  # it makes no code for complex numbers
        (real, imaginary), (cos, sin) = wide.unbind(-1), torch.view_as_real(rotary).unbind(-1)
        turned = torch.stack((real * cos - imaginary * sin, real * sin + imaginary * cos), dim=-1)
    else:
        turned = torch.view_as_real(torch.view_as_complex(wide) * rotary)
    return turned.flatten(-2).to(heads.dtype)
