"""Log-likelihoods of continuations under any Hugging Face causal language model, logits only where they are needed.

Shapes: B rows, T columns, D model width, V vocabulary, N positions with logits, M scored tokens.
"""

import inspect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tlm_repro.evaluation.batching import Row

LOGITS = 2**24  # in float32 at once: 64 MiB


@dataclass(frozen=True)
class Abilities:
    """What a model was found to do: `trees`, it follows a mask and positions of its own; `split_head`, its logits are
    nothing but its output embedding over its last hidden states."""

    trees: bool
    split_head: bool


@dataclass(frozen=True)
class Batch:
    """Rows as tensors, padded on the right, where nothing before it sees the padding."""

    tokens: Tensor  # (B, T)
    positions: Tensor | None  # (B, T), None with `mask`
    mask: Tensor | None  # (B, 1, T, T), additive; None: causal

    @classmethod
    def of(cls, found: Sequence[Row], device: torch.device, dtype: torch.dtype) -> "Batch":
        tokens = padded([row.tokens() for row in found], 0).to(device)
        if not any(row.tree for row in found):
            return cls(tokens, None, None)
        positions = padded([row.positions() for row in found], 0).to(device)
        segments = padded([row.segments() for row in found], -1).to(device)  # padding sees the stem, never nothing
        seen = (segments[:, None, :] == 0) | (segments[:, None, :] == segments[:, :, None])
        mask = torch.zeros(seen.shape, dtype=dtype, device=device)
        mask.masked_fill_(~seen.tril_(), torch.finfo(dtype).min)
        return cls(tokens, positions, mask[:, None])

    def arguments(self) -> dict[str, Any]:
        extra = {} if self.mask is None else {"attention_mask": self.mask, "position_ids": self.positions}
        return {"input_ids": self.tokens, "use_cache": False, **extra}


def padded(lists: Sequence[list[int]], value: int) -> Tensor:
    """(B, T), filled up on the right."""
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(each) for each in lists], True, value)


def logit_places(found: Sequence[Row]) -> tuple[list[tuple[int, int]], list[list[int]], list[int]]:
    """Where a batch needs logits: N places (row, column), each once; for each request its M places; its number."""
    places: dict[tuple[int, int], int] = {}
    wanted, numbers = [], []
    for index, row in enumerate(found):
        for number, columns in row.columns():
            wanted.append([places.setdefault((index, column), len(places)) for column in columns])
            numbers.append(number)
    return list(places), wanted, numbers


