"""Haystacks: RULER's five sentences of noise, repeated, or the sentences of a text.

A haystack is a list of pieces, each with the white space that joins it to the piece before. Prompts are filled piece by
piece, so a piece is at most a sentence. A needle can stand before a piece that begins a sentence (in noise, a line).
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, cycle, islice

from tlm_repro.data.readers.base import Document
from tlm_repro.errors import EvaluationError
from tlm_repro.evaluation.needle.tasks import NOISE

TokenCounts = Callable[[Sequence[str]], list[int]]

# A longer sentence is split into pieces, so that prompts come close to their length. A needle can stand only before the
# first piece of a sentence.
LONGEST_PIECE = 16  # words
PIECES_AT_ONCE = 512
RESERVE = 2  # times the tokens needed, because pieces can have more tokens alone than joined

SENTENCE_END = re.compile(r"[.!?][\"'”’)\]]*\s+(?=[\"'“‘(\[]*[A-Z0-9])")
# Words whose full stop doesn't end a sentence. Initials, as in "J. F. Kennedy", are recognised by their form.
ABBREVIATIONS = frozenset(
    [
        "mr",
        "mrs",
        "ms",
        "dr",
        "st",
        "gen",
        "col",
        "gov",
        "sen",
        "rep",
        "jr",
        "sr",
        "no",
        "vs",
        "vol",
        "fig",
        "cf",
        "etc",
    ]
)


@dataclass(frozen=True)
class Piece:
    text: str
    joint: str  # white space between it and the piece before it
    starts: bool  # whether it begins a sentence or, in noise, a line


class Haystack:
    """Pieces with the cumulative sums of their token counts. `separator` stands on both sides of a needle."""

    def __init__(self, pieces: Sequence[Piece], counts: Sequence[int], separator: str) -> None:
        self.pieces, self.separator = pieces, separator
        self.tokens = [0, *accumulate(counts)]
        self.starts = [index for index, piece in enumerate(pieces) if piece.starts]

    def pieces_within(self, tokens: int) -> int:
        """The number of pieces with about this many tokens."""
        return max(bisect_right(self.tokens, tokens) - 1, 0)

    def place(self, depth: float, pieces: int) -> int:
        """The index of the piece before which a needle stands at `depth`, 0…1 of the first `pieces` pieces' tokens."""
        target = depth * self.tokens[pieces]
        allowed = [*self.starts[: bisect_left(self.starts, pieces)], pieces]
        after = bisect_left(allowed, target, key=lambda index: self.tokens[index])
        nearest = allowed[max(after - 1, 0) : after + 1]
        return min(nearest, key=lambda index: abs(self.tokens[index] - target))

    def context(self, pieces: int, needles: Sequence[str], depths: Sequence[float]) -> str:
        """The first `pieces` pieces with each needle at its depth. Needles at the same place keep their order."""
        places = sorted((self.place(depth, pieces), number) for number, depth in enumerate(depths))
        parts, last = [], 0
        for place, number in places:
            parts += [self.span(last, place), needles[number]]
            last = place
        parts.append(self.span(last, pieces))
        return self.separator.join(part for part in parts if part)

    def span(self, first: int, last: int) -> str:
        if first == last:
            return ""
        rest = self.pieces[first + 1 : last]
        return self.pieces[first].text + "".join(piece.joint + piece.text for piece in rest)


def noise(counts: TokenCounts, tokens: int) -> Haystack:
    """RULER's sentences, one line for each repetition, at least `tokens` tokens in total."""
    line = [Piece(text, " " if number else "\n", number == 0) for number, text in enumerate(NOISE)]
    return fill_haystack(lambda: iter(line), counts, tokens, separator="\n")


def essays(texts: Iterable[Document], counts: TokenCounts, tokens: int) -> Haystack:
    """The sentences of the texts in order, repeated if the texts are too short.

    Raises:
        EvaluationError: the texts have no sentence.
    """
    cache: list[Piece] = []

    def pieces() -> Iterator[Piece]:
        if cache:
            yield from cache
            return
        for document in texts:
            for piece in text_pieces(document.text):
                cache.append(piece)
                yield piece

    return fill_haystack(pieces, counts, tokens, separator=" ")


def fill_haystack(source: Callable[[], Iterator[Piece]], counts: TokenCounts, tokens: int, separator: str) -> Haystack:
    """The pieces of `source`, repeated until they have `RESERVE` times `tokens` tokens."""
    pieces: list[Piece] = []
    lengths: list[int] = []
    first_round = source()
    first_piece = next(first_round, None)
    if first_piece is None:
        raise EvaluationError("the haystack's text has no sentence: name a text with words under niah's `text`")
    # The first round is read lazily. `source` repeats what was read in every later round.
    rounds = chain([first_piece], first_round, chain.from_iterable(source() for _ in cycle((0,))))
    total = 0
    while total < RESERVE * tokens:
        more = list(islice(rounds, PIECES_AT_ONCE))
        lengths += counts([piece.joint + piece.text for piece in more])
        pieces += more
        if sum(lengths[-len(more) :]) == 0:
            raise EvaluationError("the tokenizer has no tokens for the haystack's text: use another text or tokenizer")
        total += sum(lengths[-len(more) :])
    return Haystack(pieces, lengths, separator)


def text_pieces(text: str) -> Iterator[Piece]:
    """The sentences of a text with single spaces. Long sentences are split into pieces."""
    for sentence in sentences(" ".join(text.split())):
        words = sentence.split(" ")
        for first in range(0, len(words), LONGEST_PIECE):
            yield Piece(" ".join(words[first : first + LONGEST_PIECE]), " ", first == 0)


def sentences(text: str) -> Iterator[str]:
    """Splits after `.`, `!` or `?` before a capital or a digit, but not after a title or an initial.

    This is a rule rather than nltk's model, which needs a download, because the exact place of a needle between two
    sentences doesn't matter.
    """
    start = 0
    for end in SENTENCE_END.finditer(text):
        word = re.split(r"[\s(]", text[start : end.start()])[-1].strip("\"'“‘[")
        if text[end.start()] == "." and (word.lower() in ABBREVIATIONS or re.fullmatch(r"(?:[A-Z]\.)*[A-Z]", word)):
            continue
        yield text[start : end.end()].strip()
        start = end.end()
    if text[start:].strip():
        yield text[start:].strip()
