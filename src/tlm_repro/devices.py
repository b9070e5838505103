"""The default device, the names of devices in results, and their peak speeds.

`devices.csv` holds dense peak TFLOP/s and board power from the vendors' data sheets, each for one device as torch
counts devices. Functions that need torch import it themselves: `plan` and `status` need only the table.
"""

import csv
import fcntl
import functools
import os
import re
import tempfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tlm_repro.artifacts.lock import open_lock
from tlm_repro.errors import ConfigError

if TYPE_CHECKING:
    import torch

# The arithmetic of a run's matrix products: "fp32" is exact single precision, "tf32" single precision on tensor units.
Arithmetic = Literal["bf16", "tf32", "fp32"]
ARITHMETICS: tuple[Arithmetic, ...] = ("bf16", "tf32", "fp32")


@dataclass(frozen=True)
class Device:
    """One row of the table.

    Attributes:
        pattern: regular expression that matches the whole product name that torch reports.
        peaks: FLOP/s.
        watts: board power, or None if the data sheet gives none for the device alone.
    """

    name: str
    pattern: str
    peaks: dict[Arithmetic, float]
    watts: float | None
    source: str


@dataclass(frozen=True)
class Utilisation:
    """Model FLOPs utilisation between 0 and 1, or None; `note` then says why it is unknown."""

    value: float | None
    note: str = ""


@functools.cache
def devices() -> tuple[Device, ...]:
    """All rows of the table."""
    text = (resources.files("tlm_repro") / "devices.csv").read_text(encoding="utf-8")
    return tuple(
        Device(
            name=row["name"],
            pattern=row["pattern"],
            peaks={kind: float(row[kind]) * 1e12 for kind in ARITHMETICS if row[kind]},
            watts=float(row["watts"]) if row["watts"] else None,
            source=row["source"],
        )
        for row in csv.DictReader(text.splitlines())
    )


def find_device(product: str) -> Device | None:
    """The row of a product, by the whole name that torch reports or by the table's name; None if it isn't listed.

    A partial match doesn't count: a slice of a GPU ("… MIG 1g.10gb") or a variant has another peak.
    """
    product = product.strip()
    for device in devices():
        if product.casefold() == device.name.casefold() or re.fullmatch(device.pattern, product, re.IGNORECASE):
            return device
    return None


def peak_flops(product: str, arithmetic: Arithmetic) -> float:
    """Peak FLOP/s of a device. Raises ConfigError, listing the known devices, if the table has none."""
    device = find_device(product)
    if device is None:
        names = ", ".join(device.name for device in devices())
        raise ConfigError(f"unknown device '{product}': choose one of {names}, or give its peak with --peak-tflops")
    if arithmetic not in device.peaks:
        raise ConfigError(
            f"{device.name} has no {arithmetic} peak ({device.source}): choose another device, or give a peak with "
            "--peak-tflops"
        )
    return device.peaks[arithmetic]


def utilisation(
    *, flops_per_token: float, tokens_per_second: float, device: str, processes: int, arithmetic: Arithmetic
) -> Utilisation:
    """A run's model FLOP/s as a share of the peak of all its devices.

    Args:
        flops_per_token: forward and backward, without recomputation, as `accounting.training_flops` counts them.
        tokens_per_second: of the whole run.
        device: product name, as torch reports it.
        processes: number of devices that share the run.
    """
    row = find_device(device)
    if row is None:
        return Utilisation(None, f"unknown device '{device}'")
    if arithmetic not in row.peaks:
        return Utilisation(None, f"no {arithmetic} peak of {row.name} in its data sheet")
    value = flops_per_token * tokens_per_second / (row.peaks[arithmetic] * processes)
    if value > 1:
        return Utilisation(
            None, f"{value:.2f} × the {arithmetic} peak of {row.name}: the device or the precision must be wrong"
        )
    return Utilisation(value)


@functools.cache
def default_device() -> str:
    """The first GPU that no other process on this machine holds, else the first GPU, else the CPU.

    Processes that start at the same moment on one machine therefore spread over its GPUs. Under a scheduler that shows
    a job only its own GPU, that GPU is the only choice.
    """
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    uuids = (torch.cuda.get_device_properties(index).uuid for index in range(torch.cuda.device_count()))
    index = next((index for index, uuid in enumerate(uuids) if _lock_gpu(str(uuid))), 0)
    return f"cuda:{index}"


def _lock_gpu(uuid: str) -> bool:
    """Tries to lock a GPU for this process; returns success. The kernel releases the lock when the process ends."""
    path = Path(tempfile.gettempdir()) / f"tlm-repro-{os.getuid()}-{uuid}.lock"
    descriptor = open_lock(path, 0o600)  # never closed, which would release the lock
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return False
    return True


def device_name(device: "str | torch.device") -> str:
    """The GPU's product name; for any other device, its type."""
    import torch

    kind = torch.device(device).type
    return torch.cuda.get_device_name(device) if kind == "cuda" else kind


def arithmetic_of(precision: Literal["fp32", "bf16"]) -> Arithmetic:
    """The arithmetic of this process's matrix products. Torch can be set to compute those of fp32 in TF32."""
    import torch

    return "tf32" if precision == "fp32" and torch.get_float32_matmul_precision() != "highest" else precision
