"""A plan as JSON, as text for a terminal and as Markdown."""

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, Literal

from tabulate import tabulate

from tlm_repro.architectures.registry import architecture
from tlm_repro.overview.plan import EvaluationCost, Plan, RunCost, training_hours
from tlm_repro.reporting.markdown import cell

Form = Literal["text", "markdown"]
NOT_ESTIMATED = "not estimated"
SUITES = {"validation": "held-out loss", "zero_shot": "benchmarks", "niah": "needle in a haystack"}


def to_json(plan: Plan) -> dict[str, Any]:
    """The plan as plain values for JSON. Hours, bytes and FLOPs aren't rounded."""
    return {**asdict(plan), "totals": totals(plan), "left": left(plan), "notes": notes(plan)}


def totals(plan: Plan) -> dict[str, Any]:
    """Sums over all runs and evaluations, each once."""
    return _sums(plan, plan.runs, plan.evaluations)


def left(plan: Plan) -> dict[str, Any]:
    """Sums over what isn't finished. A run in progress counts in full."""
    runs = [run for run in plan.runs if not run.done]
    return _sums(plan, runs, [item for item in plan.evaluations if not item.done])


def _sums(plan: Plan, runs: list[RunCost], evaluations: list[EvaluationCost]) -> dict[str, Any]:
    training = sum(run.gpu_hours for run in runs)
    validation = sum(run.validation_gpu_hours for run in runs)
    evaluation = sum(item.gpu_hours or 0.0 for item in evaluations)
    return {
        "runs": len(runs),
        "tokens": sum(run.tokens for run in runs),
        "flops": sum(run.flops for run in runs),
        "gpu_hours": training,
        "validation_gpu_hours": validation,
        "evaluations": len(evaluations),
        "evaluations_not_estimated": sum(item.gpu_hours is None for item in evaluations),
        "evaluation_gpu_hours": evaluation,
        "total_gpu_hours": training + validation + evaluation,
        "cost": cost(plan, training + validation + evaluation),
    }


def cost(plan: Plan, gpu_hours: float) -> float | None:
    """The cost in the currency of the price per GPU-hour; None without a price."""
    price = plan.assumptions.price_per_gpu_hour
    return None if price is None else price * gpu_hours


def notes(plan: Plan) -> list[str]:
    """What the numbers include, and what they don't."""
    assumptions = plan.assumptions
    texts = [
        f"The utilisation of {assumptions.mfu:.0%} is an assumption, not a measurement: measure yours with "
        "benchmarks/training.py and pass it with --mfu.",
        "FLOPs: three forward passes per token, two FLOPs per multiply-add, attention over the full T×T scores. "
        "Recomputed activations aren't counted.",
        "GPU-hours of training include periodic validation, during which all processes but one idle. They don't "
        "include start-up, compilation, saving, restarts, failed attempts and queueing.",
        "The GPU-hours of a table are what it needs alone. The total counts a run that several tables share once.",
        "Checkpoints hold the weights, AdamW's moments and, for levels with an update period, gradient sums, all in "
        "fp32. Two are kept, a third exists while it is written, and all are deleted when the run is finished.",
        "Not included, because their sizes aren't known here: the corpus's files and the Hugging Face cache of the "
        "corpus, the benchmarks and pretrained models. Metrics and logs take about 200 bytes per step.",
    ]
    if any(item.gpu_hours is None for item in plan.evaluations):
        texts.append("Benchmarks aren't estimated, because their items are read when they run.")
    if any(item.suite == "niah" for item in plan.evaluations):
        texts.append(
            "Needle in a haystack is estimated as one pass over each length. Answers are generated token by token, "
            "which is bound by memory rather than FLOPs, so expect it to take longer."
        )
    if any(link.hours is None for link in plan.chain):
        texts.append("Tokenising isn't estimated: pass its speed with --tokenizing-rate.")
    if plan.toy:
        texts.append("This configuration is at toy scale, for a CPU. A GPU's utilisation doesn't apply to it.")
    return texts


def render(plan: Plan, form: Form) -> str:
    """The plan as text or Markdown."""
    done = sum(run.done for run in plan.runs)
    assumptions = plan.assumptions
    head = (
        f"{len(plan.runs)} runs, {done} done. Assumptions: {assumptions.device}, dense {assumptions.arithmetic} peak "
        f"{assumptions.peak_flops / 1e12:,.1f} TFLOP/s ({assumptions.peak_source}), utilisation {assumptions.mfu:.0%}."
    )
    sections = [
        ("Training", _training_rows(plan)),
        ("Tables and figures, each alone", _table_rows(plan)),
        ("Evaluation", _evaluation_rows(plan)),
        ("Total", _total_rows(plan)),
        ("Longest chain", _chain_rows(plan)),
        ("Disk", _disk_rows(plan)),
        ("Runs", _run_rows(plan)),
    ]
    parts = [heading(f"Plan of {plan.config}", form, 2), head]
    for title, rows in sections:
        parts += [heading(title, form, 3), table(rows, form)]
    bullets = "\n".join(f"{'-' if form == 'markdown' else '*'} {note}" for note in notes(plan))
    return "\n\n".join([*parts, heading("Notes", form, 3), bullets])


def heading(text: str, form: Form, level: int) -> str:
    if form == "markdown":
        return f"{'#' * level} {text}"
    return f"{text}\n{('=' if level == 2 else '-') * len(text)}"


