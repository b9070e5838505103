"""One line for each mistake: the file, the key, what was seen, what is allowed, what to do."""

import difflib
import functools
from collections.abc import Sequence
from typing import Any

from tlm_repro.config.schema import Config
from tlm_repro.errors import ConfigError
from tlm_repro.spec.base import shown

REFERENCE = "config/README.md"

Problem = tuple[str, str]  # key path; what was seen, what is allowed and what to do


def failure(source: str, problems: list[Problem]) -> ConfigError:
    lines = [f"{source}: {path}: {text}" for path, text in problems]
    return ConfigError("\n".join(lines))


def explain(error: Any) -> Problem:
    """One of pydantic's errors as key path and remedy."""
    path = ".".join(_written_keys(error["loc"])) or "the whole file"
    value, context = shown(error["input"]), error.get("ctx", {})
    if error["type"] == "extra_forbidden":
        return path, f"unknown key (its value is {value}). {REFERENCE} lists every key; remove or rename it"
    if error["type"] == "missing":
        return path, f"this key is missing. Add it ({REFERENCE} says what it means)"
    if error["type"] == "union_tag_not_found":
        return f"{path}.kind", f"this key is missing. Add it ({REFERENCE} lists the kinds)"
    if error["type"] == "union_tag_invalid":
        return f"{path}.kind", f"unknown kind '{context['tag']}'. Known: {context['expected_tags']}"
    message = error["msg"].removeprefix("Value error, ")
    return path, f"{value} doesn't fit: {message[0].lower()}{message[1:]} (see {REFERENCE})"


def unknown(kind: str, name: str, known: Sequence[str]) -> str:
    """What to say of a name that points nowhere."""
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean '{close[0]}'?" if close else "."
    return f"unknown {kind} '{name}'{hint} Known: {', '.join(known)}"


def _written_keys(location: Sequence[int | str]) -> list[str]:
    """The keys of a location without those that pydantic adds: the kind after a key that has several kinds."""
    parts = [str(part) for part in location]
    return [part for before, part in zip(["", *parts], parts, strict=False) if before not in _keys_of_several_kinds()]


@functools.cache
def _keys_of_several_kinds() -> frozenset[str]:
    sections = Config.model_json_schema()["$defs"].values()
    return frozenset(
        key for section in sections for key, value in section.get("properties", {}).items() if "discriminator" in value
    )
