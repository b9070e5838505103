"""The four needle-in-a-haystack tasks of the paper's Appendix A, in RULER's words (arXiv 2404.06654).

All templates, sentences and rules for keys and values are RULER's. The prompt uses its singular forms if one value is
queried; the needle always has the plural. Doesn't import torch.
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
    """The haystack of a task, the kind of its values, and the number of needles, all of which are queried."""

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
    """The sentence to hide in the haystack."""
    return f"One of the special magic {task.values}s for {key} is: {value}."


def prompt(task: NeedleTask, context: str, keys: Sequence[str]) -> str:
    """The prompt. It ends in the first words of the answer, so that a base model continues with the values."""
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
    """The adjectives and the nouns for keys, in alphabetical order."""
    from wonderwords import RandomWord

    source = RandomWord()
    adjectives, nouns = (
        tuple(sorted({word.strip() for word in source.filter(include_categories=[kind])} - {""}))
        for kind in ("adjective", "noun")
    )
    return adjectives, nouns


def draw_pairs(task: NeedleTask, source: random.Random) -> list[tuple[str, str]]:
    """A distinct (key, value) pair for each needle of the task: `adjective-noun`, and 7 digits or a UUID."""
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
