"""Mixers with a state, in batches whose rows don't all hold the same number of tokens.

Chunks, segments and convolutions count from a row's first real token. So rows of a padded batch are taken one by one,
and a row's result is that of the row alone. Batches without padding, all of training among them, go through whole.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from tlm_repro.models.cache import StateLayer, map_tensors, tensors
from tlm_repro.models.layers import Context


class State(Protocol):
    """Tensors, batch first; `count` (B,) holds the tokens seen by each row."""

    @property
    def count(self) -> Tensor: ...


Mix = Callable[[Tensor, Tensor, Any, bool], tuple[Tensor, Any]]


def carried(
    mix: Mix, initial: Callable[[Tensor], State], hidden: Tensor, context: Context, layer: StateLayer | None, name: str
) -> Tensor:
    """One forward pass of a mixer, its state taken from `layer` under `name` and left there.

    Args:
        mix: (hidden (B, T, D), rotary (1 or B, T, 1, E/2), state, keep) → (output (B, T, D), state). No state starts
            anew; the new one is None unless `keep`.
        initial: hidden → the state before the first token, as `mix` would return it.
    """
    state, keep = (layer.get(name), True) if layer is not None else (None, False)
    padding = context.padding
    if padding is not None and not bool(padding.all()):
        real = padding
    elif hidden.shape[1] > 1 and state is not None and not uniform(state.count):
        real = hidden.new_ones(hidden.shape[:2], dtype=torch.bool)
    else:
        real = None
    if real is None:
        output, state = mix(hidden, context.rotary, state, keep)
    else:
        output, state = row_by_row(mix, hidden, context.rotary, real, initial(hidden) if state is None else state)
    if layer is not None:
        layer.put(name, state)
    return output


def uniform(count: Tensor) -> bool:
    return bool((count == count[0]).all())


def row_by_row(mix: Mix, hidden: Tensor, rotary: Tensor, real: Tensor, state: Any) -> tuple[Tensor, Any]:
    """Each row's real tokens (True in `real`, (B, T)) on their own; outputs at padding are 0."""
    output, states = torch.zeros_like(hidden), []
    for row, kept in enumerate(real):
        alone = map_tensors(rows(row), state)
        if kept.any():
            turns = rotary[row if len(rotary) > 1 else 0, kept][None]
            mixed, alone = mix(hidden[row, kept][None], turns, alone, True)
            output = output.index_put((torch.tensor(row, device=kept.device), kept.nonzero()[:, 0]), mixed[0])
        states.append(alone)
    return output, joined(states)


def rows(row: int) -> Callable[[Tensor], Tensor]:
    """Takes one row of a tensor, as a batch of one."""
    return lambda tensor: tensor[row : row + 1]


def joined(states: list[Any]) -> Any:
    """States of single rows as one of all rows."""
    columns = iter([torch.cat(column) for column in zip(*(tensors(state) for state in states), strict=True)])
    return map_tensors(lambda _: next(columns), states[0])
