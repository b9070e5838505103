"""What a layer with a state keeps between calls, as a layer of transformers' caches, and these caches as the core's.

Importing this module adds the layer's type to transformers' list: from then on `DynamicCache(config=config)`, and so
`generate`, build it for every layer of an architecture that keeps a state. Shapes as in `mixer`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from tlm_repro.errors import ConfigError
from tlm_repro.models.cache import map_tensors, tensors
from tlm_repro.models.hugging_face.configuration import STATE_LAYER


class StateLayer(DynamicLayer):
    """Keys and values, as every attention layer has them, and the layer's states: a `LayerState`.

    What transformers does to a cache (beams, several answers, offloading) is done to every tensor of a state. A state
    can't be rolled back: the cache isn't croppable, which rules out assisted decoding.
    """

    _layer_type = STATE_LAYER
    is_croppable = False
    keys: Tensor | None
    values: Tensor | None

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.states: dict[str, Any] = {}
        self.seen = 0
        self.device: torch.device | None = None

    def get(self, name: str) -> Any | None:
        """The state under this name, on the device it came from; None before the first `put`."""
        # An offloading cache prefetches in `update` alone, which not every mixer calls.
        return map_tensors(self._return, self.states.get(name))

    def put(self, name: str, value: Any) -> None:
        """Stores `value` under this name, in place of what was there."""
        if self.device is None:
            self.device = next((tensor.device for tensor in tensors(value) if tensor.is_floating_point()), None)
        self.states[name] = value

    def advance(self, time: int) -> None:
        """Counts `time` tokens as seen: once a forward pass, by a mixer that doesn't call `update`."""
        self.seen += time

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Appends keys and values (B, H, T, E), counts their tokens as seen and returns those of all tokens."""
        self.advance(key_states.shape[-2])
        return super().update(key_states, value_states, *args, **kwargs)

    def get_seq_length(self) -> int:
        """Tokens seen in all calls, including tokens that left no keys here."""
        return self.seen

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row i becomes what row `beam_idx[i]` was."""
        self._change(lambda tensor: tensor.index_select(0, beam_idx.to(tensor.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeats each row `repeats` times, next to each other."""
        self._change(lambda tensor: tensor.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keeps the rows `indices` only, given by number or as a mask (B,)."""
        self._change(lambda tensor: tensor[indices.to(tensor.device)])

    def offload(self) -> None:
        """Moves floating-point tensors to the CPU."""
        self._change(lambda tensor: tensor.to("cpu", non_blocking=True) if tensor.is_floating_point() else tensor)

    def prefetch(self) -> None:
        """Moves everything back to its device."""
        self._change(self._return)

    def reset(self) -> None:
        """Empties the layer."""
        super().reset()
        self.states.clear()
        self.seen = 0

    def crop(self, tokens_to_remove: int) -> None:
        """Raises ConfigError unless there is nothing to remove."""
        if tokens_to_remove != 0:
            raise ConfigError(
                f"{abs(tokens_to_remove)} tokens were to be taken out of a memory, which can't be undone: generate "
                "without an assistant model or prompt lookup, or start again with a new cache"
            )

    def _change(self, change: Callable[[Tensor], Tensor]) -> None:
        if self.keys is not None and self.values is not None and self.keys.numel() > 0:
            self.keys, self.values = change(self.keys), change(self.values)
        self.states = map_tensors(change, self.states)

    def _return(self, tensor: Tensor) -> Tensor:
        """The tensor on the device it came from. Counts and masks stay: reading a count on a GPU stalls every token."""
        return tensor.to(self.device, non_blocking=True) if tensor.is_floating_point() else tensor


@dataclass(frozen=True)
class CacheAdapter:
    """A cache of transformers as the decoder reads and writes it: a `models.cache.Cache`."""

    cache: Cache

    @property
    def length(self) -> int:
        """Tokens that the cache has seen.

        Raises:
            ConfigError: the cache has a fixed size.
        """
        # `max` over no layers fails in transformers: that is a DynamicCache made without a configuration.
        if self.cache.layers and self.cache.get_max_length() >= 0:
            raise ConfigError(
                f"a {type(self.cache).__name__} of {self.cache.get_max_length()} tokens: this decoder takes caches "
                "that grow, pass DynamicCache(config=model.config) or leave cache_implementation out"
            )
        return int(self.cache.get_seq_length())

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Appends keys and values (B, H, T, E) of one layer, and returns those of all tokens."""
        return self.cache.update(keys, values, layer)

    def state(self, layer: int) -> StateLayer:
        """Where a layer keeps its states.

        Raises:
            ConfigError: the cache was made for another architecture, or without a configuration.
        """
        place = self.cache.layers[layer] if layer < len(self.cache.layers) else None
        if not isinstance(place, StateLayer):
            raise ConfigError(
                f"layer {layer} keeps a state, but its part of the {type(self.cache).__name__} is "
                f"{'missing' if place is None else f'a {type(place).__name__}'}: pass DynamicCache(config=model.config)"
            )
        return place
