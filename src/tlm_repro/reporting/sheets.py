"""Tables as people read them: text with uncertainties and units, shaded."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from tlm_repro.reporting import cost, needle
from tlm_repro.reporting.cells import (
    SHADES,
    TOY,
    Sheet,
    Tone,
    architecture_title,
    caption,
    number,
    printed,
    sheet,
    tone,
)
from tlm_repro.reporting.results import NOT_PUBLISHED
from tlm_repro.spec.metrics import MAIN_METRICS, PERPLEXITIES

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


def allocations_sheet(name: str, frame: pd.DataFrame) -> Sheet:
    """Sheet of `allocations.table`."""
    rows = []
    for row in frame.to_dict(orient="records"):
        shade = tone(-row["difference"], row["difference_interval"])
        ratios = [size / row["width"] for size in row["widths"]]
        uniform = row["label"] == "uniform"
        cells: dict[str, tuple[str, Tone]] = {
            "Allocation": (row["label"], ""),
            "Source": (row["source"], ""),
            "First, last (÷ D)": (f"{ratios[0]:.2f}, {ratios[-1]:.2f}", ""),
            "Narrowest, widest (÷ D)": (f"{min(ratios):.2f}, {max(ratios):.2f}", ""),
            "Without MLP": (str(row["layers_without_mlp"]), ""),
            "Parameters − uniform": (f"{row['parameters_less_uniform']:+,}".replace("-", "−").replace("+0", "0"), ""),
            "Seeds": (str(row["seeds"]), ""),
            "Loss (nats/token)": (number(row["val_loss"], row["val_loss_se"], 4), shade),
            "Loss − uniform (nats)": (
                "" if uniform else number(row["difference"], row["difference_interval"], 4, signed=True),
                shade,
            ),
        }
        rows.append(cells)
    first = frame.iloc[0]
    title = (
        f"Other allocations at the same MLP budget: {architecture_title(first['architecture'])}, {first['scale']}, "
        f"{len(first['widths'])} layers, D = {first['width']:,}."
    )
    alone = "Each interval holds for its row alone. A layer without an MLP has no norm before it: those are missing."
    return sheet(name, rows, caption(title, frame, alone, SHADES), ("Allocation", "Source"))


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
    """Sheet of `tables.novelty`. The paper's own values have columns where any is known for these models."""
    rows: list[dict[str, tuple[str, Tone]]] = []
    published = {"Paper r block": "published_r_block", "Paper r MLP": "published_r_mlp"}
    known = published if frame[[*published.values()]].notna().to_numpy().any() else {}
    for row in frame.to_dict(orient="records"):
        cells: dict[str, str] = {
            "Model": row["model"],
            "Layers": str(row["layers"]),
            "Tokens": f"{row['tokens']:,}",
            "r block": correlation(row, "block"),
            "r MLP": correlation(row, "mlp"),
            "Layers in r (block, MLP)": f"{row['layers_block']}, {row['layers_mlp']}",
            **{title: printed(row[column]) for title, column in known.items()},
            "Late ρ block": number(row["late_block"], row["late_block_se"], 3, missing="none"),
            "Late ρ MLP": number(row["late_mlp"], row["late_mlp_se"], 3, missing="none"),
            "Late ‖MLP‖/‖h‖": number(row["late_norm_ratio"], row["late_norm_ratio_se"], 3, missing="not in the file"),
        }
        rows.append({column: (text, "") for column, text in cells.items()})
    title = (
        "Figure 4: Pearson r of layer novelty ρ with depth, first and last layers dropped, with the 95 % interval of "
        "the sampled tokens. The paper gives ranges over GPT-2 124M to 1.5B: block 0.27 to 0.71, MLP 0.49 to 0.71. "
        "Late: mean over the last third of the layers without the very last, ± one standard error."
    )
    return sheet(name, rows, title, ("Model",))


def correlation(row: Mapping[Any, Any], kind: str) -> str:
    """`0.62 [0.58, 0.66]`: r with depth and its interval."""
    text = number(row[f"r_{kind}"], digits=3, missing="undefined")
    bounds = [row[f"r_{kind}_{end}"] for end in ("low", "high")]
    return text if pd.isna(bounds[0]) else f"{text} [{', '.join(number(bound, digits=3) for bound in bounds)}]"


QUANTITIES = {"mlp": "ρ MLP", "block": "ρ block", "norm_ratio": "‖MLP‖/‖h‖"}


