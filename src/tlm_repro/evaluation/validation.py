"""The in-distribution loss on held-out text, as in the paper's Figure 2 and Table 1."""

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F

from tlm_repro.errors import EvaluationError
from tlm_repro.statistics.blocks import Blocks

if TYPE_CHECKING:
    from tlm_repro.data.shards import TokenArray


@dataclass(frozen=True)
class Loss:
    """Mean negative log-likelihood in nats per token, over `tokens` predicted tokens in `windows` windows.

    `stderr` is the standard error of the mean with blocks of windows as the sampling unit, because tokens of one
    document are correlated (see `tlm_repro.statistics.blocks`). It is None for a single window.
    """

    loss: float
    tokens: int
    windows: int
    blocks: Blocks

    @property
    def stderr(self) -> float | None:
        return self.blocks.stderr

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss)

    @property
    def perplexity_stderr(self) -> float | None:
        """To first order, d exp(x) = exp(x) dx."""
        return None if self.stderr is None else self.perplexity * self.stderr


def validation_loss(
    model: Any,
    tokens: "TokenArray",
    *,
    sequence_length: int,
    limit: int | None = None,
    batch_sequences: int = 8,
) -> Loss:
    """Loss of a causal language model on the start of a token stream.

    Windows of `sequence_length` + 1 tokens start every `sequence_length` tokens, so each token but the first is
    predicted once, from at most `sequence_length` tokens before it. The incomplete last window and everything beyond
    `limit` predicted tokens are dropped.

    Args:
        model: a `LanguageModel` on any device; its training or evaluation mode is restored.
        batch_sequences: windows in one forward pass; affects memory, not the result.

    Raises:
        EvaluationError: there is less than one window, or the loss isn't finite or its perplexity isn't.
    """
    available = (len(tokens) - 1) // sequence_length
    windows = available if limit is None else min(available, limit // sequence_length)
    if windows < 1:
        raise EvaluationError(
            f"the validation stream has {len(tokens)} tokens and the limit is {limit}, but one window needs "
            f"{sequence_length} + 1: hold out more documents, raise the limit or shorten the sequence"
        )
    losses = np.concatenate(list(window_losses(model, tokens, sequence_length, windows, batch_sequences)))
    mean = float(losses.mean())
    if not mean < math.log(sys.float_info.max):  # its perplexity must be a finite float; false for NaN
        raise EvaluationError(
            f"the validation loss is {mean}: the model's weights are unusable; check its training log"
        )
    return Loss(mean, windows * sequence_length, windows, Blocks.of(losses, sequence_length))


def window_losses(
    model: Any, tokens: "TokenArray", sequence_length: int, windows: int, batch_sequences: int
) -> Iterator[np.ndarray]:
    """Mean loss of each window, float64, one array for each batch."""
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    try:
        for first in range(0, windows, batch_sequences):
            rows = range(first, min(first + batch_sequences, windows))
            batch = np.stack([tokens.window(row * sequence_length, sequence_length + 1) for row in rows])
            ids = torch.from_numpy(batch).to(device)  # (batch, time + 1)
            # As a decorator it would leave gradients off in the consumer of this generator between batches.
            with torch.no_grad():
                logits = model(input_ids=ids[:, :-1]).logits  # (batch, time, vocabulary)
                losses = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
            # Converted on the CPU, because not every accelerator has float64.
            yield losses.view(len(rows), sequence_length).cpu().double().mean(dim=1).numpy()
    finally:
        model.train(was_training)
