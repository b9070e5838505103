"""What a mixer and a feed-forward block are: their interface, and what the layers of one forward pass share.

An architecture's modules derive from `Mixer` and `FeedForward`. What training, compilation and caching must know of
them beyond their parameters is declared in `Block`.

Shapes: B batch, T time, D model width, H heads, E head width, F feed-forward width.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor, nn

from tlm_repro.models.cache import Cache


class ResidualProjection(nn.Linear):
    """A map without bias that ends a residual branch; the decoder initialises it with a smaller deviation."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)


def no_mask() -> None:
    """Plain causal attention needs no mask."""


@dataclass(frozen=True)
class Context:
    """What one forward pass knows of its tokens, the same for every layer.

    rotary: rotation of each position, complex (1 or B, T, 1, E/2).
    padding: (B, T), True at real tokens, for mixers with a state; None: all are real.
    make_mask: makes `mask`. Its size grows with the number of keys, and not every mixer reads it.
    """

    rotary: Tensor
    padding: Tensor | None = None
    make_mask: Callable[[], Tensor | None] = no_mask
    _masks: list[Tensor] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def mask(self) -> Tensor | None:
        """(1 or B, 1, T, keys), True where a query may see a key; None: plain causal attention."""
        # Stored for the other layers. Not a cached_property: torch.compile can't enter the lock of Python 3.11's.
        if self._masks:
            return self._masks[0]
        mask = self.make_mask()
        if mask is not None:
            self._masks.append(mask)
        return mask


class Block(nn.Module):
    """A module of a layer, with what training and caching must know of it. Set these in the class or the constructor.

    data_dependent: its control flow depends on values of tensors. torch.compile leaves the half of the layer that
        contains it as it is.
    keeps_state: with a cache, it keeps a state of its own there, beside or in place of attention's keys and values.
    update_period: training steps that make one optimiser step of its parameters; None: as the block that contains it,
        and 1 where none says otherwise.
    """

    data_dependent: bool = False
    keeps_state: bool = False
    update_period: int | None = None

    def initialise(self) -> None:
        """Initialises parameters that this module holds itself. The decoder calls it after those of its children.

        `nn.Linear`, `nn.Embedding` and `nn.RMSNorm` are initialised by the decoder and need nothing here.
        """


class Mixer(Block, ABC):
    """A token mixer, built as `Class(model, index)` for layer `index`."""

    @abstractmethod
    def forward(self, hidden: Tensor, context: Context, cache: Cache | None = None) -> Tensor:
        """Maps the layer's normed input (B, T, D) to what the layer adds to the residual, (B, T, D).

        With a cache, the tokens continue those of earlier calls: keys, values and states are read from the cache, and
        the new ones are left there.
        """


class FeedForward(Block, ABC):
    """A feed-forward block, built as `Class(model, index)` for layer `index`, whose width isn't 0."""

    @abstractmethod
    def forward(self, hidden: Tensor, residual: Tensor, context: Context, cache: Cache | None = None) -> Tensor:
        """Maps `hidden`, the layer's norm of `residual`, to what the layer adds to it; (B, T, D) each."""


def blocks(module: nn.Module) -> list[Block]:
    """The blocks in a module, itself included, outer ones first."""
    return [each for each in module.modules() if isinstance(each, Block)]


def any_data_dependent(module: nn.Module) -> bool:
    """Whether the control flow of any block in it depends on values."""
    return any(block.data_dependent for block in blocks(module))
