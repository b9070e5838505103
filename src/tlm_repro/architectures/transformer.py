"""The Transformer: causal softmax attention and a SwiGLU. Shapes: d model width, T time."""

from tlm_repro.architectures.base import Architecture
from tlm_repro.spec.run import ModelSpec


def attention_parameters(model: ModelSpec) -> int:
    """Query, key, value and output projections, no bias: 4·d²."""
    return 4 * model.model_width**2


def attention_flops(model: ModelSpec, time: int) -> int:
    """Four d×d projections and the full T×T scores and mixture, two FLOPs a multiply-add."""
    return 2 * time * attention_parameters(model) + 4 * time * time * model.model_width


ARCHITECTURE = Architecture(
    title="Transformer",
    mixer_parameters=attention_parameters,
    mixer_flops=attention_flops,
)
