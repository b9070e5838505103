"""A cache as plain as can be, for mixers alone: what `models.cache.Cache` asks for, without transformers."""

from typing import Any

import torch
from torch import Tensor


class PlainState:
    """The states of one layer, and how many tokens it has seen."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.seen = 0

    def get(self, name: str) -> Any | None:
        return self.values.get(name)

    def put(self, name: str, value: Any) -> None:
        self.values[name] = value

    def advance(self, time: int) -> None:
        self.seen += time


class PlainCache:
    """Keys, values and states by layer. The first layer counts tokens, as it does in transformers' caches."""

    def __init__(self) -> None:
        self.states: dict[int, PlainState] = {}
        self.pairs: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def length(self) -> int:
        return self.state(0).seen

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.state(layer).advance(keys.shape[-2])
        past = self.pairs.get(layer, (keys[..., :0, :], values[..., :0, :]))
        self.pairs[layer] = (torch.cat((past[0], keys), dim=-2), torch.cat((past[1], values), dim=-2))
        return self.pairs[layer]

    def state(self, layer: int) -> PlainState:
        return self.states.setdefault(layer, PlainState())
