"""Greedy answers to prompts of any length: batched by tokens, cached, and no longer than they need to be.

Answers are cut short only where nothing that follows could change their score: once every value stands there, or at an
end-of-text token. Shapes: B batch, T time.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

from tlm_repro.errors import EvaluationError
from tlm_repro.evaluation.needle.scores import found
from tlm_repro.evaluation.scoring import UNUSABLE

# docs/needle.md has the arithmetic: with these a 1.3B model reads 16,384 tokens in 80 GB with room to spare.
BATCH_TOKENS = 65_536
PREFILL_TOKENS = 2_048  # of each row in one forward pass


@dataclass(frozen=True)
class Question:
    """A prompt's token ids, and the values that its answer is searched for."""

    ids: list[int]
    values: tuple[str, ...]


class EveryValueFound(StoppingCriteria):
    """Ends a row's answer when it holds all of its values."""

    def __init__(self, tokenizer: Any, prompt_tokens: int, values: Sequence[tuple[str, ...]]) -> None:
        self.tokenizer, self.prompt_tokens, self.values = tokenizer, prompt_tokens, values
        self.done = [False] * len(values)

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:  # noqa: ARG002 - the base class's form
        """(B, T) → (B,), True where the answer is complete."""
        answers = input_ids[:, self.prompt_tokens :].tolist()
        for row, values in enumerate(self.values):
            self.done[row] = self.done[row] or all(found(decoded(self.tokenizer, answers[row]), values))
        return torch.tensor(self.done, device=input_ids.device)


class Numbers(LogitsProcessor):
    """Passes logits on. Raises EvaluationError where one is NaN: the greedy token would look like an answer."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # noqa: ARG002 - the base class's form
        if scores.isnan().any():
            raise EvaluationError(f"a logit behind an answer is not a number: {UNUSABLE}")
        return scores


def decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=True)


def answer(
    model: Any,
    tokenizer: Any,
    questions: Sequence[Question],
    *,
    new_tokens: int,
    batch_size: int,
    batch_tokens: int = BATCH_TOKENS,
    prefill_tokens: int = PREFILL_TOKENS,
    done: Callable[[int], Any] = lambda _: None,
) -> list[str]:
    """The greedy answer to each question, at most `new_tokens` tokens long, in the questions' order.

    Questions of about the same length share a batch of at most `batch_size` rows and `batch_tokens` tokens, answers
    included. Shorter ones are padded on the left, which changes no answer. Each batch's prompts are read
    `prefill_tokens` at a time, and logits are taken at the last position alone.

    Args:
        model: a Hugging Face causal language model in evaluation mode, on any device.
        done: called with the number of questions answered since the last call.
    """
    answers = [""] * len(questions)
    device = next(model.parameters()).device
    ends = end_tokens(model, tokenizer)
    with greedy(model, ends, new_tokens) as settings:
        for rows in batches([len(question.ids) + new_tokens for question in questions], batch_size, batch_tokens):
            longest = max(len(questions[row].ids) for row in rows)
            padding = [longest - len(questions[row].ids) for row in rows]
            ids = [[ends[0]] * pad + questions[row].ids for row, pad in zip(rows, padding, strict=True)]
            mask = [[0] * pad + [1] * (longest - pad) for pad in padding]
            settings.prefill_chunk_size = prefill_tokens if longest > prefill_tokens else None
            stop = EveryValueFound(tokenizer, longest, [questions[row].values for row in rows])
            with torch.inference_mode():
                output = model.generate(
                    input_ids=torch.tensor(ids, device=device),
                    attention_mask=torch.tensor(mask, device=device),
                    generation_config=settings,
                    logits_processor=LogitsProcessorList([Numbers()]),
                    stopping_criteria=StoppingCriteriaList([stop]),
                )
            for row, sequence in zip(rows, output[:, longest:].tolist(), strict=True):
                answers[row] = decoded(tokenizer, until(sequence, ends))
            done(len(rows))
    return answers


def batches(lengths: Sequence[int], batch_size: int, batch_tokens: int) -> Iterator[list[int]]:
    """Numbers of the sequences of each batch, the longest first: what doesn't fit fails at once, not after hours."""
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    first = 0
    while first < len(order):
        rows = max(min(batch_size, batch_tokens // lengths[order[first]]), 1)
        yield order[first : first + rows]
        first += rows


def until(ids: Sequence[int], ends: Sequence[int]) -> list[int]:
    """The ids before the first that ends an answer."""
    first = next((place for place, token in enumerate(ids) if token in ends), len(ids))
    return list(ids[:first])


def end_tokens(model: Any, tokenizer: Any) -> list[int]:
    """Tokens that end an answer: the tokenizer's and the model's own."""
    own = getattr(model.generation_config, "eos_token_id", None)
    listed = own if isinstance(own, list) else [own]
    ends = list(dict.fromkeys(token for token in [tokenizer.eos_token_id, *listed] if token is not None))
    if not ends:
        raise EvaluationError("the tokenizer has no end-of-text token (eos_token): set one, answers end with it")
    return ends


@contextmanager
def greedy(model: Any, ends: list[int], new_tokens: int) -> Iterator[GenerationConfig]:
    """Settings for greedy decoding; in the block the model's own (sampling, penalties) are out of the way."""
    own = model.generation_config
    settings = GenerationConfig(
        max_new_tokens=new_tokens, do_sample=False, eos_token_id=ends, pad_token_id=ends[0], use_cache=True
    )
    model.generation_config = GenerationConfig()
    try:
        yield settings
    finally:
        model.generation_config = own


def progress_bar(total: int) -> Any:
    """A bar over `total` prompts with the time left; in a log file `plain_progress` makes plain lines of it."""
    from tqdm import tqdm

    return tqdm(total=total, desc="niah", unit="prompt", file=sys.stderr)
