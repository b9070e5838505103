"""What a decoder reads from a cache and writes to it. `hugging_face.cache` implements it on caches of transformers.

Shapes as in `mixer`.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from torch import Tensor


class LayerState(Protocol):
    """The states of one layer, by name.

    A state is a tensor, or tuples, lists, dicts and dataclasses of tensors, nested at will; the first dimension of each
    tensor is the batch.
    """

    def get(self, name: str) -> Any | None:
        """The state under this name; None before the first `put`."""

    def put(self, name: str, value: Any) -> None:
        """Stores `value` under this name, in place of what was there."""

    def advance(self, time: int) -> None:
        """Counts `time` tokens as seen: once a forward pass, by a mixer that appends no keys and values."""


class Cache(Protocol):
    """What a decoder keeps of the tokens of earlier calls."""

    @property
    def length(self) -> int:
        """Tokens seen in earlier calls. Raises ConfigError for a cache that can't grow."""

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Appends keys and values (B, H, T, E) of one layer, and returns those of all tokens."""

    def state(self, layer: int) -> LayerState:
        """The states of one layer. Raises ConfigError where the cache has no place for them."""


def past_length(cache: Cache | None) -> int:
    """Tokens that the cache has seen; 0 without one."""
    return 0 if cache is None else cache.length


def layer_state(cache: Cache | None, layer: int) -> LayerState | None:
    """The states of one layer; None without a cache."""
    return None if cache is None else cache.state(layer)


def map_tensors(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """A copy of `value` with `change` applied to each tensor in its tuples, lists, dicts and dataclasses."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: map_tensors(change, part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        parts = [map_tensors(change, part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [part.name for part in dataclasses.fields(value)]
        return dataclasses.replace(value, **{name: map_tensors(change, getattr(value, name)) for name in names})
    return value


def tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in `value`, in the order in which `map_tensors` meets them."""
    seen: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        seen.append(tensor)
        return tensor

    map_tensors(note, value)
    return iter(seen)
