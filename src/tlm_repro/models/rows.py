"""Mixers with a state, in batches whose rows don't all hold the same number of tokens.

Chunks, segments and convolutions count from a row's first real token. Rows of a padded batch are therefore mixed one by
one, and a row's result is that of the row alone. Batches without padding, as in training, are mixed whole.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from tlm_repro.models.cache import LayerState, map_tensors, tensors
from tlm_repro.models.mixer import Context


class State(Protocol):
    """Tensors, batch first; `count` (B,) holds the tokens seen by each row."""

    @property
    def count(self) -> Tensor: ...


Mix = Callable[[Tensor, Tensor, Any, bool], tuple[Tensor, Any]]


def mix_with_state(
    mix: Mix, initial: Callable[[Tensor], State], hidden: Tensor, context: Context, states: LayerState | None, name: str
) -> Tensor:
    """One forward pass of a mixer. With `states`, its state is read from there and the new one stored, under `name`.

    Args:
        mix: (hidden (B, T, D), rotary (1 or B, T, 1, E/2), state, keep) → (output (B, T, D), state). A state of None
            is the one before the first token; the new state is None unless `keep`.
        initial: hidden → the state before the first token, as `mix` would return it.
    """
    state, keep = (states.get(name), True) if states is not None else (None, False)
    padding = context.padding
    if padding is not None and not bool(padding.all()):
        real = padding
    elif hidden.shape[1] > 1 and state is not None and not is_uniform(state.count):
        real = hidden.new_ones(hidden.shape[:2], dtype=torch.bool)
    else:
        real = None
    if real is None:
        output, state = mix(hidden, context.rotary, state, keep)
    else:
        output, state = mix_row_by_row(mix, hidden, context.rotary, real, initial(hidden) if state is None else state)
    if states is not None:
        states.put(name, state)
    return output


def is_uniform(count: Tensor) -> bool:
    """Whether all rows have seen equally many tokens."""
    return bool((count == count[0]).all())


def mix_row_by_row(mix: Mix, hidden: Tensor, rotary: Tensor, real: Tensor, state: Any) -> tuple[Tensor, Any]:
    """Mixes each row's real tokens (True in `real`, (B, T)) on their own; outputs at padding are 0."""
    output, states = torch.zeros_like(hidden), []
    for row, kept in enumerate(real):
        row_state = map_tensors(select_row(row), state)
        if kept.any():
            rotations = rotary[row if len(rotary) > 1 else 0, kept][None]
            mixed, row_state = mix(hidden[row, kept][None], rotations, row_state, True)
            output = output.index_put((torch.tensor(row, device=kept.device), kept.nonzero()[:, 0]), mixed[0])
        states.append(row_state)
    return output, join_rows(states)


def select_row(row: int) -> Callable[[Tensor], Tensor]:
    """A function that takes one row of a tensor, as a batch of one."""
    return lambda tensor: tensor[row : row + 1]


def join_rows(states: list[Any]) -> Any:
    """States of single rows as one state of all rows."""
    columns = iter([torch.cat(column) for column in zip(*(tensors(state) for state in states), strict=True)])
    return map_tensors(lambda _: next(columns), states[0])