def novelty_pairs_sheet(name: str, frame: pd.DataFrame) -> Sheet:
    """Sheet of `novelty_pairs.table`."""
    rows: list[dict[str, tuple[str, Tone]]] = []
    for row in frame.to_dict(orient="records"):
        cells: dict[str, str] = {
            "Architecture": architecture_title(row["architecture"]),
            "Scale": row["scale"],
            "Allocation": row["allocation"],
            "Late layers": row["layers"],
            "Quantity": QUANTITIES[row["quantity"]],
            "Seeds": str(row["seeds"]),
            "Uniform": number(row["uniform"], digits=3),
            "Tapered": number(row["tapered"], digits=3),
            "Tapered − uniform": number(row["difference"], row["difference_interval"], 3, signed=True),
        }
        rows.append({column: (text, "") for column, text in cells.items()})
    title = (
        "What tapering does to the novelty of late layers: means over the last third of the layers without the very "
        "last. A lower ρ is more novelty. Differences ± half a 95 % interval, over seeds or, with one, over tokens."
    )
    title += f" {TOY}" if bool(frame["toy"].any()) else ""
    return sheet(name, rows, title, ("Architecture", "Scale", "Allocation", "Late layers", "Quantity"))


def scaling_sheet(name: str, frame: pd.DataFrame) -> Sheet:
    """Sheet of `scaling.table`."""
    rows: list[dict[str, tuple[str, Tone]]] = []
    for row in frame.to_dict(orient="records"):
        fitted, shade = row["kind"] == "ratio", tone(row["gain"], row["gain_interval"])
        cells: dict[str, tuple[str, Tone]] = {
            "What": ("fit over ratios" if fitted else "pair", ""),
            "Source": (row["source"], ""),
            "Architecture": (architecture_title(row["architecture"]), ""),
            "Scale": (row["scale"], ""),
            "Allocation": (row["label"], ""),
            "Parameters": ("" if fitted else f"{row['parameters']:,.0f}", ""),
            "Seeds": ("" if pd.isna(row["seeds"]) else f"{row['seeds']:.0f}", ""),
            "Gain (nats)": ("" if fitted else number(row["gain"], row["gain_interval"], 4, signed=True), shade),
            "Curvature": (number(row["curvature"], row["curvature_interval"], missing="") if fitted else "", ""),
            "Best ratio": (number(row["minimum"], row["minimum_interval"], missing=row["why"]) if fitted else "", ""),
        }
        rows.append(cells)
    title = (
        "Gain over uniform in validation loss by size, and a quadratic of the loss in the first layer's ratio (uniform "
        "is 1): its curvature in nats a squared unit, and the ratio of the least loss, ± half a 95 % interval. No best "
        "ratio is named where the curvature's interval holds 0. Of the paper's numbers only their rounding is known."
    )
    title += f" {TOY}" if bool(frame["toy"].any()) else ""
    return sheet(name, rows, title, ("What", "Source", "Architecture", "Scale", "Allocation"))


def curves_sheet(name: str, frame: pd.DataFrame) -> Sheet:
    """Sheet of `curves.table`."""
    rows: list[dict[str, tuple[str, Tone]]] = []
    for row in frame.to_dict(orient="records"):
        shade = tone(-row["difference"], row["difference_interval"])
        cells: dict[str, tuple[str, Tone]] = {
            "Architecture": (architecture_title(row["architecture"]), ""),
            "Scale": (row["scale"], ""),
            "Allocation": (row["label"], ""),
            "Seeds": (str(row["seeds"]), ""),
            "Until tokens": (f"{row['tokens']:,} ({100 * row['share']:.0f} %)", ""),
            "Training FLOPs": (f"{row['training_flops']:.2e}", ""),
            "Uniform (nats)": (number(row["uniform"], digits=4), ""),
            "Allocation's (nats)": (number(row["other"], digits=4), shade),
            "Difference (nats)": (number(row["difference"], row["difference_interval"], 4, signed=True), shade),
            "Leads": (row["leader"] + " (one run)" * (row["seeds"] == 1), ""),
        }
        rows.append(cells)
    rows = rows or [{"Architecture": ("no training curve in these evaluation files", "")}]
    title = (
        "Training loss by quarters of the training, on the same batches; differences ± half a 95 % interval, over "
        f"seeds or, with one, over the points of the quarter. {SHADES}"
    )
    title += f" {TOY}" if bool(frame["toy"].any()) else ""
    return sheet(name, rows, title, ("Architecture", "Scale", "Allocation", "Leads"))


SHEETS: dict[str, Callable[[str, pd.DataFrame], Sheet]] = {
    "motivation": validation_sheet,
    "sweep": validation_sheet,
    "main": main_sheet,
    "allocations": allocations_sheet,
    "niah": needle_sheet,
    "novelty": novelty_sheet,
    "novelty-pairs": novelty_pairs_sheet,
    "scaling": scaling_sheet,
    "curves": curves_sheet,
    "cost": cost.sheet,
}
