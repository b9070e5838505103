"""A plan as plain values for programs, and as tables for people: text for a terminal, Markdown for a proposal."""

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, Literal

from tabulate import tabulate

from tlm_repro.architectures.registry import architecture
from tlm_repro.overview.plan import EvaluationCost, Plan, RunCost, training_hours

Form = Literal["text", "markdown"]
NOT_ESTIMATED = "not estimated"
SUITES = {"validation": "held-out loss", "zero_shot": "benchmarks", "niah": "needle in a haystack"}


def document(plan: Plan) -> dict[str, Any]:
    """The plan as JSON takes it; hours, bytes and FLOPs unrounded."""
    return {**asdict(plan), "totals": totals(plan), "left": left(plan), "notes": notes(plan)}


def totals(plan: Plan) -> dict[str, Any]:
    """Sums over all runs and evaluations, each once."""
    return _sums(plan, plan.runs, plan.evaluations)


def left(plan: Plan) -> dict[str, Any]:
    """The same over what isn't done; a run that has begun counts as a whole one."""
    runs = [run for run in plan.runs if not run.done]
    return _sums(plan, runs, [item for item in plan.evaluations if not item.done])


def _sums(plan: Plan, runs: list[RunCost], evaluations: list[EvaluationCost]) -> dict[str, Any]:
    training = sum(run.gpu_hours for run in runs)
    looking = sum(run.validation_gpu_hours for run in runs)
    measuring = sum(item.gpu_hours or 0.0 for item in evaluations)
    return {
        "runs": len(runs),
        "tokens": sum(run.tokens for run in runs),
        "flops": sum(run.flops for run in runs),
        "gpu_hours": training,
        "validation_gpu_hours": looking,
        "evaluations": len(evaluations),
        "evaluations_not_estimated": sum(item.gpu_hours is None for item in evaluations),
        "evaluation_gpu_hours": measuring,
        "total_gpu_hours": training + looking + measuring,
        "cost": cost(plan, training + looking + measuring),
    }


def cost(plan: Plan, gpu_hours: float) -> float | None:
    """In the currency of the stated price; None without one."""
    price = plan.assumptions.price_per_gpu_hour
    return None if price is None else price * gpu_hours


def notes(plan: Plan) -> list[str]:
    """What the figures hold and what they don't."""
    assumed = plan.assumptions
    found = [
        f"The utilisation of {assumed.mfu:.0%} is an assumption, not a measurement: measure yours with "
        "benchmarks/training.py and state it with --mfu.",
        "FLOPs: three forward passes a token, two a multiply-add, attention over the full T×T scores; activations "
        "that are computed twice aren't counted.",
        "GPU-hours of training hold the validation losses on the way, measured by one process while the others wait; "
        "start, compilation, saving, restarts, failed attempts and queues aren't in them.",
        "A table's GPU-hours are what it alone needs; the total counts a run that several share once.",
        "Checkpoints: weights, AdamW's moments and, for levels with a period, sums of gradients, all in fp32; two are "
        "kept, a third exists while it is written, and all go when a run is finished.",
        "Not known here, so in no sum: the corpus's own files, what Hugging Face's cache keeps of it, of the "
        "benchmarks' data sets and of pretrained models. Metrics and logs take some 200 bytes a step.",
    ]
    if any(item.gpu_hours is None for item in plan.evaluations):
        found.append("Benchmarks aren't estimated: their items are read when they run.")
    if any(item.suite == "niah" for item in plan.evaluations):
        found.append(
            "Needles in a haystack: one pass over each length. Answers come a token at a time, bound by memory rather "
            "than FLOPs: expect it to take longer."
        )
    if any(link.hours is None for link in plan.chain):
        found.append("Tokenising isn't estimated: state its speed with --tokenizing-rate.")
    if plan.toy:
        found.append("This configuration is at toy scale: made for a CPU, where no utilisation of a GPU says anything.")
    return found


