"""Autocast helpers that also work on devices without autocast, such as torch's meta device."""

import contextlib

import torch
from torch import Tensor


def autocasting(device: torch.device) -> bool:
    """Whether matrix products on this device are being done in a narrower type."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


def full_precision(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Products on this device keep the type of their factors in the block."""
    if not torch.amp.is_autocast_available(device.type):
        return contextlib.nullcontext()
    return torch.autocast(device.type, enabled=False)


def compute_type(tensor: Tensor) -> torch.dtype:
    """The type in which a product with this tensor is made."""
    return torch.get_autocast_dtype(tensor.device.type) if autocasting(tensor.device) else tensor.dtype
