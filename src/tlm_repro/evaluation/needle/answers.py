"""Greedy answers to prompts of any length, batched by tokens and stopped early.

An answer stops early only where the rest couldn't change its score: when it contains every value, or at an end-of-text
token. Shapes: B batch, T time.
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
from tlm_repro.evaluation.needle.scores import matches
from tlm_repro.evaluation.scoring import UNUSABLE_WEIGHTS

# With these, a 1.3B model reads 16,384 tokens in 80 GB with room to spare; docs/needle.md has the arithmetic.
BATCH_TOKENS = 65_536
PREFILL_TOKENS = 2_048  # of each row in one forward pass


@dataclass(frozen=True)
class Question:
    """A prompt's token ids, and the values to search for in its answer."""

    ids: list[int]
    values: tuple[str, ...]


class AllValuesPresent(StoppingCriteria):
    """Ends a row's answer when it contains all of its values."""

    def __init__(self, tokenizer: Any, prompt_tokens: int, values: Sequence[tuple[str, ...]]) -> None:
        self.tokenizer, self.prompt_tokens, self.values = tokenizer, prompt_tokens, values
        self.done = [False] * len(values)

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:  # noqa: ARG002 - the base class's form
        """(B, T) → (B,), True where the answer is complete."""
        answers = input_ids[:, self.prompt_tokens :].tolist()
        for row, values in enumerate(self.values):
            self.done[row] = self.done[row] or all(matches(decode(self.tokenizer, answers[row]), values))
        return torch.tensor(self.done, device=input_ids.device)


class NaNCheck(LogitsProcessor):
    """Returns logits unchanged. Raises EvaluationError if one is NaN, because the greedy token would hide it."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # noqa: ARG002 - the base class's form
        if scores.isnan().any():
            raise EvaluationError(f"a logit of an answer is not a number: {UNUSABLE_WEIGHTS}")
        return scores


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=True)


def generate_answers(
    model: Any,
    tokenizer: Any,
    questions: Sequence[Question],
    *,
    new_tokens: int,
    batch_size: int,
    batch_tokens: int = BATCH_TOKENS,
    prefill_tokens: int = PREFILL_TOKENS,
    advance: Callable[[int], Any] = lambda _: None,
) -> list[str]:
    """The greedy answer to each question, at most `new_tokens` tokens long, in the questions' order.

    Questions of similar length share a batch of at most `batch_size` rows and `batch_tokens` tokens, answers included.
    Shorter prompts are padded on the left, which doesn't change their answers. Prompts are read `prefill_tokens` at a
    time, and logits are computed at the last position only.

    Args:
        model: a Hugging Face causal language model in evaluation mode, on any device.
        advance: called with the number of questions answered since the last call.
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
            stop = AllValuesPresent(tokenizer, longest, [questions[row].values for row in rows])
            with torch.inference_mode():
                output = model.generate(
                    input_ids=torch.tensor(ids, device=device),
                    attention_mask=torch.tensor(mask, device=device),
                    generation_config=settings,
                    logits_processor=LogitsProcessorList([NaNCheck()]),
                    stopping_criteria=StoppingCriteriaList([stop]),
                )
            for row, sequence in zip(rows, output[:, longest:].tolist(), strict=True):
                answers[row] = decode(tokenizer, before_end(sequence, ends))
            advance(len(rows))
    return answers


def batches(lengths: Sequence[int], batch_size: int, batch_tokens: int) -> Iterator[list[int]]:
    """The sequence numbers in each batch, longest first, so that what doesn't fit in memory fails at once."""
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    first = 0
    while first < len(order):
        rows = max(min(batch_size, batch_tokens // lengths[order[first]]), 1)
        yield order[first : first + rows]
        first += rows


def before_end(ids: Sequence[int], ends: Sequence[int]) -> list[int]:
    """The ids before the first token that ends an answer."""
    first = next((index for index, token in enumerate(ids) if token in ends), len(ids))
    return list(ids[:first])


def end_tokens(model: Any, tokenizer: Any) -> list[int]:
    """The tokens that end an answer: the tokenizer's and the model's."""
    of_model = getattr(model.generation_config, "eos_token_id", None)
    model_ends = of_model if isinstance(of_model, list) else [of_model]
    ends = list(dict.fromkeys(token for token in [tokenizer.eos_token_id, *model_ends] if token is not None))
    if not ends:
        raise EvaluationError("the tokenizer has no end-of-text token (eos_token), which ends answers: set one")
    return ends


@contextmanager
def greedy(model: Any, ends: list[int], new_tokens: int) -> Iterator[GenerationConfig]:
    """Settings for greedy decoding. In the block, the model's own settings (sampling, penalties) don't apply."""
    before = model.generation_config
    settings = GenerationConfig(
        max_new_tokens=new_tokens, do_sample=False, eos_token_id=ends, pad_token_id=ends[0], use_cache=True
    )
    model.generation_config = GenerationConfig()
    try:
        yield settings
    finally:
        model.generation_config = before


def progress_bar(total: int) -> Any:
    """A progress bar over `total` prompts. In a log file `bars_as_lines` turns it into plain lines."""
    from tqdm import tqdm

    return tqdm(total=total, desc="niah", unit="prompt", file=sys.stderr)
