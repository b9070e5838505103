"""Rotary positions beyond the training length, by the rules of transformers' own `ROPE_INIT_FUNCTIONS`.

The rotations are changed once for a length and not while a sequence grows, as transformers' dynamic rule does: keys in
the cache and new ones turn alike, and an answer doesn't depend on what it is batched with.
"""

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch.nn import Embedding

from tlm_repro.errors import EvaluationError
from tlm_repro.spec.evaluation import RopeScaling

SPARE_POSITIONS = 8  # OPT's table has two rows more than positions
RULES = {"linear": "linear", "ntk": "dynamic", "yarn": "yarn"}


def training_length(model: Any) -> int | None:
    """Tokens of a training sequence, as the model's configuration says."""
    return getattr(model.config, "max_position_embeddings", None)


def check_length(model: Any, longest: int, scaling: RopeScaling) -> None:
    """Raises EvaluationError where the model has no positions for `longest` tokens, or no rotations to scale."""
    known, rotary = training_length(model), has_rotary(model)
    if known is not None and longest > known and learned_positions(model, known):
        raise EvaluationError(
            f"the model has learned positions for {known} tokens, {longest} are asked for: give lengths (niah) and a "
            f"max_length (zero_shot) up to {known}"
        )
    if scaling.kind == "none":
        return
    if known is None:
        raise EvaluationError(
            "the model's configuration names no training length (max_position_embeddings): "
            "rope_scaling needs one; set kind: none"
        )
    if not rotary and not is_ours(model):
        raise EvaluationError(f"the model has no rotary positions to scale by '{scaling.kind}': set kind: none")
    kind = (getattr(model.config, "rope_parameters", None) or {}).get("rope_type", "default")
    if kind != "default":
        raise EvaluationError(
            f"the model scales its rotary positions itself (by '{kind}'): set rope_scaling kind: none"
        )


def factor(model: Any, scaling: RopeScaling, length: int) -> float:
    """What the rule is given: the configured factor, or how much longer than in training a sequence is, at least 1."""
    if scaling.factor is not None:
        return scaling.factor
    return max(length / (training_length(model) or length), 1.0)


@contextmanager
def scaled(model: Any, scaling: RopeScaling, length: int) -> Iterator[dict[str, Any]]:
    """In the block the model turns its queries and keys for sequences of `length` tokens; afterwards as before.

    Yields:
        what was done: the rule, its factor, and whether it was applied. A model of ours whose layers take no positions
        (Titans as memory alone) reads any length, so there it has no effect.
    """
    used = factor(model, scaling, length)
    if scaling.kind == "none":
        yield {"kind": "none"}
        return
    if not has_rotary(model):
        yield {"kind": scaling.kind, "factor": used, "applied": False}
        return
    frequencies, magnitude = rule(model, scaling, length)
    with ExitStack() as stack:
        if is_ours(model):
            stack.enter_context(model.model.rotary.changed(frequencies.tolist(), magnitude))
        else:
            for module in rotary_modules(model):
                stack.enter_context(changed(module, frequencies, magnitude))
        yield {"kind": scaling.kind, "factor": used, "applied": True}


def rule(model: Any, scaling: RopeScaling, length: int) -> tuple[Any, float]:
    """Inverse frequencies (E/2,), and what sines and cosines are multiplied by."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    known, used = training_length(model), factor(model, scaling, length)
    if is_ours(model):
        config = LlamaConfig(
            hidden_size=model.config.hidden_size,
            num_attention_heads=model.config.num_attention_heads,
            max_position_embeddings=known,
            rope_parameters={"rope_type": "default", "rope_theta": float(model.config.rope_theta)},
        )
    else:
        config = copy.deepcopy(model.config)
    if scaling.kind == "ntk" and scaling.factor is None:
        used = 1.0  # its rule has the length in it beside the factor
    config.rope_parameters = {
        **config.rope_parameters,
        "rope_type": RULES[scaling.kind],
        "factor": used,
        "original_max_position_embeddings": known,
    }
    return ROPE_INIT_FUNCTIONS[RULES[scaling.kind]](config, None, seq_len=length)


@contextmanager
def changed(module: Any, frequencies: Any, magnitude: float) -> Iterator[None]:
    """One rotary module of transformers with other rotations, in the block."""
    before = module.inv_freq, module.attention_scaling
    module.inv_freq, module.attention_scaling = frequencies.to(module.inv_freq), magnitude
    try:
        yield
    finally:
        module.inv_freq, module.attention_scaling = before


def learned_positions(model: Any, known: int) -> bool:
    """Whether a table of embeddings beside the tokens' has a row a position, a few more at most."""
    words = model.get_input_embeddings()
    tables = [module for module in model.modules() if isinstance(module, Embedding) and module is not words]
    return any(known <= table.num_embeddings <= known + SPARE_POSITIONS for table in tables)


def rotary_modules(model: Any) -> list[Any]:
    """The modules of a Hugging Face model that make rotations."""
    return [
        module for module in model.modules() if hasattr(module, "inv_freq") and hasattr(module, "attention_scaling")
    ]


def is_ours(model: Any) -> bool:
    from tlm_repro.models.configuration import TLMConfig

    return isinstance(model.config, TLMConfig)


def has_rotary(model: Any) -> bool:
    """Whether any layer turns its queries and keys by position."""
    if is_ours(model):
        from tlm_repro.architectures.registry import architecture

        return architecture(model.config.architecture).rotary(model.config.options)
    return bool(rotary_modules(model))
