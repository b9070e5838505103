"""Small decoders of every shipped architecture and variant."""

from typing import Any

from tlm_repro.spec.run import ModelSpec

# Chunks, windows and segments that 20 tokens cross several times.
TITANS = {"memory_head_dim": 8, "expansion": 2, "chunk": 4, "window": 6, "persistent": 3, "segment": 8}
SHIPPED_OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "transformer": ("transformer", {}),
    "gated_attention": ("gated_attention", {}),
    "titans mag": ("titans", TITANS),
    "titans lmm": ("titans", {**TITANS, "variant": "lmm"}),
    "titans mac": ("titans", {**TITANS, "variant": "mac"}),
    "titans mag linear": ("titans", {**TITANS, "depth": 1}),
    "hope_attention": ("hope_attention", {"periods": (1, 2)}),
    "hope_attention in context": ("hope_attention", {"update": "in_context", "periods": (3, 8, 8, 0)}),
}


def small_spec(architecture: str = "transformer", **other: Any) -> ModelSpec:
    """Three layers of width 32, the middle one without an MLP; a wide initialisation makes an error visible."""
    shape: dict[str, Any] = {
        "layers": 3,
        "model_width": 32,
        "heads": 4,
        "intermediate_sizes": (48, 0, 16),
        "vocab_size": 61,
        "sequence_length": 64,
        "tied_embeddings": False,
        "rope_theta": 10000.0,
        "norm_eps": 1e-5,
        "initializer_range": 0.2,
    }
    return ModelSpec(architecture=architecture, **(shape | other))
