"""One number of one run, with what is known of its uncertainty."""

import math
from dataclasses import dataclass

from tlm_repro.statistics.blocks import Blocks


@dataclass(frozen=True)
class Measurement:
    """One number of one run. `resolution` is half the last printed digit, for numbers that are only known rounded.

    `items` is how many items or samples it is over, 0 where that isn't known; `blocks` is a validation loss by blocks
    of its text, None where the file has none.
    """

    value: float
    stderr: float = math.nan
    resolution: float = math.nan
    items: int = 0
    blocks: Blocks | None = None
