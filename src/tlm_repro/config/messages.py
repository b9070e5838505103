"""One line a mistake: the file, the key, what was seen, and what to do."""

import difflib
from collections.abc import Sequence
from typing import Any

from tlm_repro.errors import ConfigError

REFERENCE = "config/README.md"
SEVERAL_KINDS = ("corpus", "tokenizer", "text")

Problem = tuple[str, str]  # key path, what is wrong and what to do


def failure(source: str, problems: list[Problem]) -> ConfigError:
    lines = [f"{source}: {path}: {text}" for path, text in problems]
    return ConfigError("\n".join(lines))


def explain(error: Any) -> Problem:
    """One of pydantic's errors as key path and remedy."""
    path = ".".join(keys_of(error["loc"])) or "the whole file"
    seen = error["input"]
    if error["type"] == "extra_forbidden":
        return path, f"unknown key (its value is {seen!r}): {REFERENCE} lists every key; remove or rename it"
    if error["type"] == "missing":
        return path, f"this key is missing: add it ({REFERENCE} says what it means)"
    message = error["msg"].removeprefix("Value error, ")
    return path, f"{seen!r} doesn't fit: {message[0].lower()}{message[1:]} (see {REFERENCE})"


def keys_of(location: Sequence[int | str]) -> list[str]:
    """The keys that a user wrote; pydantic adds the kind after one that holds sections of several kinds."""
    parts = [str(part) for part in location]
    return [part for before, part in zip(["", *parts], parts, strict=False) if before not in SEVERAL_KINDS]


def unknown(kind: str, seen: str, known: list[str]) -> str:
    close = difflib.get_close_matches(seen, known, n=1)
    hint = f"; did you mean '{close[0]}'?" if close else "."
    return f"unknown {kind} '{seen}'{hint} Known: {', '.join(known)}"
