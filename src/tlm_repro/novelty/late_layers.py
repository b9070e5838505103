"""Which layers of a decoder count as late. Without torch."""

import math

LATE = 2 / 3  # of the depth: where the last third of the layers begins


def late_layers(layers: int) -> range:
    """The last third of the layers, without the very last, which the paper's Section 4 leaves out: for 24, 16 … 22.

    Empty for fewer than six layers.
    """
    return range(math.ceil(LATE * layers), layers - 1)
