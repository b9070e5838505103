"""Gated Attention (arXiv 2505.06708): attention behind an elementwise sigmoid gate. Shapes: d model width, T time."""

from tlm_repro.architectures.base import Architecture
from tlm_repro.architectures.transformer import attention_flops, attention_parameters
from tlm_repro.spec.run import ModelSpec


def gated_attention_parameters(model: ModelSpec) -> int:
    """Attention and one more d×d map, for the output gate (arXiv 2505.06708, position G1)."""
    return attention_parameters(model) + model.model_width**2


def gated_attention_flops(model: ModelSpec, time: int) -> int:
    return attention_flops(model, time) + 2 * time * model.model_width**2


ARCHITECTURE = Architecture(
    title="Gated Attention",
    mixer_parameters=gated_attention_parameters,
    mixer_flops=gated_attention_flops,
    mixer="tlm_repro.models.attention:GatedAttention",
)
