"""The Transformer: causal softmax attention and a SwiGLU. Shapes: d model width, T time."""

from tlm_repro.architectures.base import Architecture
from tlm_repro.spec.run import ModelSpec


class Transformer(Architecture):
    title = "Transformer"

    def mixer_parameters(self, model: ModelSpec) -> int:
        """Query, key, value and output projections, no bias: 4·d²."""
        return 4 * model.model_width**2

    def mixer_flops(self, model: ModelSpec, time: int) -> int:
        """The projections, and the full T×T scores and mixture."""
        return 2 * time * self.mixer_parameters(model) + 4 * time * time * model.model_width
