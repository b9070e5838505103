"""The attempt record of this process. No torch here."""

import os
import platform
import time
from typing import Any, Literal

from tlm_repro.devices import arithmetic_of, device_name
from tlm_repro.records.attempt import Attempt


def this_attempt(accelerator: Any, precision: Literal["fp32", "bf16"]) -> Attempt:
    """The attempt of this process, with the devices that accelerate gave it."""
    return Attempt(
        device=device_name(accelerator.device),
        processes=accelerator.num_processes,
        arithmetic=arithmetic_of(precision),
        host=platform.node(),
        pid=os.getpid(),
        started=time.time(),
    )
