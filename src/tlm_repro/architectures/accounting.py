"""Parameters and FLOPs of a decoder in closed form, from its spec alone.

FLOPs are those of matrix products, two a multiply-add; attention counts the full T×T scores, masked half included, as
torch's counter does. Norms, activations, softmax and the embedding look-up are left out. A backward pass costs twice
its forward pass.
"""

from dataclasses import dataclass

from tlm_repro.architectures.registry import architecture
from tlm_repro.errors import ConfigError
from tlm_repro.spec.run import ModelSpec


@dataclass(frozen=True)
class ParameterCount:
    """Trainable parameters. `mixer` and `mlp` have one entry a layer; `head` is 0 where it is tied to the embedding."""

    embedding: int
    mixer: tuple[int, ...]
    mlp: tuple[int, ...]
    norm: int
    head: int

    @property
    def total(self) -> int:
        return self.embedding + sum(self.mixer) + sum(self.mlp) + self.norm + self.head


def parameters(model: ModelSpec) -> ParameterCount:
    """The parameters of each part. Raises ConfigError when the widths don't match the layers."""
    entry = architecture(model.architecture)
    widths = _widths(model)
    table = model.vocab_size * model.model_width
    norms = 1 + model.layers + sum(width > 0 for width in widths)
    return ParameterCount(
        embedding=table,
        mixer=(entry.mixer_parameters(model),) * model.layers,
        mlp=tuple(entry.feed_forward_parameters(model, width) if width else 0 for width in widths),
        norm=norms * model.model_width,
        head=0 if model.tied_embeddings else table,
    )


def forward_flops(model: ModelSpec, time: int) -> int:
    """FLOPs of one forward pass of one sequence of `time` tokens, logits of every position included."""
    entry = architecture(model.architecture)
    mixers = model.layers * entry.mixer_flops(model, time)
    mlps = sum(entry.feed_forward_flops(model, width, time) for width in _widths(model) if width)
    head = 2 * time * model.model_width * model.vocab_size
    return mixers + mlps + head


def training_flops(model: ModelSpec, tokens: int) -> int:
    """FLOPs of training on `tokens` tokens in sequences of the spec's length: three forward passes."""
    return 3 * forward_flops(model, model.sequence_length) * tokens // model.sequence_length


def gradient_sums(model: ModelSpec) -> int:
    """Parameters for which the optimiser holds a sum of gradients beside its moments."""
    entry = architecture(model.architecture)
    return sum(entry.gradient_sums(model, width) for width in _widths(model) if width)


def _widths(model: ModelSpec) -> tuple[int, ...]:
    if len(model.intermediate_sizes) != model.layers:
        raise ConfigError(
            f"{len(model.intermediate_sizes)} MLP widths for {model.layers} layers: "
            "give intermediate_sizes one width a layer"
        )
    return model.intermediate_sizes
