"""Where a model runs when nobody says where, and how results name that place."""

import torch


def default_device() -> str:
    """The first GPU if there is one, else the CPU, as PyTorch names it."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def device_name(device: str | torch.device) -> str:
    """The GPU's product name, or the kind of device."""
    kind = torch.device(device).type
    return torch.cuda.get_device_name(device) if kind == "cuda" else kind