def render(plan: Plan, form: Form) -> str:
    """All tables, one after another."""
    done = sum(run.done for run in plan.runs)
    assumed = plan.assumptions
    head = (
        f"{len(plan.runs)} runs, {done} done. Assumed: {assumed.device}, dense {assumed.arithmetic} peak "
        f"{assumed.peak_flops / 1e12:,.1f} TFLOP/s ({assumed.peak_source}), of which {assumed.mfu:.0%} is used."
    )
    sections = [
        ("Training", _training(plan)),
        ("Tables and figures, each alone", _by_table(plan)),
        ("Evaluation", _evaluation(plan)),
        ("Altogether", _altogether(plan)),
        ("Longest chain", _chain(plan)),
        ("Disk", _disk(plan)),
        ("Runs", _runs(plan)),
    ]
    parts = [heading(f"Plan of {plan.config}", form, 2), head]
    for title, rows in sections:
        parts += [heading(title, form, 3), grid_of(rows, form)]
    listed = "\n".join(f"{'-' if form == 'markdown' else '*'} {note}" for note in notes(plan))
    return "\n\n".join([*parts, heading("Notes", form, 3), listed])


def heading(text: str, form: Form, level: int) -> str:
    if form == "markdown":
        return f"{'#' * level} {text}"
    return f"{text}\n{('=' if level == 2 else '-') * len(text)}"


def grid_of(rows: list[dict[str, str]], form: Form) -> str:
    """A table whose columns of numbers are to the right."""
    numeric = {
        column: all(row[column][:1].isdigit() or row[column] in ("", "—", NOT_ESTIMATED) for row in rows)
        for column in rows[0]
    }
    align = ["right" if numeric[column] else "left" for column in rows[0]]
    style = "github" if form == "markdown" else "simple"
    return tabulate(rows, headers="keys", tablefmt=style, colalign=align, disable_numparse=True)


