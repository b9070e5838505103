"""What weight files hold by their headers, against what a configuration promises."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from safetensors import safe_open

from tlm_repro.errors import ArtifactError

SLACK = 2**26  # elements: buffers such as causal masks, which aren't stored


@dataclass(frozen=True)
class Stored:
    """The number of tensors in weight files and of their elements."""

    tensors: int
    elements: int


def stored_in(files: Sequence[Path]) -> Stored:
    """What safetensors files hold; no tensor is read. Raises SafetensorError or OSError if a header is damaged."""
    tensors = elements = 0
    for path in files:
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            tensors += len(names)
            elements += sum(prod(file.get_slice(name).get_shape()) for name in names)
    return Stored(tensors, elements)


def check_promise(config: Path, promised: int, stored: int) -> None:
    """Raises ArtifactError if a configuration describes a model far larger than its stored weights.

    Twice the elements are allowed: a head may share the embedding's weights, and missing tensors are named elsewhere.
    """
    if promised > 2 * stored + SLACK:
        raise ArtifactError(
            f"{config} describes a model of {promised:,} numbers, its weight files hold {stored:,}. They must fit each "
            "other. Fetch or save the model anew"
        )
