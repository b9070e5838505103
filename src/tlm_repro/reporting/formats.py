"""Tables for people: text with uncertainties and units, shaded, and their writers (CSV, Markdown, LaTeX)."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from tlm_repro.architectures import ARCHITECTURES
from tlm_repro.artifacts import write_text
from tlm_repro.reporting import needle
from tlm_repro.reporting.results import MAIN_METRICS, NOT_PUBLISHED, PERPLEXITIES

Tone = Literal["", "better", "better-unclear", "worse", "worse-unclear"]

MAIN_TITLES = {
    "wikitext_ppl": "WikiText ppl ↓",
    "lambada_ppl": "LAMBADA ppl ↓",
    "lambada_acc": "LAMBADA % ↑",
    "piqa": "PIQA % ↑",
    "hellaswag": "HellaSwag % ↑",
    "winogrande": "WinoGrande % ↑",
    "arc_easy": "ARC-e % ↑",
    "arc_challenge": "ARC-c % ↑",
    "siqa": "SIQA % ↑",
    "boolq": "BoolQ % ↑",
    "avg": "Avg % ↑",
}
UNCERTAINTY = (
    "± one standard error, over seeds or, with one seed, over the evaluated items; differences ± half a 95 % interval."
)
SHADES = "Shaded: better (green) or worse (red) than uniform, pale where the difference lies within its interval."
TOY = "Toy scale: not comparable with the paper's numbers."
LATEX_HEAD = """\
% Needs \\usepackage{booktabs} and \\usepackage[table]{xcolor}, in the preamble. To compile it alone:
% \\documentclass{article}\\usepackage{booktabs}\\usepackage[table]{xcolor}\\begin{document}\\input{FILE}\\end{document}
\\providecolor{better}{HTML}{BFE3C0}
\\providecolor{better-unclear}{HTML}{E6F3E6}
\\providecolor{worse}{HTML}{F4BFB8}
\\providecolor{worse-unclear}{HTML}{FBE7E4}
"""
LATEX_TEXT = {
    "±": r"$\pm$",
    "−": "$-$",
    "↓": r"$\downarrow$",
    "↑": r"$\uparrow$",
    "ρ": r"$\rho$",
    needle.BEYOND: r"$\dagger$",
    f"& {NOT_PUBLISHED}": "& n/p",
}
INTERVAL = re.compile(r"([+−]?\d+\.\d) \[(.+?)\]")


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
    if pd.isna(value):
        return missing
    form = ".2e" if abs(value) >= 1e5 else f".{digits}f"
    text = f"{value:{'+' if signed else ''}{form}}" + ("" if pd.isna(error) else f" ± {error:{form}}")
    return text.replace("-", "−")


def printed(value: float, digits: int = 2, signed: bool = False) -> str:
    return number(value, digits=digits, signed=signed, missing=NOT_PUBLISHED)


def tone(effect: float, interval: float) -> Tone:
    """Shade of an effect that is positive when better."""
    if pd.isna(effect) or effect == 0:
        return ""
    clear = abs(effect) > interval
    if effect > 0:
        return "better" if clear else "better-unclear"
    return "worse" if clear else "worse-unclear"


def architecture_title(name: str) -> str:
    return ARCHITECTURES[name].title if name in ARCHITECTURES else name


def caption(title: str, frame: pd.DataFrame, *notes: str) -> str:
    toy = "toy" in frame and bool(frame["toy"].any())
    return " ".join([title, *notes, UNCERTAINTY, *([TOY] if toy else [])])


def sheet(name: str, rows: list[dict[str, tuple[str, Tone]]], title: str, words: tuple[str, ...]) -> Sheet:
    """Puts rows of (text, tone) into a sheet; `words` names the columns that hold no numbers."""
    text = pd.DataFrame([{column: cell[0] for column, cell in row.items()} for row in rows])
    tones = pd.DataFrame([{column: cell[1] for column, cell in row.items()} for row in rows])
    return Sheet(name, title, text, tones, tuple(column for column in text.columns if column not in words))


def validation_sheet(name: str, frame: pd.DataFrame) -> Sheet:
    """Sheet of `tables.sweep` or `tables.motivation`."""
    first, title = {
        "sweep": ("allocation", "Table 1: width allocations."),
        "motivation": ("label", "Figure 2: where the width goes."),
    }[name]
    rows = []
    for row in frame.to_dict(orient="records"):
        shade = tone(-row["difference"], row["difference_interval"])
        uniform = row[first] == "uniform"
        change = "" if uniform else number(row["difference"], row["difference_interval"], 4, signed=True)
        cells: dict[str, tuple[str, Tone]] = {
            "Allocation": (row[first], ""),
            "Architecture": (architecture_title(row["architecture"]), ""),
            "Scale": (row["scale"], ""),
            "Seeds": (str(row["seeds"]), ""),
            "Loss (nats/token)": (number(row["val_loss"], row["val_loss_se"], 4), shade),
            "Perplexity": (number(row["val_ppl"], row["val_ppl_se"], 2), shade),
            "Loss − uniform (nats)": (change, shade),
            "Paper loss (440M)": (printed(row["published_val_loss"]), ""),
            "Paper perplexity (440M)": (printed(row["published_val_ppl"]), ""),
        }
        rows.append(cells)
    resolution = "The paper's perplexities are exp(loss rounded to 0.01 nat): compare losses."
    return sheet(name, rows, caption(title, frame, resolution, SHADES), ("Allocation", "Architecture", "Scale"))


def main_sheet(name: str, frame: pd.DataFrame) -> Sheet:
    """Sheet of `tables.main`: ours above the paper's, for each row of Table 2 and for the difference."""
    rows: list[dict[str, tuple[str, Tone]]] = []
    for _, group in frame.groupby(["architecture", "scale"], sort=False):
        records = [dict(zip(frame.columns, row, strict=True)) for row in group.itertuples(index=False)]
        changes = {row["label"]: row for row in records if row["quantity"] == "difference"}
        known = any(not pd.isna(row[f"published_{metric}"]) for row in records for metric in MAIN_METRICS)
        for row in records:
            rows.append(main_cells(row, changes.get(row["label"]), "ours"))
            if known:
                rows.append(main_cells(row, changes.get(row["label"]), "paper"))
        if not known:
            rows.append(
                head(records[0], "all rows", "paper") | dict.fromkeys(MAIN_TITLES.values(), (NOT_PUBLISHED, ""))
            )
    units = "Difference: tapered − uniform, perplexities in nats (logarithm of their ratio), accuracies in points."
    title = caption("Table 2: zero-shot evaluation.", frame, units, SHADES)
    return sheet(name, rows, title, ("Architecture", "Scale", "Allocation", "Source"))


