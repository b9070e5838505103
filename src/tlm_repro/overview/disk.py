"""Sizes on disk in closed form: tokens, checkpoints, models. Doesn't import torch.

Small files aren't counted: metrics (about 200 bytes per step), logs, results, headers.
"""

from tlm_repro.architectures.accounting import gradient_sums, parameters
from tlm_repro.spec.data import DataSpec
from tlm_repro.spec.run import ModelSpec

FLOAT = 4  # bytes; weights, moments and gradient sums are fp32 on disk at any training precision
CHECKPOINTS_AT_ONCE = 3  # two are kept, and the next is complete before the oldest is deleted


def model_bytes(model: ModelSpec) -> int:
    """Size of a trained model's weights."""
    return FLOAT * parameters(model).total


def checkpoint_bytes(model: ModelSpec) -> int:
    """Size of the weights, AdamW's two moments and the gradient sums of levels with an update period."""
    return FLOAT * (3 * parameters(model).total + gradient_sums(model))


def token_bytes(vocab_size: int) -> int:
    """Size of one token in a shard: uint16 if the vocabulary allows it, else uint32."""
    return 2 if vocab_size <= 2**16 else 4


def corpus_bytes(data: DataSpec) -> int | None:
    """Size of the training and held-out tokens at their budgets, or None without a budget for one of them."""
    if data.train_tokens is None or data.validation_tokens is None:
        return None
    return token_bytes(data.tokenizer.vocab_size) * (data.train_tokens + data.validation_tokens)
