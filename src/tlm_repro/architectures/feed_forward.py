"""The costs of a SwiGLU feed-forward block, which all architectures but Hope-attention have. Shape: d model width."""

from tlm_repro.spec.run import ModelSpec


def swiglu_parameters(model: ModelSpec, width: int) -> int:
    """Gate, up and down maps, no bias: 3·d·width."""
    return 3 * model.model_width * width


def swiglu_flops(model: ModelSpec, width: int, time: int) -> int:
    """Every weight takes part in one multiply-add a token."""
    return 2 * time * swiglu_parameters(model, width)


def no_sums(_model: ModelSpec, _width: int) -> int:
    """Every parameter takes a step at every step of the run: no gradient waits for one."""
    return 0