def head(row: dict[str, Any], label: str, source: str) -> dict[str, tuple[str, Tone]]:
    title = architecture_title(row["architecture"])
    return {"Architecture": (title, ""), "Scale": (row["scale"], ""), "Allocation": (label, ""), "Source": (source, "")}


def main_cells(row: dict[str, Any], change: dict[str, Any] | None, source: str) -> dict[str, tuple[str, Tone]]:
    """One line of the main sheet; the level of a row that has a `change` is shaded by it."""
    level, prefix = row["quantity"] == "level", "" if source == "ours" else "published_"
    cells = head(row, row["label"] if level else f"{row['label']} − uniform", source)
    for metric, title in MAIN_TITLES.items():
        perplexity = metric in PERPLEXITIES
        digits = (2 if perplexity or metric == "avg" else 1) if level else (4 if perplexity else 2)
        error = math.nan if prefix else row[f"{metric}_se" if level else f"{metric}_interval"]
        text = number(row[prefix + metric], error, digits, not level, NOT_PUBLISHED if prefix else "not run")
        shade: Tone = ""
        if level and change is not None:
            effect = change[prefix + metric] * (-1 if perplexity else 1)
            shade = tone(effect, 0.0 if prefix else change[f"{metric}_interval"])
        cells[title] = (text, shade)
    return cells


def needle_sheet(name: str, frame: pd.DataFrame) -> Sheet:
    """Sheet of `needle.table`: a level is shaded by its difference from uniform."""
    rows: list[dict[str, tuple[str, Tone]]] = []
    columns, training = needle.metrics(frame.columns), frame["training_length"].min()
    titles = {
        item.name: f"{needle.task_title(item.task)} {needle.length_title(item.length, training)}" for item in columns
    }
    records = [dict(zip(frame.columns, row, strict=True)) for row in frame.itertuples(index=False)]
    keys = ("architecture", "scale", "label")
    changes = {tuple(row[key] for key in keys): row for row in records if row["quantity"] == "difference"}
    for row in records:
        level = row["quantity"] == "level"
        change = changes.get(tuple(row[key] for key in keys))
        cells = head(row, row["label"] if level else f"{row['label']} − uniform", "ours")
        for metric, title in titles.items():
            bounds = row[f"{metric}_low"], row[f"{metric}_high"]
            shade: Tone = needle_tone(change, metric) if level and change else ""
            cells[title] = (with_interval(row[metric], *bounds, signed=not level), shade)
        rows.append(cells)
    everything = dict.fromkeys(("Architecture", "Scale", "Allocation"), "all") | {"Source": "paper"}
    everything |= dict.fromkeys(titles.values(), NOT_PUBLISHED)
    rows.append({column: (text, "") for column, text in everything.items()})
    notes = [
        "Table 3: needle-in-a-haystack. Needles found in percent, by task and length in tokens; differences in points.",
        "In brackets 95 % intervals: Wilson's for a score, over seeds or else Newcombe's for a difference.",
        f"{needle.BEYOND} longer than the training length of {training:,.0f} tokens."
        * any(needle.beyond(item.length, training) for item in columns),
        *needle.conditions(*frame[["rope_scaling", "generator"]].iloc[0]),
        SHADES,
        TOY * bool(frame["toy"].any()),
    ]
    return sheet(name, rows, " ".join(filter(None, notes)), ("Architecture", "Scale", "Allocation", "Source"))


