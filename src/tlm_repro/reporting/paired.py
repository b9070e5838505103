"""Rows that several tables share: runs averaged over seeds, their difference from uniform, and the paper's value.

One row an allocation. Columns `<metric>_se` are standard errors, `<metric>_interval` half widths of 95 % intervals,
`basis` what they rest on, `published_<metric>` the paper's value (missing where it isn't published). Losses are in nats
per token; differences are paired by seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from tlm_repro.records.view import Cells, ExperimentView
from tlm_repro.reporting.lazy import pd
from tlm_repro.reporting.published import published_loss, reference
from tlm_repro.reporting.results import Results
from tlm_repro.reporting.sheets import SHADES, Sheet, Tone, caption, number, printed, sheet, tone
from tlm_repro.reporting.style import architecture_title
from tlm_repro.spec.benchmarks import Scale
from tlm_repro.statistics.estimates import Estimate, difference, mean, table_value

PUBLISHED_SCALE = "440m"  # of Figure 2 and Table 1
VALIDATION_COLUMNS = (
    *("architecture", "scale", "seeds", "basis", "val_loss", "val_loss_se", "val_ppl", "val_ppl_se"),
    *("difference", "difference_interval", "difference_basis"),
    *("published_val_ppl", "published_val_loss", "published_scale", "toy"),
)
NOT_MEASURED = Estimate(math.nan, math.nan, math.nan, 0, "unknown")


def validation_rows(
    results: Results,
    view: ExperimentView,
    by: Literal["label", "allocation"],
    source: Literal["table1_sweep", "figure2_motivation"],
) -> list[dict[str, Any]]:
    """One row an allocation of an experiment that compares validation losses; `difference` is the loss less uniform's.

    `difference_basis` is what the difference's interval rests on. The published columns hold the paper's 440M value of
    the same allocation, whatever scale our row has. Raises ArtifactError, naming the run, for a cell without its
    evaluation.
    """
    results.require(view, "validation")
    values = reference(source).set_index("allocation")["val_ppl"].to_dict()
    rows: list[dict[str, Any]] = []
    for (architecture, scale), names in view.groups(by).items():
        for name, cells in names.items():
            losses = results.seeds(cells, "val_loss")
            loss = mean("val_loss", losses)
            perplexity, perplexity_se = table_value("val_ppl", loss)
            effect = against_uniform(results, names, name, "val_loss")
            published = values.get(name, math.nan)
            rows.append(
                {
                    "label": name,
                    "allocation": next(iter(cells.values())).allocation,
                    "architecture": architecture,
                    "scale": scale,
                    "seeds": loss.seeds,
                    "basis": loss.basis,
                    "val_loss": loss.mean,
                    "val_loss_se": loss.stderr,
                    "val_ppl": perplexity,
                    "val_ppl_se": perplexity_se,
                    "difference": effect.mean,
                    "difference_interval": effect.half_width,
                    "difference_basis": effect.basis if effect.seeds else None,
                    "published_val_ppl": published,
                    "published_val_loss": published_loss(published),
                    "published_scale": PUBLISHED_SCALE if name in values else None,
                    "toy": view.toy,
                }
            )
    return rows


def against_uniform(
    results: Results, names: Mapping[str, Cells], name: str, metric: str, scale: Scale | None = None
) -> Estimate:
    """The paired difference of `name` and uniform in the metric's natural unit; missing values where there is none."""
    if name == "uniform" or "uniform" not in names:
        return NOT_MEASURED
    ours, uniform = results.seeds(names[name], metric), results.seeds(names["uniform"], metric)
    return difference(metric, ours, uniform, scale=scale) or NOT_MEASURED


def mean_of(results: Results, cells: Cells, metric: str, scale: Scale | None = None) -> Estimate:
    """The mean over seeds in the metric's natural unit; missing values where no seed has it."""
    measured = results.seeds(cells, metric)
    return mean(metric, measured, scale=scale) if measured else NOT_MEASURED


def validation_sheet(name: str, frame: pd.DataFrame, first: str, title: str) -> Sheet:
    """Sheet of `validation_rows`; `first` is the column that names the allocations."""
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


def groups(table: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """(title, rows) for each architecture and scale, in order."""
    panels = []
    for key, rows in table.groupby(["architecture", "scale"], sort=False):
        architecture, scale = map(str, key)
        seeds = f"{rows['seeds'].min()} seeds" if (rows["seeds"] > 1).all() else "1 seed"
        basis = f"{seeds}, error over tokens" if (rows["basis"] == "evaluation").any() else seeds
        panels.append((f"Ours, {scale} {architecture_title(architecture)}\n({basis})", rows))
    return panels


def known_error(error: float) -> float | None:
    """None for NaN, which error bars can't take."""
    return None if math.isnan(error) else float(error)
