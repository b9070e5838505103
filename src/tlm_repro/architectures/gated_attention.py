"""Gated Attention (arXiv 2505.06708): attention behind an elementwise sigmoid gate. Shapes: d model width."""

from tlm_repro.architectures.transformer import Transformer
from tlm_repro.spec.run import ModelSpec


class GatedAttention(Transformer):
    title = "Gated Attention"
    mixer = "tlm_repro.models.attention:GatedAttention"

    def mixer_parameters(self, model: ModelSpec) -> int:
        """Attention, and one more d×d map for the output gate (position G1), which costs as every map does."""
        return super().mixer_parameters(model) + model.model_width**2
