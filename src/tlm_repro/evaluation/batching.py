"""Batches for scoring continuations: shared prefixes are read once, and rows of similar length go together.

The options of a multiple-choice item usually follow the same context. A row holds that shared stem once and the options
as branches after it. A token attends to the stem and to its own branch only; positions in each branch continue from the
stem.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

MIN_SAVING = 0.25  # an input joins a row if that saves at least this share of its tokens


@dataclass(frozen=True)
class Request:
    """Token ids of a context and of the continuation to score. Neither is empty."""

    context: list[int]
    continuation: list[int]

    def input(self, max_length: int) -> list[int]:
        """The tokens that the model reads: all but the last, truncated on the left to `max_length` tokens."""
        return (self.context + self.continuation)[-(max_length + 1) : -1]


@dataclass
class Row:
    """Requests that share a stem. `members` has each one's number, its branch and its continuation's length."""

    stem: list[int]
    branches: list[list[int]] = field(default_factory=list)
    members: list[tuple[int, int, int]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.stem) + sum(map(len, self.branches))

    @property
    def tree(self) -> bool:
        """Whether the row needs more than the plain causal mask."""
        return len(self.branches) > 1

    def tokens(self) -> list[int]:
        return [*self.stem, *(token for branch in self.branches for token in branch)]

    def positions(self) -> list[int]:
        start = len(self.stem)
        return [*range(start), *(start + step for branch in self.branches for step in range(len(branch)))]

    def segments(self) -> list[int]:
        """For each token, 0 in the stem, else its branch's number from 1."""
        numbered = enumerate(self.branches, start=1)
        return [0] * len(self.stem) + [number for number, branch in numbered for _ in branch]

    def columns(self) -> Iterator[tuple[int, list[int]]]:
        """Each request's number, and the columns of the row whose logits predict its continuation."""
        start = len(self.stem)
        shifts = [0, *itertools.accumulate(map(len, self.branches), initial=0)]
        for number, branch, length in self.members:
            end, shift = start + (len(self.branches[branch - 1]) if branch else 0), shifts[branch]
            yield number, [index + (shift if index >= start else 0) for index in range(end - length, end)]

    def add(self, number: int, tokens: list[int], length: int, *, branching: bool, limit: int) -> bool:
        """Adds an input if that saves enough tokens and the row stays within `limit` tokens; returns whether it did."""
        shared = common_prefix(self.stem, tokens)
        stem = self.stem[:shared]
        moved = self.stem[shared:]
        branches = [moved + branch for branch in self.branches] or ([moved] if moved else [])
        rest = tokens[shared:]
        existing = branches.index(rest) + 1 if rest in branches else 0
        cost = shared + sum(map(len, branches)) + (len(rest) if rest and not existing else 0)
        if len(self) + len(tokens) - cost < MIN_SAVING * len(tokens) or cost > limit or not shared:
            return False
        new_branches = [*branches, rest] if rest and not existing else branches
        if not branching and len(new_branches) > 1:
            return False
        if moved and not self.branches:  # members that ended at the stem now end in the branch that it became
            self.members = [(member, 1, size) for member, _, size in self.members]
        elif moved and any(branch == 0 for _, branch, _ in self.members):
            return False
        self.stem, self.branches = stem, new_branches
        self.members.append((number, (existing or len(new_branches)) if rest else 0, length))
        return True


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    for index, (left, right) in enumerate(zip(first, second, strict=False)):
        if left != right:
            return index
    return min(len(first), len(second))


def pack_rows(requests: Sequence[Request], max_length: int, *, branching: bool) -> list[Row]:
    """Packs requests into rows. Only neighbours share a row, because lm-eval requests an item's options in sequence.

    Args:
        max_length: tokens that the model reads of one request.
        branching: whether the model accepts a custom mask. Otherwise inputs share a row only if the longer one begins
            with the shorter.
    """
    rows: list[Row] = []
    for number, request in enumerate(requests):
        tokens, length = request.input(max_length), len(request.continuation)
        if rows and rows[-1].add(number, tokens, length, branching=branching, limit=2 * max_length):
            continue
        rows.append(Row(tokens, members=[(number, 0, length)]))
    return rows


def batches(rows: Sequence[Row], budget: int) -> Iterator[list[Row]]:
    """Batches of at least one row and at most `budget` tokens with padding, the longest rows first.

    Rows with branches and rows without don't mix, because the latter use the faster plain causal mask.
    """
    batch: list[Row] = []
    for row in sorted(rows, key=lambda row: (row.tree, -len(row))):
        if batch and (row.tree != batch[0].tree or (len(batch) + 1) * len(batch[0]) > budget):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
