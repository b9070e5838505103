"""Rotary positions beyond the training length, by the rules in transformers' `ROPE_INIT_FUNCTIONS`.

Rotations are set once for a length. They don't change while a sequence grows, as they do in transformers' dynamic rule:
cached and new keys are rotated in the same way, and an answer doesn't depend on its batch.
"""

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch.nn import Embedding

from tlm_repro.errors import EvaluationError
from tlm_repro.spec.evaluation import RopeScaling

SPARE_POSITIONS = 8  # a table of positions can have more rows than positions: OPT's has two more
RULES = {"linear": "linear", "ntk": "dynamic", "yarn": "yarn"}


def training_length(model: Any) -> int | None:
    """The length of training sequences in tokens, from the model's configuration."""
    return getattr(model.config, "max_position_embeddings", None)


def check_length(model: Any, longest: int, scaling: RopeScaling) -> None:
    """Raises EvaluationError if the model has no positions for `longest` tokens, or no rotations to scale."""
    trained, rotary = training_length(model), has_rotary(model)
    if trained is not None and longest > trained and has_learned_positions(model, trained):
        raise EvaluationError(
            f"the model has learned positions for {trained} tokens, but {longest} are needed: set lengths (niah) and "
            f"max_length (zero_shot) to at most {trained}"
        )
    if scaling.kind == "none":
        return
    if trained is None:
        raise EvaluationError(
            "the model's configuration has no training length (max_position_embeddings), which rope_scaling needs: "
            "set kind: none"
        )
    if not rotary and not is_ours(model):
        raise EvaluationError(f"the model has no rotary positions to scale by '{scaling.kind}': set kind: none")
    kind = (getattr(model.config, "rope_parameters", None) or {}).get("rope_type", "default")
    if kind != "default":
        raise EvaluationError(
            f"the model already scales its rotary positions (by '{kind}'): set rope_scaling kind: none"
        )


def factor(model: Any, scaling: RopeScaling, length: int) -> float:
    """The rule's factor: the configured one, or length ÷ training length, but at least 1."""
    if scaling.factor is not None:
        return scaling.factor
    return max(length / (training_length(model) or length), 1.0)


@contextmanager
def scaled(model: Any, scaling: RopeScaling, length: int) -> Iterator[dict[str, Any]]:
    """In the block, scales the model's rotary positions for sequences of `length` tokens.

    Yields:
        the rule, its factor, and whether it was applied. It has no effect on a model of this project without positions
        (Titans as memory alone), which reads any length.
    """
    rule_factor = factor(model, scaling, length)
    if scaling.kind == "none":
        yield {"kind": "none"}
        return
    if not has_rotary(model):
        yield {"kind": scaling.kind, "factor": rule_factor, "applied": False}
        return
    frequencies, magnitude = scaled_frequencies(model, scaling, length)
    with ExitStack() as stack:
        if is_ours(model):
            stack.enter_context(model.model.rotary.replaced(frequencies.tolist(), magnitude))
        else:
            for module in rotary_modules(model):
                stack.enter_context(with_frequencies(module, frequencies, magnitude))
        yield {"kind": scaling.kind, "factor": rule_factor, "applied": True}


def scaled_frequencies(model: Any, scaling: RopeScaling, length: int) -> tuple[Any, float]:
    """Inverse frequencies (E/2,), and the factor of sines and cosines."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    trained, rule_factor = training_length(model), factor(model, scaling, length)
    if is_ours(model):
        config = LlamaConfig(
            hidden_size=model.config.hidden_size,
            num_attention_heads=model.config.num_attention_heads,
            max_position_embeddings=trained,
            rope_parameters={"rope_type": "default", "rope_theta": float(model.config.rope_theta)},
        )
    else:
        config = copy.deepcopy(model.config)
    if scaling.kind == "ntk" and scaling.factor is None:
        rule_factor = 1.0  # this rule takes the length as well
    config.rope_parameters = {
        **config.rope_parameters,
        "rope_type": RULES[scaling.kind],
        "factor": rule_factor,
        "original_max_position_embeddings": trained,
    }
    return ROPE_INIT_FUNCTIONS[RULES[scaling.kind]](config, None, seq_len=length)


@contextmanager
def with_frequencies(module: Any, frequencies: Any, magnitude: float) -> Iterator[None]:
    """In the block, a rotary module of transformers has other frequencies."""
    before = module.inv_freq, module.attention_scaling
    module.inv_freq, module.attention_scaling = frequencies.to(module.inv_freq), magnitude
    try:
        yield
    finally:
        module.inv_freq, module.attention_scaling = before


def has_learned_positions(model: Any, positions: int) -> bool:
    """Whether the model has a table of embeddings, other than the tokens', with a row for each position."""
    words = model.get_input_embeddings()
    tables = [module for module in model.modules() if isinstance(module, Embedding) and module is not words]
    return any(positions <= table.num_embeddings <= positions + SPARE_POSITIONS for table in tables)


def rotary_modules(model: Any) -> list[Any]:
    """The rotary embedding modules of a Hugging Face model."""
    return [
        module for module in model.modules() if hasattr(module, "inv_freq") and hasattr(module, "attention_scaling")
    ]


def is_ours(model: Any) -> bool:
    from tlm_repro.models.decoder import LanguageModel

    return isinstance(model, LanguageModel)


def has_rotary(model: Any) -> bool:
    """Whether any layer rotates its queries and keys by position."""
    if is_ours(model):
        from tlm_repro.architectures.registry import architecture

        return architecture(model.spec.architecture).uses_positions(model.spec)
    return bool(rotary_modules(model))