def size(count: float) -> str:
    """Bytes in decimal units."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= scale:
            return f"{count / scale:,.1f} {unit}"
    return f"{count / 1e3:,.1f} kB"


def scaled(count: float) -> str:
    """A number of tokens or parameters."""
    for unit, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= scale:
            return f"{count / scale:,.4g} {unit}"
    return f"{count:,.0f}"


def hours(count: float | None) -> str:
    if count is None:
        return NOT_ESTIMATED
    if count >= 1:
        return f"{count:,.0f}" if count >= 100 else f"{count:.1f}"
    return f"{count:.2g}"


def _priced(plan: Plan, row: dict[str, str], gpu_hours: float) -> dict[str, str]:
    """The row with its cost, where a price is stated."""
    amount = cost(plan, gpu_hours)
    return row if amount is None else {**row, "Cost": f"{amount:,.0f}"}


def _range(values: Iterable[float], show: Callable[[float], str]) -> str:
    """One value, or the lowest and the highest."""
    shown = list(dict.fromkeys(show(value) for value in sorted(values)))
    return shown[0] if len(shown) == 1 else f"{shown[0]}–{shown[-1]}"


def _training(plan: Plan) -> list[dict[str, str]]:
    groups: dict[tuple[str, str], list[RunCost]] = {}
    for run in plan.runs:
        groups.setdefault((run.scale, run.arch), []).append(run)
    rows = [
        _priced(
            plan,
            {
                "Scale": scale,
                "Architecture": architecture(name).title,
                "Runs": str(len(runs)),
                "Done": str(sum(run.done for run in runs)),
                "Parameters": _range((run.parameters for run in runs), scaled),
                "Tokens a run": _range((run.tokens for run in runs), scaled),
                "FLOPs a run": _range((run.flops for run in runs), "{:.2e}".format),
                "GPUs a run": _range((run.processes for run in runs), "{:.0f}".format),
                "Hours a run": _range((run.wall_hours for run in runs), hours),
                "GPU-hours": hours(training_hours(runs)),
            },
            training_hours(runs),
        )
        for (scale, name), runs in groups.items()
    ]
    every = {
        "Scale": "all",
        "Architecture": "",
        "Runs": str(len(plan.runs)),
        "Done": str(sum(run.done for run in plan.runs)),
        "Parameters": "",
        "Tokens a run": "",
        "FLOPs a run": "",
        "GPUs a run": "",
        "Hours a run": "",
        "GPU-hours": hours(training_hours(plan.runs)),
    }
    return [*rows, _priced(plan, every, training_hours(plan.runs))]


def _by_table(plan: Plan) -> list[dict[str, str]]:
    return [
        _priced(
            plan,
            {
                "": table.title,
                "Experiment": table.name,
                "Runs": str(table.runs),
                "Shared": str(table.shared),
                "Runs done": str(table.runs_done),
                "Evaluations": str(table.evaluations),
                "Evaluations done": str(table.evaluations_done),
                "GPU-hours of training": hours(table.gpu_hours),
                "of evaluation": hours(table.evaluation_gpu_hours),
            },
            table.gpu_hours + table.evaluation_gpu_hours,
        )
        for table in plan.tables
    ]


def _evaluation(plan: Plan) -> list[dict[str, str]]:
    rows = []
    for suite in dict.fromkeys(item.suite for item in plan.evaluations):
        alike = [item for item in plan.evaluations if item.suite == suite]
        flops = [item.flops for item in alike if item.flops is not None]
        measured = [item.gpu_hours for item in alike if item.gpu_hours is not None]
        rows.append(
            {
                "Suite": SUITES.get(suite, suite),
                "Evaluations": str(len(alike)),
                "Done": str(sum(item.done for item in alike)),
                "FLOPs": f"{sum(flops):.2e}" if flops else NOT_ESTIMATED,
                "GPU-hours": hours(sum(measured) if measured else None),
            }
        )
    if plan.novelty:
        done = str(plan.novelty_done)
        rows.append(
            {
                "Suite": "layer novelty",
                "Evaluations": str(plan.novelty),
                "Done": done,
                "FLOPs": NOT_ESTIMATED,
                "GPU-hours": NOT_ESTIMATED,
            }
        )
    return rows


def _altogether(plan: Plan) -> list[dict[str, str]]:
    rows = []
    for title, sums in (("all", totals(plan)), ("left to do", left(plan))):
        row = {
            "": title,
            "Runs": str(sums["runs"]),
            "Tokens": scaled(sums["tokens"]),
            "FLOPs": f"{sums['flops']:.2e}",
            "GPU-hours of training": hours(sums["gpu_hours"] + sums["validation_gpu_hours"]),
            "Evaluations": str(sums["evaluations"]),
            "of evaluation": hours(sums["evaluation_gpu_hours"]),
            "GPU-hours": hours(sums["total_gpu_hours"]),
        }
        rows.append(_priced(plan, row, sums["total_gpu_hours"]))
    return rows


def _chain(plan: Plan) -> list[dict[str, str]]:
    rows = [
        {"Stage": link.stage, "What": link.what, "Hours": hours(link.hours), "Left": hours(link.left)}
        for link in plan.chain
    ]
    whole = hours(sum(link.hours or 0.0 for link in plan.chain))
    waiting = hours(sum(link.left or 0.0 for link in plan.chain))
    return [*rows, {"Stage": "together", "What": "what is estimated", "Hours": whole, "Left": waiting}]


def _disk(plan: Plan) -> list[dict[str, str]]:
    disk = plan.disk
    source = "measured" if disk.tokens_measured else "at their budgets"
    tokens = "not known before they are made" if disk.tokens is None else size(disk.tokens)
    rows = {f"tokens, {source}": tokens}
    if disk.tokens_joining is not None:
        rows["tokens, while the parts of several jobs are joined"] = size(disk.tokens_joining)
    rows |= {
        "trained models": size(disk.models),
        "checkpoints while the largest run trains": size(disk.checkpoints_one_run),
        "checkpoints while all unfinished runs train at once": size(disk.checkpoints_all_runs),
    }
    return [{"What": what, "Bytes": count} for what, count in rows.items()]


def _runs(plan: Plan) -> list[dict[str, str]]:
    return [
        _priced(
            plan,
            {
                "Run": run.id,
                "Parameters": scaled(run.parameters),
                "Tokens": scaled(run.tokens),
                "FLOPs": f"{run.flops:.2e}",
                "GPU-hours": hours(training_hours([run])),
                "Hours": hours(run.wall_hours),
                "Done": "yes" if run.done else "no",
            },
            training_hours([run]),
        )
        for run in plan.runs
    ]