def table(rows: list[dict[str, str]], form: Form) -> str:
    """A table with right-aligned columns of numbers."""
    numeric = {
        column: all(row[column][:1].isdigit() or row[column] in ("", "—", NOT_ESTIMATED) for row in rows)
        for column in rows[0]
    }
    align = ["right" if numeric[column] else "left" for column in rows[0]]
    style = "simple"
    if form == "markdown":
        style, rows = "github", [{cell(column): cell(text) for column, text in row.items()} for row in rows]
    return tabulate(rows, headers="keys", tablefmt=style, colalign=align, disable_numparse=True)


def size(count: float) -> str:
    """Bytes in decimal units."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= scale:
            return f"{count / scale:,.1f} {unit}"
    return f"{count / 1e3:,.1f} kB"


def scaled(count: float) -> str:
    """A number of tokens or parameters in decimal units."""
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


def _with_cost(plan: Plan, row: dict[str, str], gpu_hours: float) -> dict[str, str]:
    """The row with a column for its cost, if there is a price."""
    amount = cost(plan, gpu_hours)
    return row if amount is None else {**row, "Cost": f"{amount:,.0f}"}


def _range(values: Iterable[float], to_text: Callable[[float], str]) -> str:
    """The lowest and the highest value, or the only one."""
    texts = list(dict.fromkeys(to_text(value) for value in sorted(values)))
    return texts[0] if len(texts) == 1 else f"{texts[0]}–{texts[-1]}"


def _training_rows(plan: Plan) -> list[dict[str, str]]:
    groups: dict[tuple[str, str], list[RunCost]] = {}
    for run in plan.runs:
        groups.setdefault((run.scale, run.arch), []).append(run)
    rows = [
        _with_cost(
            plan,
            {
                "Scale": scale,
                "Architecture": architecture(name).title,
                "Runs": str(len(runs)),
                "Done": str(sum(run.done for run in runs)),
                "Parameters": _range((run.parameters for run in runs), scaled),
                "Tokens per run": _range((run.tokens for run in runs), scaled),
                "FLOPs per run": _range((run.flops for run in runs), "{:.2e}".format),
                "GPUs per run": _range((run.processes for run in runs), "{:.0f}".format),
                "Hours per run": _range((run.wall_hours for run in runs), hours),
                "GPU-hours": hours(training_hours(runs)),
            },
            training_hours(runs),
        )
        for (scale, name), runs in groups.items()
    ]
    total = {
        "Scale": "all",
        "Architecture": "",
        "Runs": str(len(plan.runs)),
        "Done": str(sum(run.done for run in plan.runs)),
        "Parameters": "",
        "Tokens per run": "",
        "FLOPs per run": "",
        "GPUs per run": "",
        "Hours per run": "",
        "GPU-hours": hours(training_hours(plan.runs)),
    }
    return [*rows, _with_cost(plan, total, training_hours(plan.runs))]


def _table_rows(plan: Plan) -> list[dict[str, str]]:
    return [
        _with_cost(
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


def _evaluation_rows(plan: Plan) -> list[dict[str, str]]:
    rows = []
    for suite in dict.fromkeys(item.suite for item in plan.evaluations):
        evaluations = [item for item in plan.evaluations if item.suite == suite]
        flops = [item.flops for item in evaluations if item.flops is not None]
        gpu_hours = [item.gpu_hours for item in evaluations if item.gpu_hours is not None]
        rows.append(
            {
                "Suite": SUITES.get(suite, suite),
                "Evaluations": str(len(evaluations)),
                "Done": str(sum(item.done for item in evaluations)),
                "FLOPs": f"{sum(flops):.2e}" if flops else NOT_ESTIMATED,
                "GPU-hours": hours(sum(gpu_hours) if gpu_hours else None),
            }
        )
    if plan.novelty:
        rows.append(
            {
                "Suite": "layer novelty",
                "Evaluations": str(plan.novelty),
                "Done": str(plan.novelty_done),
                "FLOPs": NOT_ESTIMATED,
                "GPU-hours": NOT_ESTIMATED,
            }
        )
    return rows


def _total_rows(plan: Plan) -> list[dict[str, str]]:
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
        rows.append(_with_cost(plan, row, sums["total_gpu_hours"]))
    return rows


def _chain_rows(plan: Plan) -> list[dict[str, str]]:
    rows = [
        {"Stage": link.stage, "What": link.what, "Hours": hours(link.hours), "Left": hours(link.left)}
        for link in plan.chain
    ]
    total = hours(sum(link.hours or 0.0 for link in plan.chain))
    total_left = hours(sum(link.left or 0.0 for link in plan.chain))
    return [*rows, {"Stage": "total", "What": "estimated stages", "Hours": total, "Left": total_left}]


def _disk_rows(plan: Plan) -> list[dict[str, str]]:
    disk = plan.disk
    source = "measured" if disk.tokens_measured else "at their budgets"
    tokens = "unknown before tokenising" if disk.tokens is None else size(disk.tokens)
    rows = {f"tokens, {source}": tokens}
    if disk.tokens_joining is not None:
        rows["tokens, while the parts of several jobs are joined"] = size(disk.tokens_joining)
    rows |= {
        "trained models": size(disk.models),
        "checkpoints while the largest run trains": size(disk.checkpoints_one_run),
        "checkpoints while all unfinished runs train at once": size(disk.checkpoints_all_runs),
    }
    return [{"What": what, "Bytes": count} for what, count in rows.items()]


def _run_rows(plan: Plan) -> list[dict[str, str]]:
    return [
        _with_cost(
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