class Likelihoods:
    """Scores rows of requests under `model`, which is put in evaluation mode.

    What the model can do is found out at the start, by comparing a few tokens both ways: a model that can't share
    prefixes, or whose logits are more than its output embedding, takes the slower way to the same numbers.
    """

    def __init__(self, model: Any) -> None:
        self.model = model.eval()
        self.device = next(model.parameters()).device
        self.dtype = model.dtype
        self.takes_places = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.abilities = Abilities(trees=False, split_head=False)
        self.abilities = Abilities(trees=self._takes_trees(), split_head=self._splits_head())

    @torch.inference_mode()
    def score(self, found: Sequence[Row], continuations: Sequence[list[int]]) -> dict[int, tuple[float, bool]]:
        """Request number → (sum of the continuation's log-probabilities in nats, whether it is the greedy one).

        `continuations` holds all requests' target tokens by number. Log-probabilities are taken in float32.
        """
        places, wanted, numbers = logit_places(found)
        flat = torch.tensor(list(itertools.chain.from_iterable(wanted)))  # (M,)
        targets = torch.tensor(list(itertools.chain.from_iterable(continuations[number] for number in numbers)))
        scores, greedy = self._token_scores(Batch.of(found, self.device, self.dtype), places, flat, targets)
        sizes = [len(each) for each in wanted]
        parts = zip(numbers, scores.split(sizes), greedy.split(sizes), strict=True)
        return {number: (part.sum().item(), bool(best.all())) for number, part, best in parts}

    def _token_scores(
        self, batch: Batch, places: list[tuple[int, int]], flat: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(M,) log-probabilities, float64 on the CPU, and (M,) whether the token is the likeliest."""
        order = flat.argsort()
        flat, targets = flat[order], targets[order].to(self.device)
        scores, greedy = [], []
        for first, logits in self._logits(batch, places):  # (n, V), places first to first + n
            low, high = torch.searchsorted(flat, torch.tensor([first, first + len(logits)])).tolist()
            at = (flat[low:high] - first).to(self.device)
            best, choice = logits.max(dim=-1)
            normaliser = best + (logits - best[:, None]).exp_().sum(dim=-1).log_()
            scores.append((logits[at, targets[low:high]] - normaliser[at]).cpu())
            greedy.append((choice[at] == targets[low:high]).cpu())
        back = order.argsort()
        return torch.cat(scores).double()[back], torch.cat(greedy)[back]

    def _logits(self, batch: Batch, places: list[tuple[int, int]]) -> Any:
        """Yields (number of the first place, float32 logits (n, V)) for all places in order, a slice at a time."""
        rows, columns = torch.tensor(places, device=self.device).T.contiguous()
        if self.abilities.split_head:
            hidden = self.model.base_model(**batch.arguments()).last_hidden_state[rows, columns]  # (N, D)
            head = self.model.get_output_embeddings()
            size = max(1, LOGITS // head.weight.shape[0])
            for first in range(0, len(hidden), size):
                yield first, head(hidden[first : first + size]).float()
            return
        kept = columns.unique()
        extra = {"logits_to_keep": kept} if self.takes_places else {}
        logits = self.model(**batch.arguments(), **extra).logits  # (B, K or T, V)
        inner = torch.searchsorted(kept, columns) if self.takes_places else columns
        size = max(1, LOGITS // logits.shape[-1])
        for first in range(0, len(places), size):
            part = slice(first, first + size)
            yield first, logits[rows[part], inner[part]].float()

    def _takes_trees(self) -> bool:
        """Whether three branches after one stem get the logits that each gets alone."""
        kinds = getattr(self.model.config, "layer_types", None) or ["full_attention"]
        window = getattr(self.model.config, "sliding_window", None)
        if set(kinds) != {"full_attention"} or window:  # states and windows may look right on a few tokens
            return False
        vocabulary = self.model.get_input_embeddings().weight.shape[0]
        ids = [(7 * step + 3) % vocabulary for step in range(14)]
        row = Row(ids[:6], branches=[ids[6:9], ids[9:11], ids[11:14]])
        try:
            with torch.inference_mode():
                whole = self.model(**Batch.of([row], self.device, self.dtype).arguments()).logits[0].float()
                start = len(row.stem)
                for branch in row.branches:
                    alone = self.model(torch.tensor([row.stem + branch], device=self.device)).logits[0].float()
                    if not alike(whole[start : start + len(branch)], alone[len(row.stem) :], self.dtype):
                        return False
                    start += len(branch)
        except (TypeError, ValueError, RuntimeError, IndexError, NotImplementedError):
            return False
        return True

    def _splits_head(self) -> bool:
        """Whether the output embedding over the last hidden states gives the model's own logits."""
        ids = torch.arange(4, device=self.device)[None]
        head = self.model.get_output_embeddings()
        if head is None or self.model.base_model is self.model:
            return False
        try:
            with torch.inference_mode():
                hidden = self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state
                logits = self.model(input_ids=ids, use_cache=False).logits
                return alike(head(hidden).float(), logits.float(), self.dtype)
        except (TypeError, ValueError, RuntimeError, AttributeError):
            return False


def alike(one: Tensor, other: Tensor, dtype: torch.dtype) -> bool:
    """Whether logits of a model in `dtype` agree up to rounding, beside how far they spread; never where one is NaN."""
    tolerance = 1e-3 if dtype == torch.float32 else 0.05
    return bool((one - other).abs().max() <= tolerance * other.std())
