"""Validation loss against closed forms and a plain loop."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from tlm_repro.errors import EvaluationError
from tlm_repro.evaluation.validation import validation_loss
from tlm_repro.statistics.blocks import MOST

VOCABULARY = 37


class Tokens:
    """A token stream in memory, with the interface of one on disk."""

    def __init__(self, ids: np.ndarray) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    def window(self, start: int, length: int) -> np.ndarray:
        assert start + length <= len(self.ids)
        return self.ids[start : start + length].astype(np.int64)


class Bigram(nn.Module):
    """Logits are a table of the current token; it notes the batches that it saw and the mode that it was in."""

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(table)
        self.calls: list[tuple[int, bool, bool]] = []

    def forward(self, input_ids: torch.Tensor, use_cache: bool = False) -> SimpleNamespace:
        assert not use_cache
        self.calls.append((len(input_ids), self.training, torch.is_grad_enabled()))
        return SimpleNamespace(logits=self.table[input_ids])


@pytest.fixture
def stream() -> Tokens:
    return Tokens(np.random.default_rng(0).integers(0, VOCABULARY, 10 * 16 + 9))


def bigram(seed: int = 0) -> Bigram:
    return Bigram(torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(seed)))


def loop_losses(model: Bigram, ids: np.ndarray, length: int, windows: int) -> list[float]:
    """Mean loss of each window, token by token in float64."""
    table = model.table.detach().double().numpy()
    losses = []
    for window in range(windows):
        total = 0.0
        for position in range(window * length, (window + 1) * length):
            logits = table[ids[position]]
            total += math.log(np.exp(logits).sum()) - logits[ids[position + 1]]
        losses.append(total / length)
    return losses


def test_uniform_logits_have_the_vocabulary_as_perplexity(stream: Tokens) -> None:
    loss = validation_loss(Bigram(torch.zeros(VOCABULARY, VOCABULARY)), stream, sequence_length=16)
    assert loss.perplexity == pytest.approx(VOCABULARY, rel=1e-6)
    assert loss.stderr == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("batch_sequences", [1, 3, 64])
def test_loss_and_standard_error_equal_a_plain_loop(stream: Tokens, batch_sequences: int) -> None:
    model = bigram()
    loss = validation_loss(model, stream, sequence_length=16, batch_sequences=batch_sequences)
    expected = loop_losses(model, stream.ids, 16, windows=10)
    mean = sum(expected) / 10
    variance = sum((value - mean) ** 2 for value in expected) / 9
    assert (loss.windows, loss.tokens) == (10, 160)
    assert loss.loss == pytest.approx(mean, rel=1e-6)
    assert loss.stderr == pytest.approx(math.sqrt(variance / 10), rel=1e-5)
    assert loss.perplexity_stderr == pytest.approx(math.exp(mean) * math.sqrt(variance / 10), rel=1e-5)


@pytest.mark.parametrize("windows", [MOST, 2 * MOST + 3])
def test_blocks_hold_the_losses_and_give_the_standard_error(windows: int) -> None:
    stream = Tokens(np.random.default_rng(1).integers(0, VOCABULARY, windows * 8 + 1))
    loss = validation_loss(bigram(), stream, sequence_length=8)
    expected = np.array_split(loop_losses(bigram(), stream.ids, 8, windows), MOST)
    assert loss.blocks.loss == pytest.approx([part.mean() for part in expected], rel=1e-5)
    assert loss.blocks.mean == pytest.approx(loss.loss, abs=1e-14)
    sums = [part.sum() - len(part) * loss.loss for part in expected]
    assert loss.stderr == pytest.approx(np.linalg.norm(sums) * math.sqrt(MOST / (MOST - 1)) / windows, rel=1e-5)


@pytest.mark.parametrize(
    ("tokens", "limit", "windows"),
    [
        (16, None, None),
        (17, None, 1),
        (32, None, 1),
        (33, None, 2),
        (169, 47, 2),
        (169, 48, 3),
        (169, 9999, 10),
        (169, 15, None),
    ],
)
def test_only_whole_windows_within_the_limit_count(tokens: int, limit: int | None, windows: int | None) -> None:
    stream = Tokens(np.zeros(tokens, dtype=np.uint16))
    if windows is None:
        with pytest.raises(EvaluationError, match=f"{tokens} tokens"):
            validation_loss(bigram(), stream, sequence_length=16, limit=limit)
    else:
        assert validation_loss(bigram(), stream, sequence_length=16, limit=limit).windows == windows


def test_one_window_has_no_standard_error(stream: Tokens) -> None:
    loss = validation_loss(bigram(), stream, sequence_length=16, limit=16)
    assert loss.stderr is None
    assert loss.perplexity_stderr is None


@pytest.mark.parametrize("training", [True, False])
def test_mode_is_kept_and_no_gradient_is_made(stream: Tokens, training: bool) -> None:
    model = bigram().train(training)
    validation_loss(model, stream, sequence_length=16, batch_sequences=4)
    assert model.training is training
    assert model.calls == [(4, False, False), (4, False, False), (2, False, False)]
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e6])
def test_unusable_weights_are_an_error_and_keep_the_mode(stream: Tokens, value: float) -> None:
    model = bigram()
    with torch.no_grad():
        model.table[:, 1:] = value
    with pytest.raises(EvaluationError, match="weights"):
        validation_loss(model, stream, sequence_length=16)
    assert model.training
