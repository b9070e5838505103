"""What an architecture declares: title, options, costs of one layer in closed form, and where its modules live.

No torch here: the configuration and the cost model read it too. FLOPs are those of matrix products and convolutions,
two a multiply-add, of one forward pass of one sequence; they are what torch's own counter counts.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Self

from tlm_repro.spec.base import Spec
from tlm_repro.spec.run import ModelSpec


def split_lengths(time: int, length: int) -> list[int]:
    """`time` tokens in pieces of `length`, the last one shorter where they don't divide."""
    whole, rest = divmod(time, length)
    return [length] * whole + ([rest] if rest else [])


class Options(Spec):
    """The options of an architecture, none by default: a subclass adds fields."""

    @classmethod
    def of(cls, model: ModelSpec) -> Self:
        """The options that `model` holds as plain values. Raises ConfigError for values that don't fit."""
        return cls.from_values(model.mixer, f"options of architecture '{model.architecture}'")


class Architecture(ABC):
    """One architecture: a subclass gives its title and its mixer with its costs, and overrides what differs.

    `mixer` and `feed_forward` are import paths, `module:name`, of what is called as `name(model, index)` and gives a
    `models.mixer.Mixer` and a `models.mixer.FeedForward`. Costs are those of one layer. A width of 0 leaves out the
    feed-forward block, so no method is called with one.
    """

    title: ClassVar[str]
    options: ClassVar[type[Options]] = Options
    mixer: ClassVar[str] = "tlm_repro.models.attention:CausalAttention"
    feed_forward: ClassVar[str] = "tlm_repro.models.feed_forward:SwiGLU"

    @abstractmethod
    def mixer_parameters(self, model: ModelSpec) -> int:
        """Trainable parameters of the mixer."""

    @abstractmethod
    def mixer_flops(self, model: ModelSpec, time: int) -> int:
        """FLOPs of the mixer over one sequence of `time` tokens."""

    def feed_forward_parameters(self, model: ModelSpec, width: int) -> int:
        """Trainable parameters of the feed-forward block; those of a SwiGLU by default: three maps, no bias."""
        return 3 * model.model_width * width

    def feed_forward_flops(self, model: ModelSpec, width: int, time: int) -> int:
        """FLOPs of the feed-forward block over `time` tokens; by default one multiply-add a weight and token."""
        return 2 * time * self.feed_forward_parameters(model, width)

    def gradient_sums(self, model: ModelSpec, width: int) -> int:  # noqa: ARG002
        """Parameters whose gradients the optimiser sums over several steps; by default all step at every step."""
        return 0

    def keeps_state(self, model: ModelSpec) -> bool:  # noqa: ARG002
        """Whether a block keeps more in a cache than attention's keys and values."""
        return False

    def uses_positions(self, model: ModelSpec) -> bool:  # noqa: ARG002
        """Whether the mixer rotates queries and keys by position."""
        return True
