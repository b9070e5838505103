"""The four needle-in-a-haystack tasks of the paper's Appendix A, worded as RULER words them (arXiv 2404.06654).

Every template, sentence and rule for keys and values is RULER's. Its singular forms are used where one value is asked
for; the needle itself keeps the plural there too. No torch here.
"""

import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from tlm_repro.spec.evaluation import NeedleTaskName

NOISE = (
    "The grass is green.",
    "The sky is blue.",
    "The sun is yellow.",
    "Here we go.",
    "There and back again.",
)
NUMBER_RANGE = (1_000_000, 9_999_999)


@dataclass(frozen=True)
class NeedleTask:
    """Where the needles hide, what their values are, and how many are hidden and asked for."""

    haystack: Literal["noise", "essays"]
    values: Literal["number", "uuid"]
    needles: int = 1


NEEDLE_TASKS: dict[NeedleTaskName, NeedleTask] = {
    "single_1": NeedleTask("noise", "number"),
    "single_2": NeedleTask("essays", "number"),
    "single_3": NeedleTask("essays", "uuid"),
    "multiquery": NeedleTask("essays", "number", needles=4),
}


def needle(task: NeedleTask, key: str, value: str) -> str:
    """The sentence that is hidden."""
    return f"One of the special magic {task.values}s for {key} is: {value}."


def prompt(task: NeedleTask, context: str, keys: Sequence[str]) -> str:
    """The whole prompt, to the answer's first words, so that a model without instruction tuning goes on with values."""
    query = ", ".join(keys[:-1]) + f", and {keys[-1]}" if len(keys) > 1 else keys[0]
    if task.needles == 1:
        opening, kind, be, ask = "A", str(task.values), "is", "is"
    else:
        opening, kind, be, ask = "Some", f"{task.values}s", "are", "are all"
    return (
        f"{opening} special magic {kind} {be} hidden within the following text. Make sure to memorize it. "
        f"I will quiz you about the {kind} afterwards.\n{context}\n"
        f"What {ask} the special magic {kind} for {query} mentioned in the provided text?"
        f" The special magic {kind} for {query} mentioned in the provided text {be}"
    )


@cache
def words() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Adjectives and nouns of which keys are made, in alphabetical order."""
    from wonderwords import RandomWord

    source = RandomWord()
    adjectives, nouns = (
        tuple(sorted({word.strip() for word in source.filter(include_categories=[kind])} - {""}))
        for kind in ("adjective", "noun")
    )
    return adjectives, nouns


def draw_pairs(task: NeedleTask, source: random.Random) -> list[tuple[str, str]]:
    """As many different (key, value) pairs as the task has needles: `adjective-noun`, and 7 digits or a UUID."""
    adjectives, nouns = words()
    pairs: dict[str, str] = {}
    while len(pairs) < task.needles:
        key = f"{source.choice(adjectives)}-{source.choice(nouns)}"
        value = draw_value(task, source)
        if value not in pairs.values():
            pairs.setdefault(key, value)
    return list(pairs.items())


def draw_value(task: NeedleTask, source: random.Random) -> str:
    if task.values == "number":
        return str(source.randint(*NUMBER_RANGE))
    return str(uuid.UUID(int=source.getrandbits(128), version=4))
