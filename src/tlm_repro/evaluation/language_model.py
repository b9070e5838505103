"""lm-eval's interface to a model: its tokenisation and truncation, our batches.

What HFLM, lm-eval's own class, does with `add_bos_token=False` and the end-of-text token as prefix, this does too: the
same tokens are scored after the same tokens.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from tlm_repro.errors import EvaluationError
from tlm_repro.evaluation.batching import Request, batches, rows
from tlm_repro.evaluation.likelihoods import Likelihoods

CPU_TOKENS = 1024  # more at once is padding and leaves a CPU's caches: measured in docs/performance.md


@dataclass
class Work:
    """What was asked for, and what went through the model."""

    requests: int = 0
    seconds: float = 0.0
    requested_tokens: int = 0  # inputs of all requests, each on its own
    row_tokens: int = 0  # with shared prefixes once
    padded_tokens: int = 0  # and with padding

    def summary(self) -> dict[str, Any]:
        """Figures for an evaluation file; the two shares are of `requested_tokens` and `padded_tokens`."""
        return {
            "requests": self.requests,
            "requests_per_s": round(self.requests / self.seconds, 2) if self.seconds else None,
            "tokens_shared": round(1 - self.row_tokens / self.requested_tokens, 4) if self.requested_tokens else 0.0,
            "padding_waste": round(1 - self.row_tokens / self.padded_tokens, 4) if self.padded_tokens else 0.0,
        }


class CausalLM(TemplateLM):
    """A Hugging Face causal language model and its tokenizer, as lm-eval asks them.

    In training a document follows an end-of-text token, and no token stands for its beginning: so it is here.

    Args:
        max_length: tokens that the model reads of one request; longer ones are cut from the left.
        batch_size: sequences of `max_length` in one forward pass, or as many tokens in shorter ones; on a CPU fewer.

    Raises:
        EvaluationError: the tokenizer has no end-of-text token.
    """

    def __init__(self, model: Any, tokenizer: Any, *, max_length: int, batch_size: int) -> None:
        super().__init__()
        if tokenizer.eos_token_id is None:
            raise EvaluationError(
                "the tokenizer has no end-of-text token, after which a text without context is scored: set its "
                "eos_token and save it"
            )
        self.model, self.tokenizer, self.max_length, self.batch_size = model, tokenizer, max_length, batch_size
        self.likelihoods = Likelihoods(model)
        self._device = self.likelihoods.device
        self.work = Work()

    def start_work(self) -> None:
        """Counts anew."""
        self.work = Work()

    @property
    def eot_token_id(self) -> int:
        return self.tokenizer.eos_token_id

    @property
    def bos_policy(self) -> dict[str, Any]:
        """How the beginning of a text is marked, for an evaluation file."""
        return {"add_bos": False, "prefix_token": self.tokenizer.eos_token, "prefix_token_id": self.prefix_token_id}

    @property
    def batch_tokens(self) -> int:
        """Tokens in one forward pass, padding included, where one row isn't longer."""
        asked = self.batch_size * self.max_length
        return min(asked, CPU_TOKENS) if self._device.type == "cpu" else asked

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Token ids, without special tokens unless they are asked for."""
        return self.tokenizer.encode(string, add_special_tokens=bool(add_special_tokens))

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[Any, list[int], list[int]]],
        disable_tqdm: bool = False,
        **_: Any,
    ) -> list[tuple[float, bool]]:
        start = time.perf_counter()
        asked = [self._request(*request) for request in requests]
        found = rows(asked, self.max_length, branching=self.likelihoods.abilities.trees)
        continuations = [request.continuation for request in asked]
        scores: dict[int, tuple[float, bool]] = {}
        with tqdm(total=len(asked), desc="Scoring", unit="request", disable=disable_tqdm, file=sys.stderr) as bar:
            for batch in batches(found, self.batch_tokens):
                scores |= self.likelihoods.score(batch, continuations)
                bar.update(len(scores) - bar.n)
                self.work.row_tokens += sum(map(len, batch))
                self.work.padded_tokens += len(batch) * max(map(len, batch))
        self.work.requests += len(asked)
        self.work.requested_tokens += sum(len(request.input(self.max_length)) for request in asked)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self.work.seconds += time.perf_counter() - start
        return [scores[number] for number in range(len(asked))]

    def _request(self, texts: Any, context: list[int], continuation: list[int]) -> Request:
        if not context or not 0 < len(continuation) <= self.max_length:
            raise EvaluationError(
                f"a continuation of {len(continuation)} tokens after {len(context)} can't be scored: {texts!r:.200}. "
                f"It must have 1 to {self.max_length} tokens after at least 1. Raise max_length"
            )
        return Request(context, continuation)

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of whole texts in nats, in windows that don't overlap but for what the last one reads."""
        windows, owners = [], []
        for owner, request in enumerate(requests):
            pairs = get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            for pair in pairs:
                windows.append((None, *make_disjoint_window(pair)))
                owners.append(owner)
        totals = [0.0] * len(requests)
        for owner, (score, _) in zip(owners, self._loglikelihood_tokens(windows, disable_tqdm), strict=True):
            totals[owner] += score
        self.work.requests += len(requests) - len(windows)  # lm-eval's requests are texts
        return totals

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Greedy continuations, by lm-eval's own class."""
        from lm_eval.models.huggingface import HFLM

        start = time.perf_counter()
        peer = HFLM(
            pretrained=self.model,
            tokenizer=self.tokenizer,
            batch_size=self.batch_size,
            max_length=self.max_length,
            add_bos_token=False,
            prefix_token_id=self.prefix_token_id,
        )
        answers = peer.generate_until(list(requests), disable_tqdm=disable_tqdm)
        self.work.requests += len(answers)
        self.work.seconds += time.perf_counter() - start
        return answers
