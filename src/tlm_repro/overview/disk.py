"""Bytes on disk in closed form: tokens, checkpoints, models. No torch here.

What is small beside these isn't counted: metrics (some 200 bytes a step), logs, result files, headers.
"""

from tlm_repro.architectures.accounting import gradient_sums, parameters
from tlm_repro.spec.data import DataSpec
from tlm_repro.spec.run import ModelSpec

FLOAT = 4  # bytes: weights, moments and sums of gradients are fp32 on disk, whatever the precision of training
# Two are kept, and the next one is whole before the oldest goes.
CHECKPOINTS_AT_ONCE = 3


def model_bytes(model: ModelSpec) -> int:
    """A trained model's weights."""
    return FLOAT * parameters(model).total


def checkpoint_bytes(model: ModelSpec) -> int:
    """Weights, AdamW's two moments, and the gradients that wait for a level's next step."""
    return FLOAT * (3 * parameters(model).total + gradient_sums(model))


def token_bytes(vocab_size: int) -> int:
    """Of one token in a shard: uint16 where the vocabulary allows it, else uint32."""
    return 2 if vocab_size <= 2**16 else 4


def corpus_bytes(data: DataSpec) -> int | None:
    """Training and held-out tokens at their budgets. None: a budget is open, so only tokenising tells."""
    if data.train_tokens is None or data.validation_tokens is None:
        return None
    return token_bytes(data.tokenizer.vocab_size) * (data.train_tokens + data.validation_tokens)
