"""What needles are hidden in: RULER's five sentences of noise over and over, or the sentences of a text.

A haystack is a list of pieces, each with what joins it to the one before. Prompts are filled piece by piece, so a piece
is a sentence at most; where a piece begins a sentence (of noise: a line), a needle may stand before it.
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

# A longer sentence comes in pieces, so that prompts come near their length; a needle may stand before the first alone.
LONGEST_PIECE = 16  # words
PIECES_AT_ONCE = 512
# Counted alone, pieces may have more tokens than when joined: so much more text than asked for is kept at hand.
RESERVE = 2

SENTENCE_END = re.compile(r"[.!?][\"'”’)\]]*\s+(?=[\"'“‘(\[]*[A-Z0-9])")
# Words whose full stop doesn't end a sentence; single capitals, as in "J. F. Kennedy", are told by their form.
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
    joint: str  # between it and the piece before it
    starts: bool  # whether it begins a sentence, or a line of noise


class Haystack:
    """Pieces with the sums of their token counts; `separator` stands on both sides of a needle."""

    def __init__(self, pieces: Sequence[Piece], counts: Sequence[int], separator: str) -> None:
        self.pieces, self.separator = pieces, separator
        self.tokens = [0, *accumulate(counts)]
        self.starts = [index for index, piece in enumerate(pieces) if piece.starts]

    def pieces_within(self, tokens: int) -> int:
        """How many pieces have about so many tokens."""
        return max(bisect_right(self.tokens, tokens) - 1, 0)

    def place(self, depth: float, pieces: int) -> int:
        """Before which of the first `pieces` pieces a needle at `depth` (0…1, of their tokens) belongs; the end too."""
        target = depth * self.tokens[pieces]
        allowed = [*self.starts[: bisect_left(self.starts, pieces)], pieces]
        after = bisect_left(allowed, target, key=lambda index: self.tokens[index])
        nearest = allowed[max(after - 1, 0) : after + 1]
        return min(nearest, key=lambda index: abs(self.tokens[index] - target))

    def context(self, pieces: int, needles: Sequence[str], depths: Sequence[float]) -> str:
        """The first `pieces` pieces with each needle at its depth; needles at one place stand in the given order."""
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
    """RULER's repeated sentences, a line each time round, at least `tokens` tokens of them."""
    line = [Piece(text, " " if number else "\n", number == 0) for number, text in enumerate(NOISE)]
    return gathered(lambda: iter(line), counts, tokens, separator="\n")


def essays(texts: Iterable[Document], counts: TokenCounts, tokens: int) -> Haystack:
    """The sentences of the texts, in order from the first one's beginning, over again where they are too short.

    Raises:
        EvaluationError: the texts hold no sentence.
    """
    read: list[Piece] = []

    def pieces() -> Iterator[Piece]:
        if read:
            yield from read
            return
        for document in texts:
            for piece in text_pieces(document.text):
                read.append(piece)
                yield piece

    return gathered(pieces, counts, tokens, separator=" ")


def gathered(source: Callable[[], Iterator[Piece]], counts: TokenCounts, tokens: int, separator: str) -> Haystack:
    """Pieces of `source`, round and round, until they have `RESERVE` times `tokens` tokens."""
    found: list[Piece] = []
    lengths: list[int] = []
    first = source()
    start = next(first, None)
    if start is None:
        raise EvaluationError("the haystack's text holds no sentence: name a text with words under niah's `text`")
    # The first round is read once, as it comes; `source` gives what it has read on every later one.
    rounds = chain([start], first, chain.from_iterable(source() for _ in cycle((0,))))
    total = 0
    while total < RESERVE * tokens:
        more = list(islice(rounds, PIECES_AT_ONCE))
        lengths += counts([piece.joint + piece.text for piece in more])
        found += more
        if sum(lengths[-len(more) :]) == 0:
            raise EvaluationError("the tokenizer makes no token of the haystack's text: lengths can't be measured")
        total += sum(lengths[-len(more) :])
    return Haystack(found, lengths, separator)


def text_pieces(text: str) -> Iterator[Piece]:
    """The sentences of a text, white space made single spaces, the long ones in pieces."""
    for sentence in sentences(" ".join(text.split())):
        words = sentence.split(" ")
        for first in range(0, len(words), LONGEST_PIECE):
            yield Piece(" ".join(words[first : first + LONGEST_PIECE]), " ", first == 0)


def sentences(text: str) -> Iterator[str]:
    """Cuts after `.`, `!` or `?` before a capital or a digit, but not after a title or an initial.

    A rule and no model: nltk's needs a download of its own, and where exactly a needle stands between two sentences
    decides nothing.
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
