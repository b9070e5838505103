"""The paper's tables from our runs, ours and published side by side: pure functions to data frames.

One row an allocation (averaged over seeds). Columns `<metric>_se` are standard errors, `<metric>_interval` half widths
of 95 % intervals, `basis` what they rest on, `published_<metric>` the paper's value (missing where it isn't published).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pandas as pd

from tlm_repro.records.novelty import Novelty
from tlm_repro.records.view import Cells, ExperimentView
from tlm_repro.reporting import depth
from tlm_repro.reporting.published import published_loss, reference
from tlm_repro.reporting.results import Results, shape
from tlm_repro.spec.metrics import MAIN_METRICS
from tlm_repro.statistics.estimates import Estimate, difference, level, mean, natural_unit

PUBLISHED_SCALE = "440m"  # of Figure 2 and Table 1

VALIDATION_COLUMNS = (
    *("architecture", "scale", "seeds", "basis", "val_loss", "val_loss_se", "val_ppl", "val_ppl_se"),
    *("difference", "difference_interval", "difference_basis"),
    *("published_val_ppl", "published_val_loss", "published_scale", "toy"),
)
SWEEP_COLUMNS = ("allocation", "start", "end", "schedule", *VALIDATION_COLUMNS)
MOTIVATION_COLUMNS = ("label", "allocation", *VALIDATION_COLUMNS)
MAIN_COLUMNS = (
    *("architecture", "scale", "label", "allocation", "quantity", "seeds", "basis", "toy"),
    *(
        f"{prefix}{metric}{suffix}"
        for metric in MAIN_METRICS
        for prefix, suffix in (("", ""), ("", "_se"), ("", "_interval"), ("published_", ""))
    ),
)
LATE: tuple[depth.Profile, ...] = ("block", "mlp", "norm_ratio")  # means over the last third of the layers
NOVELTY_COLUMNS = (
    *("model", "run", "layers", "parameters", "tokens", "r_block", "r_block_se", "layers_block", "r_mlp", "r_mlp_se"),
    *("layers_mlp", "published_r_block", "published_r_mlp", "toy"),
    *("r_block_low", "r_block_high", "r_mlp_low", "r_mlp_high"),
    *(f"late_{profile}{suffix}" for profile in LATE for suffix in ("", "_se")),
)


def sweep(results: Results, view: ExperimentView) -> pd.DataFrame:
    """Table 1: validation loss (nats/token) and perplexity by allocation; `difference` is the loss less uniform's.

    `difference_basis` is what the difference's interval rests on.
    The published columns hold the paper's 440M value of the same allocation, whatever scale our row has.
    Raises ArtifactError, naming the run, for a cell without its evaluation.
    """
    rows = validation(results, view, "allocation", "table1_sweep")
    for row in rows:
        row["schedule"], row["start"], row["end"] = shape(row["allocation"])
    return pd.DataFrame(rows, columns=list(SWEEP_COLUMNS))


def motivation(results: Results, view: ExperimentView) -> pd.DataFrame:
    """Figure 2's numbers, by label (uniform, wider-early, …); columns as in `sweep`."""
    return pd.DataFrame(validation(results, view, "label", "figure2_motivation"), columns=list(MOTIVATION_COLUMNS))


def validation(
    results: Results,
    view: ExperimentView,
    by: Literal["label", "allocation"],
    source: Literal["table1_sweep", "figure2_motivation"],
) -> list[dict[str, Any]]:
    """One row an allocation of an experiment that compares validation losses."""
    results.require(view, "validation")
    printed = reference(source).set_index("allocation")["val_ppl"].to_dict()
    rows: list[dict[str, Any]] = []
    for (architecture, scale), names in view.groups(by).items():
        for name, cells in names.items():
            losses = results.seeds(cells, "val_loss")
            loss = mean("val_loss", losses)
            perplexity, perplexity_se = level("val_ppl", loss)
            effect = against_uniform(results, names, name, "val_loss")
            published = printed.get(name, math.nan)
            rows.append(
                {
                    "label": name,
                    "allocation": allocation(cells),
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
                    "published_scale": PUBLISHED_SCALE if name in printed else None,
                    "toy": view.toy,
                }
            )
    return rows


def allocation(cells: Cells) -> str:
    return next(iter(cells.values())).allocation


NOTHING = Estimate(math.nan, math.nan, math.nan, 0, "unknown")


def against_uniform(results: Results, names: Mapping[str, Cells], name: str, metric: str) -> Estimate:
    """The paired difference of `name` and uniform in the metric's natural unit; missing values where there is none."""
    if name == "uniform" or "uniform" not in names:
        return NOTHING
    ours, uniform = results.seeds(names[name], metric), results.seeds(names["uniform"], metric)
    return difference(metric, ours, uniform) or NOTHING


