"""An attempt file: who trains a run, and on what. It lies beside the run's checkpoints for `tlm-repro status`."""

import os
import platform
from typing import Annotated

from pydantic import Field

from tlm_repro.devices import Arithmetic
from tlm_repro.records.base import Positive, Record

ATTEMPT = "attempt.json"


class Attempt(Record):
    """`results/checkpoints/<run>/attempt.json`: one launch of a run.

    Product name of its devices, their number, what matrix products use, and its main process; `started` is a Unix time.
    """

    device: str = Field(min_length=1)
    processes: Positive
    arithmetic: Arithmetic
    host: str
    pid: Positive
    started: Annotated[float, Field(ge=0)]

    def has_ended(self) -> bool:
        """Whether its main process has ended for certain: only its own machine can tell."""
        if self.host != platform.node():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:  # it is another user's
            return False
        return False
