"""Where a model runs when nobody says where, how results name that place, and the most that it could compute.

`devices.csv` holds the peaks: dense TFLOP/s of one device as torch counts devices, from the vendors' data sheets, and
the power of its board, from the same ones. Torch is imported only by what asks it: a plan or a status of runs needs the
table alone.
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

from tlm_repro.errors import ConfigError

if TYPE_CHECKING:
    import torch

# What the matrix products of a run use: "fp32" is exact single precision, "tf32" single precision on tensor units.
Arithmetic = Literal["bf16", "tf32", "fp32"]
ARITHMETICS: tuple[Arithmetic, ...] = ("bf16", "tf32", "fp32")


@dataclass(frozen=True)
class Device:
    """One row of the table. `reported` matches all of the product name that torch gives; peaks in FLOP/s.

    `watts` is the power of the board, None where the data sheet gives none for the device alone.
    """

    name: str
    reported: str
    peaks: dict[Arithmetic, float]
    watts: float | None
    source: str


@dataclass(frozen=True)
class Utilisation:
    """Model FLOPs utilisation, between 0 and 1, or None with the reason why it isn't known in `note`."""

    value: float | None
    note: str = ""


@functools.cache
def devices() -> tuple[Device, ...]:
    """The table."""
    text = (resources.files("tlm_repro") / "devices.csv").read_text(encoding="utf-8")
    return tuple(
        Device(
            name=row["name"],
            reported=row["reported"],
            peaks={kind: float(row[kind]) * 1e12 for kind in ARITHMETICS if row[kind]},
            watts=float(row["watts"]) if row["watts"] else None,
            source=row["source"],
        )
        for row in csv.DictReader(text.splitlines())
    )


def known_device(product: str) -> Device | None:
    """The row of a product, by the whole name that torch reports or by the table's own name; None: not in the table.

    Never by a part of the name: a slice of a GPU ("… MIG 1g.10gb") or a variant has another peak.
    """
    wanted = product.strip()
    for device in devices():
        if wanted.casefold() == device.name.casefold() or re.fullmatch(device.reported, wanted, re.IGNORECASE):
            return device
    return None


def stated_peak(product: str, arithmetic: Arithmetic) -> float:
    """FLOP/s of a device that a user names. Raises ConfigError, listing the known ones, where the table has none."""
    device = known_device(product)
    if device is None:
        names = ", ".join(device.name for device in devices())
        raise ConfigError(f"unknown device '{product}': choose one of {names}, or state its peak with --peak-tflops")
    if arithmetic not in device.peaks:
        raise ConfigError(
            f"{device.name} has no {arithmetic} peak ({device.source}): choose another device, or state a peak with "
            "--peak-tflops"
        )
    return device.peaks[arithmetic]


def utilisation(
    *, flops_per_token: float, tokens_per_second: float, device: str, processes: int, arithmetic: Arithmetic
) -> Utilisation:
    """Share of the devices' peak that a run's model FLOPs take, of all processes together.

    Args:
        flops_per_token: forward and backward, as `accounting.training_flops` counts them: no recomputation.
        tokens_per_second: of the whole run.
        device: product name, as torch reports it.
        processes: devices that share the run.
    """
    found = known_device(device)
    if found is None:
        return Utilisation(None, f"unknown device '{device}'")
    if arithmetic not in found.peaks:
        return Utilisation(None, f"no {arithmetic} peak of {found.name} in its data sheet")
    value = flops_per_token * tokens_per_second / (found.peaks[arithmetic] * processes)
    if value > 1:
        return Utilisation(
            None, f"{value:.2f} × the {arithmetic} peak of {found.name}: not the device or the precision"
        )
    return Utilisation(value)


@functools.cache
def default_device() -> str:
    """A GPU that no other process got from here and still runs on, else the first; the CPU where there is none.

    Processes that start at the same moment on one machine so spread over its GPUs. A scheduler that hides all GPUs but
    the job's own leaves nothing to choose.
    """
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    found = (torch.cuda.get_device_properties(index).uuid for index in range(torch.cuda.device_count()))
    free = next((index for index, name in enumerate(found) if _claim(str(name))), 0)
    return f"cuda:{free}"


def _claim(name: str) -> bool:
    """Whether this process now holds the lock of that name; the kernel takes it back when the process ends."""
    path = Path(tempfile.gettempdir()) / f"tlm-repro-{os.getuid()}-{name}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)  # never closed: the lock would go with it
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return False
    return True


def device_name(device: "str | torch.device") -> str:
    """The GPU's product name, or the kind of device."""
    import torch

    kind = torch.device(device).type
    return torch.cuda.get_device_name(device) if kind == "cuda" else kind


def arithmetic_of(precision: Literal["fp32", "bf16"]) -> Arithmetic:
    """What this process's matrix products use at a run's precision: torch may be told to do those of fp32 in TF32."""
    import torch

    return "tf32" if precision == "fp32" and torch.get_float32_matmul_precision() != "highest" else precision
