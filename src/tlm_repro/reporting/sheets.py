"""Tables as people read them: numbers with uncertainties and units as text, and their shades."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tlm_repro.reporting.lazy import pd
from tlm_repro.reporting.published import NOT_PUBLISHED
from tlm_repro.reporting.results import is_missing
from tlm_repro.reporting.style import architecture_title
from tlm_repro.statistics.estimates import one_run

Tone = Literal["", "better", "better-unclear", "worse", "worse-unclear"]

UNCERTAINTY = (
    "± one standard error, over seeds or, with one seed, over what was evaluated; differences ± half a 95 % interval."
)
SHADES = "Shaded: better (green) or worse (red) than uniform, pale where the difference lies within its interval."
TOY = "Toy scale: not comparable with the paper's numbers."
HEAD = ("Architecture", "Scale", "Allocation", "Source")  # the columns of `head`


@dataclass(frozen=True)
class Sheet:
    """A table as people read it. `tones` has the shape of `text`; `numeric` names the columns to align right."""

    name: str
    caption: str
    text: pd.DataFrame
    tones: pd.DataFrame
    numeric: tuple[str, ...]


def number(
    value: float, error: float = math.nan, digits: int = 2, signed: bool = False, missing: str = "not run"
) -> str:
    """`value ± error` with a fixed number of decimals and a true minus sign; from 100,000 on, three digits of it."""
    if is_missing(value):
        return missing
    form = ".2e" if abs(value) >= 1e5 else f".{digits}f"
    text = f"{value:{'+' if signed else ''}{form}}" + ("" if is_missing(error) else f" ± {error:{form}}")
    return text.replace("-", "−")


def printed(value: float, digits: int = 2, signed: bool = False) -> str:
    return number(value, digits=digits, signed=signed, missing=NOT_PUBLISHED)


def tone(effect: float, interval: float) -> Tone:
    """Shade of an effect that is positive when better."""
    if is_missing(effect) or effect == 0:
        return ""
    clear = abs(effect) > interval
    if effect > 0:
        return "better" if clear else "better-unclear"
    return "worse" if clear else "worse-unclear"


def caption(title: str, frame: pd.DataFrame, *notes: str) -> str:
    toy = "toy" in frame and bool(frame["toy"].any())
    alone = one_run(frame["difference_basis"]) if "difference_basis" in frame else []
    return " ".join([title, *notes, UNCERTAINTY, *alone, *([TOY] if toy else [])])


def toy_note(frame: pd.DataFrame) -> str:
    """What is added to the caption of a table with toy runs; empty for others."""
    return f" {TOY}" if bool(frame["toy"].any()) else ""


def head(row: Mapping[Any, Any], label: str, source: str) -> dict[str, tuple[str, Tone]]:
    """The first cells of a row that stands beside the paper's."""
    values = (architecture_title(row["architecture"]), row["scale"], label, source)
    return {column: (value, "") for column, value in zip(HEAD, values, strict=True)}


def toneless(texts: Mapping[str, str]) -> dict[str, tuple[str, Tone]]:
    """A row of unshaded cells."""
    return {column: (text, "") for column, text in texts.items()}


def sheet(name: str, rows: Sequence[Mapping[str, tuple[str, Tone]]], title: str, words: Sequence[str]) -> Sheet:
    """Puts rows of (text, tone) into a sheet; `words` names the columns that hold no numbers."""
    text = pd.DataFrame([{column: cell[0] for column, cell in row.items()} for row in rows])
    tones = pd.DataFrame([{column: cell[1] for column, cell in row.items()} for row in rows])
    return Sheet(name, title, text, tones, tuple(column for column in text.columns if column not in words))
