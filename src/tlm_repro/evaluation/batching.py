"""Which tokens go through a model together to score continuations: shared prefixes once, rows of like length.

The options of a multiple-choice item mostly follow one context. A row holds that shared stem once and the options after
it as branches; a token sees the stem, and of the branches only its own. Positions go on from the stem in each branch.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

WORTH = 0.25  # an input joins a row where that saves at least this part of its tokens


@dataclass(frozen=True)
class Request:
    """Token ids: `context`, not empty, and the `continuation` whose likelihood is asked for, not empty either."""

    context: list[int]
    continuation: list[int]

    def input(self, max_length: int) -> list[int]:
        """What the model reads: all but the last token, cut from the left to `max_length` tokens."""
        return (self.context + self.continuation)[-(max_length + 1) : -1]


@dataclass
class Row:
    """Requests over one stem. `members` holds, for each, its number, its branch and its continuation's length."""

    stem: list[int]
    branches: list[list[int]] = field(default_factory=list)
    members: list[tuple[int, int, int]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.stem) + sum(map(len, self.branches))

    @property
    def tree(self) -> bool:
        """Whether the tokens need more than the plain causal mask."""
        return len(self.branches) > 1

    def tokens(self) -> list[int]:
        return [*self.stem, *(token for branch in self.branches for token in branch)]

    def positions(self) -> list[int]:
        start = len(self.stem)
        return [*range(start), *(start + step for branch in self.branches for step in range(len(branch)))]

    def segments(self) -> list[int]:
        """0 at the stem's tokens, the branch's number, from 1, at the others."""
        numbered = enumerate(self.branches, start=1)
        return [0] * len(self.stem) + [number for number, branch in numbered for _ in branch]

    def columns(self) -> Iterator[tuple[int, list[int]]]:
        """(request number, columns in the row whose logits predict its continuation)."""
        start = len(self.stem)
        shifts = [0, *itertools.accumulate(map(len, self.branches), initial=0)]
        for number, branch, length in self.members:
            last, shift = start + (len(self.branches[branch - 1]) if branch else 0), shifts[branch]
            places = range(last - length, last)
            yield number, [place + (shift if place >= start else 0) for place in places]

    def add(self, number: int, tokens: list[int], length: int, *, branching: bool, limit: int) -> bool:
        """Takes one more input in, if that pays and the row stays within `limit` tokens; says whether it did."""
        shared = common_prefix(self.stem, tokens)
        stem = self.stem[:shared]
        moved = self.stem[shared:]
        branches = [moved + branch for branch in self.branches] or ([moved] if moved else [])
        rest = tokens[shared:]
        known = branches.index(rest) + 1 if rest in branches else 0
        cost = shared + sum(map(len, branches)) + (len(rest) if rest and not known else 0)
        if len(self) + len(tokens) - cost < WORTH * len(tokens) or cost > limit or not shared:
            return False
        grown = [*branches, rest] if rest and not known else branches
        if not branching and len(grown) > 1:
            return False
        if moved and not self.branches:  # members that ended at the stem now end in the branch that it became
            self.members = [(one, 1, size) for one, _, size in self.members]
        elif moved and any(branch == 0 for _, branch, _ in self.members):
            return False
        self.stem, self.branches = stem, grown
        self.members.append((number, (known or len(grown)) if rest else 0, length))
        return True


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))


def rows(requests: Sequence[Request], max_length: int, *, branching: bool) -> list[Row]:
    """Requests as rows. Only neighbours share one: lm-eval asks for the options of an item one after the other.

    Args:
        max_length: tokens that the model reads of one request.
        branching: whether the model can take a mask of its own; without it, inputs share a row only where the longer
            begins with the shorter.
    """
    found: list[Row] = []
    for number, request in enumerate(requests):
        tokens, length = request.input(max_length), len(request.continuation)
        if found and found[-1].add(number, tokens, length, branching=branching, limit=2 * max_length):
            continue
        found.append(Row(tokens, members=[(number, 0, length)]))
    return found


def batches(found: Sequence[Row], budget: int) -> Iterator[list[Row]]:
    """The longest rows first, as many at once as fit `budget` tokens with padding, one at least.

    Rows with branches and rows without don't mix: the latter take the faster plain causal mask.
    """
    batch: list[Row] = []
    for row in sorted(found, key=lambda row: (row.tree, -len(row))):
        if batch and (row.tree != batch[0].tree or (len(batch) + 1) * len(batch[0]) > budget):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