def main(results: Results, view: ExperimentView) -> pd.DataFrame:
    """Table 2: per architecture and scale the uniform row, the tapered row, and tapered − uniform.

    `quantity` is "level" (perplexities, accuracies in percent) or "difference" (perplexities in nats, that is the
    logarithm of their ratio, accuracies in percentage points). `avg` is the plain mean of the eight accuracies.
    A metric that the suite didn't ask for is missing; a run without its zero-shot evaluation raises ArtifactError.
    """
    results.require(view, "zero_shot")
    rows = []
    for (architecture, scale), labels in view.groups().items():
        order = sorted(labels, key=lambda label: label != "uniform")
        printed_scale = next(iter(labels[order[0]].values())).published_scale or scale
        printed = {label: printed_row(architecture, printed_scale, label) for label in order}
        for label in order:
            found = {metric: found_level(results, labels[label], metric) for metric in MAIN_METRICS}
            rows.append(main_row("level", label, labels[label], found, printed[label], view))
        for label in (label for label in order if label != "uniform" and "uniform" in labels):
            effects = {metric: against_uniform(results, labels, label, metric) for metric in MAIN_METRICS}
            published = {
                metric: printed_effect(metric, printed[label][metric], printed["uniform"][metric])
                for metric in MAIN_METRICS
            }
            rows.append(main_row("difference", label, labels[label], effects, published, view))
    return pd.DataFrame(rows, columns=list(MAIN_COLUMNS))


def main_row(
    quantity: str,
    label: str,
    cells: Cells,
    found: Mapping[str, Estimate],
    published: Mapping[str, float],
    view: ExperimentView,
) -> dict[str, Any]:
    cell = next(iter(cells.values()))
    known = next((estimate for estimate in found.values() if estimate.seeds), NOTHING)
    row: dict[str, Any] = {"architecture": cell.architecture, "scale": cell.scale, "label": label}
    row |= {"allocation": cell.allocation, "quantity": quantity, "toy": view.toy}
    row |= {"seeds": known.seeds, "basis": known.basis}
    for metric, estimate in found.items():
        value, stderr = level(metric, estimate) if quantity == "level" else (estimate.mean, estimate.stderr)
        interval = estimate.half_width if quantity == "difference" else math.nan
        row |= {metric: value, f"{metric}_se": stderr, f"{metric}_interval": interval}
        row[f"published_{metric}"] = published[metric]
    return row


def found_level(results: Results, cells: Cells, metric: str) -> Estimate:
    measured = results.seeds(cells, metric)
    return mean(metric, measured) if measured else NOTHING


def printed_row(architecture: str, scale: str, label: str) -> dict[str, float]:
    """A row of the published Table 2; all missing where the paper has no such row."""
    table = reference("table2_main").set_index(["arch", "scale", "allocation"])
    key = (architecture, scale, label)
    return {metric: float(table[metric].get(key, math.nan)) for metric in MAIN_METRICS}


def printed_effect(metric: str, ours: float, uniform: float) -> float:
    """Difference of two printed values in the metric's natural unit."""
    return math.log(ours / uniform) if natural_unit(metric) == "nats" else ours - uniform


def novelty(found: Sequence[Novelty], *, toy: bool) -> pd.DataFrame:
    """Figure 4's correlations with depth, one row a model; the paper gives only their range over GPT-2 sizes.

    `late_…` are means over the last third of the layers; ‖MLP‖ / ‖h‖ is missing for a file that has none.

    `toy` says that our runs are at toy scale; pretrained models never are.
    """
    rows = []
    for item in found:
        model, run = item.model, item.model.run
        row: dict[str, Any] = {"model": model.name, "run": run.id if run else None, "layers": model.layers}
        row |= {"parameters": model.parameters, "tokens": item.tokens}
        block, mlp, _ = depth.correlations(item)
        for name, found_r, correlation in (
            ("block", block, item.correlation.block),
            ("mlp", mlp, item.correlation.mlp),
        ):
            r = found_r or NOTHING
            row |= {f"r_{name}": r.mean, f"r_{name}_se": r.stderr, f"layers_{name}": correlation.layers}
            row |= {f"r_{name}_low": r.interval[0], f"r_{name}_high": r.interval[1]}
        for name in LATE:
            late = depth.late(item, name)
            row[f"late_{name}"], row[f"late_{name}_se"] = late or (math.nan, math.nan)
        rows.append(row | {"published_r_block": math.nan, "published_r_mlp": math.nan, "toy": toy and run is not None})
    return pd.DataFrame(rows, columns=list(NOVELTY_COLUMNS))
