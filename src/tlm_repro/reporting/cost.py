"""What the runs of a configuration cost: parameters, tokens, FLOPs, time and, where it can be said, energy.

All of it stands in the evaluation files: a run's validation carries the time and device of its training, so a clone
that pulled the evaluations alone has the same table as the machine that trained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tlm_repro.devices import find_device
from tlm_repro.records.evaluation import Evaluation, Facts, RunIdentity, TrainingCost, ValidationEvaluation
from tlm_repro.reporting import sheets
from tlm_repro.reporting.lazy import pd
from tlm_repro.reporting.style import architecture_title

NOT_RECORDED = "not recorded"
NOT_ESTIMATED = "not estimated"
ALL = "all"
JOULES = 3.6e6  # of a kilowatt-hour
UNITS = (("h", 3600.0), ("min", 60.0), ("s", 1.0))


def energy(training: TrainingCost) -> float | None:
    """kWh of the devices' boards at full load; None where the time or the board's power isn't known."""
    device = find_device(training.device)
    if training.device_seconds is None or device is None or device.watts is None:
        return None
    return device.watts * training.device_seconds / JOULES


@dataclass
class Spent:
    """One run, with the time of its evaluations in seconds."""

    run: RunIdentity
    facts: Facts
    training: TrainingCost | None = None
    evaluation: float = 0.0


def table(files: Sequence[Evaluation], *, toy: bool) -> pd.DataFrame:
    """One row an architecture and scale, each run counted once however many experiments show it, and one for all.

    Times in seconds, energy in kWh. `timed` and `estimated` say for how many of the runs the training's time and energy
    are known: `training_s` and `energy_kwh` are sums over those. Models trained elsewhere are left out.
    """
    runs: dict[str, Spent] = {}
    for file in files:
        if file.run is None or file.model is None:
            continue
        spent = runs.setdefault(file.run.id, Spent(file.run, file.model))
        if isinstance(file, ValidationEvaluation):
            spent.training = spent.training or file.details.training
        spent.evaluation += file.wall_time_s
    groups: dict[tuple[str, str], list[Spent]] = {}
    for spent in runs.values():
        groups.setdefault((spent.run.architecture, spent.run.scale), []).append(spent)
    rows = [summed(*names, group) for names, group in sorted(groups.items())]
    if len(rows) > 1:
        rows.append(summed(ALL, ALL, list(runs.values())))
    return pd.DataFrame([{**row, "toy": toy} for row in rows])


def summed(architecture: str, scale: str, runs: Sequence[Spent]) -> dict[str, Any]:
    trained = [run.training for run in runs if run.training]
    energies = [kwh for training in trained if (kwh := energy(training)) is not None]
    parameters = [run.facts.parameters for run in runs]
    flops = [run.facts.training_flops for run in runs]
    return {
        "architecture": architecture,
        "scale": scale,
        "runs": len(runs),
        "parameters_low": min(parameters),
        "parameters_high": max(parameters),
        "tokens": sum(run.facts.tokens for run in runs),
        "flops_low": min(flops),
        "flops_high": max(flops),
        "flops": sum(flops),
        "devices": ", ".join(sorted({training.device for training in trained})),
        "timed": len(trained),
        "training_s": sum(training.wall_time_s for training in trained),
        "evaluation_s": sum(run.evaluation for run in runs),
        "estimated": len(energies),
        "energy_kwh": sum(energies),
    }


def sheet(name: str, frame: pd.DataFrame) -> sheets.Sheet:
    """Sheet of `table`: times in the largest unit of which the longest has at least two."""
    longest = max(frame["training_s"].max(), frame["evaluation_s"].max())
    unit, seconds = next((unit for unit in UNITS if longest >= 2 * unit[1]), UNITS[-1])
    rows: list[dict[str, tuple[str, sheets.Tone]]] = []
    for row in frame.to_dict(orient="records"):
        both = row["architecture"] == ALL
        timed, time = row["timed"], f"{row['training_s'] / seconds:,.1f}"
        energy = f"{row['energy_kwh']:,.3g}" if row["energy_kwh"] < 100 else f"{row['energy_kwh']:,.0f}"
        texts: dict[str, str] = {
            "Architecture": ALL if both else architecture_title(row["architecture"]),
            "Scale": row["scale"],
            "Runs": f"{row['runs']:,}",
            "Parameters": "" if both else span(row["parameters_low"], row["parameters_high"], "{:,}".format),
            "Training tokens": f"{row['tokens']:,}",
            "FLOPs a run": "" if both else span(row["flops_low"], row["flops_high"], "{:.2e}".format),
            "FLOPs": f"{row['flops']:.2e}",
            f"Training ({unit})": partly(time, timed, row["runs"], NOT_RECORDED),
            f"Evaluation ({unit})": f"{row['evaluation_s'] / seconds:,.1f}",
            "Trained on": row["devices"] or NOT_RECORDED,
            "Energy (kWh)": partly(energy, row["estimated"], row["runs"], NOT_ESTIMATED),
        }
        rows.append(sheets.toneless(texts))
    title = (
        "Cost of this configuration's runs, each counted once. FLOPs are the training's, computed from the shapes. "
        "Times are wall time, of all attempts of a run. Energy is an estimate of the training's: time × devices × the "
        "power of the board in the vendor's data sheet, as if under full load, without host, network and cooling; it "
        "isn't estimated for a device whose board power isn't known, as a CPU's."
    )
    title += sheets.toy_note(frame)
    return sheets.sheet(name, rows, title, ("Architecture", "Scale", "Trained on"))


def span(low: float, high: float, show: Callable[[float], str]) -> str:
    """One value, or the lowest and the highest."""
    return show(low) if show(low) == show(high) else f"{show(low)}–{show(high)}"


def partly(text: str, covered: int, runs: int, missing: str) -> str:
    """A sum over `covered` of the runs, with their number unless it is all."""
    if not covered:
        return missing
    return text if covered == runs else f"{text} ({covered} of {runs} runs)"
