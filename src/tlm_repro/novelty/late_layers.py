"""The late layers of a decoder. Doesn't import torch."""

import math

LATE = 2 / 3  # depth at which the last third of the layers begins


def late_layers(layers: int) -> range:
    """The last third of the layers without the last one, as in the paper's Section 4: 16 … 22 of 24.

    Empty for fewer than six layers.
    """
    return range(math.ceil(LATE * layers), layers - 1)