def needle_tone(change: dict[str, Any], metric: str) -> Tone:
    """Shade of a needle score by the interval of its difference from uniform."""
    effect = change[metric]
    return tone(effect, effect - change[f"{metric}_low"] if effect > 0 else change[f"{metric}_high"] - effect)


def with_interval(value: float, low: float, high: float, signed: bool = False) -> str:
    """`72.4 [68.3, 76.1]`, in percent or points."""
    text = number(value, digits=1, signed=signed)
    return text if pd.isna(value) or pd.isna(low) else f"{text} [{number(low, digits=1)}, {number(high, digits=1)}]"


def novelty_sheet(name: str, frame: pd.DataFrame) -> Sheet:
    """Sheet of `tables.novelty`."""
    rows: list[dict[str, tuple[str, Tone]]] = []
    for row in frame.to_dict(orient="records"):
        cells: dict[str, str] = {
            "Model": row["model"],
            "Layers": str(row["layers"]),
            "Tokens": f"{row['tokens']:,}",
            "r block": number(row["r_block"], row["r_block_se"], 3, missing="undefined"),
            "r MLP": number(row["r_mlp"], row["r_mlp_se"], 3, missing="undefined"),
            "Layers in r (block, MLP)": f"{row['layers_block']}, {row['layers_mlp']}",
            "Paper r block": printed(row["published_r_block"]),
            "Paper r MLP": printed(row["published_r_mlp"]),
        }
        rows.append({column: (text, "") for column, text in cells.items()})
    title = (
        "Figure 4: Pearson r of layer novelty ρ with depth, first and last layers dropped, ± one standard error of "
        "the sampled tokens. The paper gives ranges over GPT-2 124M to 1.5B: block 0.27 to 0.71, MLP 0.49 to 0.71."
    )
    return sheet(name, rows, title, ("Model",))


SHEETS: dict[str, Callable[[str, pd.DataFrame], Sheet]] = {
    "motivation": validation_sheet,
    "sweep": validation_sheet,
    "main": main_sheet,
    "niah": needle_sheet,
    "novelty": novelty_sheet,
}


def csv(frame: pd.DataFrame) -> str:
    """Full precision; a published value that isn't there says so, any other missing one is empty."""
    published = [column for column in frame.columns if column.startswith("published_") and column != "published_scale"]
    text = frame.astype(dict.fromkeys(published, object))
    text[published] = text[published].where(frame[published].notna(), NOT_PUBLISHED)
    return text.to_csv(index=False, lineterminator="\n")


def markdown(table: Sheet) -> str:
    align = ["right" if column in table.numeric else "left" for column in table.text.columns]
    body = table.text.to_markdown(index=False, colalign=align, disable_numparse=True)
    return f"{table.caption}\n\n{body}\n"


def latex(table: Sheet) -> str:
    """A `table` environment with booktabs rules and shaded cells; its first lines say which packages it needs."""
    absent = bool((table.text == NOT_PUBLISHED).any(axis=None))
    tones = table.tones.map(lambda shade: f"cellcolor:{{{shade}}}" if shade else "")
    styler = table.text.style.hide(axis="index").format(escape="latex").format_index(escape="latex", axis=1)
    body = styler.apply(lambda _: tones, axis=None).to_latex(
        hrules=True,
        column_format="".join("r" if column in table.numeric else "l" for column in table.text.columns),
        caption=table.caption.replace("%", r"\%") + (" n/p: not published here." if absent else ""),
        label=f"tab:{table.name}",
        position_float="centering",
    )
    body = INTERVAL.sub(r"\\shortstack{\1\\\\{}[\2]}", body)
    for text, command in LATEX_TEXT.items():
        body = body.replace(text, command)
    wide = len(table.text.columns) > 9
    size = r"\tiny\setlength{\tabcolsep}{2pt}" if wide else r"\small\setlength{\tabcolsep}{4pt}"
    return LATEX_HEAD + body.replace("\\centering", f"\\centering{size}", 1)


def write(name: str, frame: pd.DataFrame, folder: Path) -> list[Path]:
    """Writes `<name>.csv`, `<name>.md` and `<name>.tex` into `folder`, each atomically, and returns their paths."""
    table = SHEETS[name](name, frame)
    texts = {"csv": csv(frame), "md": markdown(table), "tex": latex(table)}
    for suffix, text in texts.items():
        write_text(folder / f"{name}.{suffix}", text)
    return [folder / f"{name}.{suffix}" for suffix in texts]
