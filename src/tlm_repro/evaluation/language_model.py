"""lm-eval's interface to a model: lm-eval's tokenisation and truncation with this project's batches.

It scores the same tokens after the same tokens as HFLM, lm-eval's own class, with `add_bos_token=False` and the
end-of-text token as prefix.
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
from tlm_repro.evaluation.batching import Request, batches, pack_rows
from tlm_repro.evaluation.likelihoods import Likelihoods

CPU_TOKENS = 1024  # larger batches have more padding and exceed a CPU's caches; measured in docs/performance.md


@dataclass
class Work:
    """Counts of requests and tokens."""

    requests: int = 0
    seconds: float = 0.0
    requested_tokens: int = 0  # in the inputs of all requests
    row_tokens: int = 0  # with shared prefixes counted once
    padded_tokens: int = 0  # row_tokens with padding

    def summary(self) -> dict[str, Any]:
        """The evaluation file's entries. The two shares are of `requested_tokens` and of `padded_tokens`."""
        return {
            "requests": self.requests,
            "requests_per_s": round(self.requests / self.seconds, 2) if self.seconds else None,
            "tokens_shared": round(1 - self.row_tokens / self.requested_tokens, 4) if self.requested_tokens else 0.0,
            "padding_waste": round(1 - self.row_tokens / self.padded_tokens, 4) if self.padded_tokens else 0.0,
        }


class CausalLM(TemplateLM):
    """A Hugging Face causal language model and its tokenizer behind lm-eval's interface.

    As in training, a document follows an end-of-text token, and there is no begin-of-text token.

    Args:
        max_length: tokens that the model reads of one request; longer requests are truncated on the left.
        batch_size: sequences of `max_length` tokens in one forward pass, or as many tokens in shorter ones; fewer on a
            CPU.

    Raises:
        EvaluationError: the tokenizer has no end-of-text token.
    """

    def __init__(self, model: Any, tokenizer: Any, *, max_length: int, batch_size: int) -> None:
        super().__init__()
        if tokenizer.eos_token_id is None:
            raise EvaluationError(
                "the tokenizer has no end-of-text token, which precedes a text without context: set its eos_token and "
                "save it"
            )
        self.model, self.tokenizer, self.max_length, self.batch_size = model, tokenizer, max_length, batch_size
        self.likelihoods = Likelihoods(model)
        self._device = self.likelihoods.device
        self.work = Work()

    def reset_work(self) -> None:
        """Sets all counts to zero."""
        self.work = Work()

    @property
    def eot_token_id(self) -> int:
        return self.tokenizer.eos_token_id

    @property
    def bos_policy(self) -> dict[str, Any]:
        """The evaluation file's entry on how the beginning of a text is marked."""
        return {"add_bos": False, "prefix_token": self.tokenizer.eos_token, "prefix_token_id": self.prefix_token_id}

    @property
    def batch_tokens(self) -> int:
        """Tokens in one forward pass, padding included, unless a single row is longer."""
        tokens = self.batch_size * self.max_length
        return min(tokens, CPU_TOKENS) if self._device.type == "cpu" else tokens

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Token ids, by default without special tokens."""
        return self.tokenizer.encode(string, add_special_tokens=bool(add_special_tokens))

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[Any, list[int], list[int]]],
        disable_tqdm: bool = False,
        **_: Any,
    ) -> list[tuple[float, bool]]:
        start = time.perf_counter()
        checked = [self._check_request(*request) for request in requests]
        rows = pack_rows(checked, self.max_length, branching=self.likelihoods.abilities.trees)
        continuations = [request.continuation for request in checked]
        scores: dict[int, tuple[float, bool]] = {}
        with tqdm(total=len(checked), desc="Scoring", unit="request", disable=disable_tqdm, file=sys.stderr) as bar:
            for batch in batches(rows, self.batch_tokens):
                scores |= self.likelihoods.score(batch, continuations)
                bar.update(len(scores) - bar.n)
                self.work.row_tokens += sum(map(len, batch))
                self.work.padded_tokens += len(batch) * max(map(len, batch))
        self.work.requests += len(checked)
        self.work.requested_tokens += sum(len(request.input(self.max_length)) for request in checked)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self.work.seconds += time.perf_counter() - start
        return [scores[number] for number in range(len(checked))]

    def _check_request(self, texts: Any, context: list[int], continuation: list[int]) -> Request:
        if not context or not 0 < len(continuation) <= self.max_length:
            raise EvaluationError(
                f"a continuation of {len(continuation)} tokens after {len(context)} can't be scored: {texts!r:.200}. "
                f"It must have 1 to {self.max_length} tokens after at least 1. Raise max_length"
            )
        return Request(context, continuation)

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihoods of whole texts in nats, in disjoint windows; the last one also reads tokens before it."""
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
        self.work.requests += len(requests) - len(windows)  # a text is one request of lm-eval
        return totals

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Greedy continuations, generated by lm-eval's own class."""
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
