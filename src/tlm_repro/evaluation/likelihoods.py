"""Log-likelihoods of continuations under any Hugging Face causal language model, with only the logits that are needed.

Shapes: B rows, T columns, D model width, V vocabulary, N places with logits, M scored tokens.
"""

import inspect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tlm_repro.evaluation.batching import Row

MAX_LOGITS = 2**24  # float32 logits in memory at a time: 64 MiB


@dataclass(frozen=True)
class Abilities:
    """What a model can do.

    Attributes:
        trees: follow a custom mask and custom positions.
        split_head: its logits are exactly its output embedding applied to its last hidden states.
    """

    trees: bool
    split_head: bool


@dataclass(frozen=True)
class Batch:
    """Rows as tensors, padded on the right, so that no token attends to padding."""

    tokens: Tensor  # (B, T)
    positions: Tensor | None  # (B, T), None with `mask`
    mask: Tensor | None  # (B, 1, T, T), additive; None: causal

    @classmethod
    def of(cls, rows: Sequence[Row], device: torch.device, dtype: torch.dtype) -> "Batch":
        tokens = pad([row.tokens() for row in rows], 0).to(device)
        if not any(row.tree for row in rows):
            return cls(tokens, None, None)
        positions = pad([row.positions() for row in rows], 0).to(device)
        segments = pad([row.segments() for row in rows], -1).to(device)  # padding attends to the stem
        visible = (segments[:, None, :] == 0) | (segments[:, None, :] == segments[:, :, None])
        mask = torch.zeros(visible.shape, dtype=dtype, device=device)
        mask.masked_fill_(~visible.tril_(), torch.finfo(dtype).min)
        return cls(tokens, positions, mask[:, None])

    def arguments(self) -> dict[str, Any]:
        extra = {} if self.mask is None else {"attention_mask": self.mask, "position_ids": self.positions}
        return {"input_ids": self.tokens, "use_cache": False, **extra}


def pad(lists: Sequence[list[int]], value: int) -> Tensor:
    """(B, T), padded on the right."""
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(items) for items in lists], True, value)


def logit_places(rows: Sequence[Row]) -> tuple[list[tuple[int, int]], list[list[int]], list[int]]:
    """The N distinct places (row, column) where a batch needs logits; for each request, its places and its number."""
    places: dict[tuple[int, int], int] = {}
    places_by_request, numbers = [], []
    for index, row in enumerate(rows):
        for number, columns in row.columns():
            places_by_request.append([places.setdefault((index, column), len(places)) for column in columns])
            numbers.append(number)
    return list(places), places_by_request, numbers


class Likelihoods:
    """Scores rows of requests under `model`, which is put in evaluation mode.

    The model's abilities are tested at the start on a few tokens. A model that can't share prefixes, or whose logits
    aren't its output embedding alone, is scored more slowly, with the same results.
    """

    def __init__(self, model: Any) -> None:
        self.model = model.eval()
        self.device = next(model.parameters()).device
        self.dtype = model.dtype
        self.selects_columns = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.abilities = Abilities(trees=False, split_head=False)
        self.abilities = Abilities(trees=self._supports_trees(), split_head=self._has_split_head())

    @torch.inference_mode()
    def score(self, rows: Sequence[Row], continuations: Sequence[list[int]]) -> dict[int, tuple[float, bool]]:
        """Request number → (sum of the continuation's log-probabilities in nats, whether it is the greedy one).

        `continuations` has the target tokens of all requests by number. Log-probabilities are computed in float32.
        """
        places, places_by_request, numbers = logit_places(rows)
        flat = torch.tensor(list(itertools.chain.from_iterable(places_by_request)))  # (M,)
        targets = torch.tensor(list(itertools.chain.from_iterable(continuations[number] for number in numbers)))
        scores, greedy = self._token_scores(Batch.of(rows, self.device, self.dtype), places, flat, targets)
        sizes = [len(request_places) for request_places in places_by_request]
        parts = zip(numbers, scores.split(sizes), greedy.split(sizes), strict=True)
        return {number: (part.sum().item(), bool(best.all())) for number, part, best in parts}

    def _token_scores(
        self, batch: Batch, places: list[tuple[int, int]], flat: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(M,) log-probabilities, float64 on the CPU, and (M,) whether each token is the most likely one."""
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
        """Yields (number of the first place, float32 logits (n, V)) for all places in order, in slices."""
        rows, columns = torch.tensor(places, device=self.device).T.contiguous()
        if self.abilities.split_head:
            hidden = self.model.base_model(**batch.arguments()).last_hidden_state[rows, columns]  # (N, D)
            head = self.model.get_output_embeddings()
            size = max(1, MAX_LOGITS // head.weight.shape[0])
            for first in range(0, len(hidden), size):
                yield first, head(hidden[first : first + size]).float()
            return
        selected = columns.unique()
        extra = {"logits_to_keep": selected} if self.selects_columns else {}
        logits = self.model(**batch.arguments(), **extra).logits  # (B, number of selected columns or T, V)
        logit_columns = torch.searchsorted(selected, columns) if self.selects_columns else columns
        size = max(1, MAX_LOGITS // logits.shape[-1])
        for first in range(0, len(places), size):
            part = slice(first, first + size)
            yield first, logits[rows[part], logit_columns[part]].float()

    def _supports_trees(self) -> bool:
        """Whether three branches after one stem get the same logits as each alone."""
        kinds = getattr(self.model.config, "layer_types", None) or ["full_attention"]
        window = getattr(self.model.config, "sliding_window", None)
        if set(kinds) != {"full_attention"} or window:  # states and windows can pass a test on a few tokens
            return False
        vocabulary = self.model.get_input_embeddings().weight.shape[0]
        ids = [(7 * step + 3) % vocabulary for step in range(14)]
        row = Row(ids[:6], branches=[ids[6:9], ids[9:11], ids[11:14]])
        try:
            with torch.inference_mode():
                together = self.model(**Batch.of([row], self.device, self.dtype).arguments()).logits[0].float()
                start = len(row.stem)
                for branch in row.branches:
                    alone = self.model(torch.tensor([row.stem + branch], device=self.device)).logits[0].float()
                    if not logits_agree(together[start : start + len(branch)], alone[len(row.stem) :], self.dtype):
                        return False
                    start += len(branch)
        except (TypeError, ValueError, RuntimeError, IndexError, NotImplementedError):
            return False
        return True

    def _has_split_head(self) -> bool:
        """Whether the output embedding applied to the last hidden states gives the model's logits."""
        ids = torch.arange(4, device=self.device)[None]
        head = self.model.get_output_embeddings()
        if head is None or self.model.base_model is self.model:
            return False
        try:
            with torch.inference_mode():
                hidden = self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state
                logits = self.model(input_ids=ids, use_cache=False).logits
                return logits_agree(head(hidden).float(), logits.float(), self.dtype)
        except (TypeError, ValueError, RuntimeError, AttributeError):
            return False


def logits_agree(first: Tensor, second: Tensor, dtype: torch.dtype) -> bool:
    """Whether two logits of a model in `dtype` agree up to rounding, relative to their spread. False if one is NaN."""
    tolerance = 1e-3 if dtype == torch.float32 else 0.05
    return bool((first - second).abs().max() <= tolerance * second.std())
