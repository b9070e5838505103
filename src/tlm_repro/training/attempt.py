"""Who is training a run, and on what: one small file beside its checkpoints, for those who look on. No torch here."""

import os
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

from tlm_repro.artifacts.files import write_json
from tlm_repro.devices import ARITHMETICS, Arithmetic, arithmetic_of, device_name
from tlm_repro.errors import ArtifactError

ATTEMPT = "attempt.json"
FIELDS: dict[str, type | tuple[type, ...]] = {
    "device": str,
    "processes": int,
    "arithmetic": str,
    "host": str,
    "pid": int,
    "started": (int, float),
}


@dataclass(frozen=True)
class Attempt:
    """One launch of a run: product name of its devices, their number, what matrix products use, and its main process.

    `started` is a Unix time.
    """

    device: str
    processes: int
    arithmetic: Arithmetic
    host: str
    pid: int
    started: float

    @classmethod
    def here(cls, accelerator: Any, precision: Literal["fp32", "bf16"]) -> Self:
        """This process's, with the devices that accelerate gave it."""
        device, processes = device_name(accelerator.device), accelerator.num_processes
        return cls(device, processes, arithmetic_of(precision), platform.node(), os.getpid(), time.time())

    @classmethod
    def from_values(cls, raw: Any) -> Self:
        """Raises ArtifactError when `raw` isn't what `write` writes."""
        fits = isinstance(raw, dict) and all(isinstance(raw.get(name), kind) for name, kind in FIELDS.items())
        if not fits or raw["arithmetic"] not in ARITHMETICS:
            raise ArtifactError(f"an attempt with {', '.join(FIELDS)} is expected, not {str(raw)[:80]}: delete it")
        return cls(**{name: raw[name] for name in FIELDS})

    def write(self, checkpoints: Path) -> None:
        write_json(checkpoints / ATTEMPT, asdict(self))

    def gone(self) -> bool:
        """Whether its main process has ended for sure: only its own machine can tell."""
        if self.host != platform.node():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:  # it is another user's
            return False
        return False
