"""Checks across keys: names that point nowhere or are listed twice, sizes that don't divide, budgets
that can't be met. `study.grid`, which has the widths, compares sizes with `nominal_parameters`.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import ValidationError

from tlm_repro.allocation.widths import layer_widths, resolve
from tlm_repro.architectures.registry import ARCHITECTURES, architecture
from tlm_repro.config.axes import experiment_axes
from tlm_repro.config.experiments import AllocationConfig
from tlm_repro.config.messages import Problem, explain, unknown
from tlm_repro.config.schema import (
    LM_EVAL_SAMPLES,
    AdditionalBenchmark,
    Config,
    NeedleConfig,
    ScaleConfig,
    ZeroShotConfig,
)
from tlm_repro.errors import ConfigError
from tlm_repro.spec.benchmarks import PAPER_BENCHMARKS, PAPER_TASKS
from tlm_repro.spec.metrics import MAIN_METRICS, NEEDLES


def problems(config: Config) -> Iterator[Problem]:
    """All problems of a configuration whose keys and types are right."""
    for name, options in config.architectures.items():
        if name not in ARCHITECTURES:
            yield f"architectures.{name}", unknown("architecture", name, list(ARCHITECTURES))
            continue
        try:
            architecture(name).options.model_validate(options)
        except ValidationError as error:
            for item in error.errors():
                path, text = explain(item)
                yield f"architectures.{name}.{path}", text
    for name, scale in config.scales.items():
        yield from _scale_problems(config, f"scales.{name}", scale)
    for name, allocation in config.allocations.items():
        try:
            resolve(allocation.schedule, allocation.parameters())
        except ConfigError as error:
            yield f"allocations.{name}", str(error)
    if (uniform := config.allocations.get("uniform")) and uniform.schedule != "uniform":
        yield (
            "allocations.uniform.schedule",
            f"'{uniform.schedule}' isn't uniform. 'uniform' is reserved for the baseline; rename this allocation",
        )
    yield from _repeated(config)
    yield from _reference_problems(config)


def _repeated(config: Config) -> Iterator[Problem]:
    """Duplicates in lists."""
    experiments = config.experiments
    lists: dict[str, Sequence[Any]] = {"seeds": config.seeds, "reporting.exhibits": config.reporting.exhibits}
    if experiments.motivation:
        lists["experiments.motivation.allocations"] = experiments.motivation.allocations
    if experiments.allocations:
        lists["experiments.allocations.allocations"] = experiments.allocations.allocations
    if experiments.sweep:
        lists["experiments.sweep.schedules"] = experiments.sweep.schedules
        lists["experiments.sweep.ratios"] = experiments.sweep.ratios
    if experiments.main:
        for key in ("scales", "architectures", "allocations"):
            lists[f"experiments.main.{key}"] = getattr(experiments.main, key)
    for name, experiment in experiments:
        if experiment and experiment.seeds:
            lists[f"experiments.{name}.seeds"] = experiment.seeds
    for path, values in lists.items():
        if duplicates := [value for value in values if values.count(value) > 1]:
            yield path, f"{duplicates[0]!r} is listed twice; remove one"


def _scale_problems(config: Config, path: str, scale: ScaleConfig) -> Iterator[Problem]:
    width, heads, length = scale.model_width, scale.heads, config.training.sequence_length
    if width % heads or (width // heads) % 2:
        yield (
            f"{path}.model_width",
            f"{width} isn't an even multiple of heads = {heads}, as rotary pairs need. Change one of them",
        )
    for name, mlp_width in scale.mlp_width.items():
        if name not in ARCHITECTURES:
            yield f"{path}.mlp_width.{name}", unknown("architecture", name, list(ARCHITECTURES))
        if mlp_width % 16 or mlp_width <= 0:
            below = max(mlp_width // 16 * 16, 16)
            yield (
                f"{path}.mlp_width.{name}",
                f"{mlp_width} isn't a positive multiple of 16. Use {below} or {below + 16}",
            )
    share = length * scale.hardware.processes
    if scale.batch_tokens % share:
        nearest = max(round(scale.batch_tokens / share), 1) * share
        yield (
            f"{path}.batch_tokens",
            f"{scale.batch_tokens} isn't a multiple of sequence length {length} × processes "
            f"{scale.hardware.processes} = {share}. Use {nearest}",
        )
    elif (micro := scale.hardware.micro_batch_sequences) and (scale.batch_tokens // share) % micro:
        local = scale.batch_tokens // share
        yield (
            f"{path}.hardware.micro_batch_sequences",
            f"{micro} doesn't divide the {local} sequences of one process. Use a divisor",
        )
    if round(scale.tokens / scale.batch_tokens) < 1:
        yield f"{path}.tokens", f"{scale.tokens} is less than half a batch of {scale.batch_tokens} tokens. Raise it"


def _reference_problems(config: Config) -> Iterator[Problem]:
    """Names in `experiments` that aren't keys of `scales`, `architectures` or `allocations`, and missing widths."""
    experiments = config.experiments
    for axes in experiment_axes(config):
        path, scales = f"experiments.{axes.experiment}", axes.scales
        for scale in scales:
            if scale not in config.scales:
                yield path, unknown("scale", scale, list(config.scales))
        for name in axes.architectures:
            if name not in config.architectures:
                yield path, f"{unknown('architecture', name, list(config.architectures))}. Add it under architectures"
            for scale in set(scales) & set(config.scales):
                if name not in config.scales[scale].mlp_width:
                    yield f"scales.{scale}.mlp_width", f"no width for '{name}', which {path} trains. Add it"
        for scale in set(scales) & set(config.scales):
            yield from _width_problems(config, path, scale, axes.allocations)
    main = experiments.main
    for section, names in (
        ("motivation", experiments.motivation),
        ("main", main),
        ("allocations", experiments.allocations),
    ):
        for name in names.allocations if names else ():
            if name not in config.allocations:
                yield f"experiments.{section}.allocations", unknown("allocation", name, list(config.allocations))
        if names and "uniform" not in names.allocations:
            yield f"experiments.{section}.allocations", "the baseline 'uniform' is missing. Add it"
    if not any(True for _ in experiment_axes(config)):
        yield "experiments", "none is given. Add motivation, sweep, main or allocations"
    tokens, length = config.evaluation.validation.tokens, config.training.sequence_length
    if tokens is not None and tokens < length:
        yield "evaluation.validation.tokens", f"{tokens} is less than one window of {length} tokens. Raise it"
    if config.evaluation.zero_shot and main is None:
        yield (
            "evaluation.zero_shot",
            "it runs on the models of experiments.main, which is missing. Add that or set it to null",
        )
    if config.evaluation.zero_shot:
        yield from _benchmark_problems(config.evaluation.zero_shot)
    if config.evaluation.niah:
        yield from _needle_problems(config, config.evaluation.niah)


def _needle_problems(config: Config, needles: NeedleConfig) -> Iterator[Problem]:
    section = "evaluation.niah"
    if not config.experiments.main:
        yield section, "it runs on the models of experiments.main, which is missing. Add that or set it to null"
    for key, values in (("tasks", needles.tasks), ("lengths", needles.lengths)):
        for value in dict.fromkeys(value for value in values if values.count(value) > 1):
            yield f"{section}.{key}", f"{value} is listed twice; remove one"
    if needles.generator == "lm_eval" and needles.samples > LM_EVAL_SAMPLES:
        yield (
            f"{section}.samples",
            f"lm-eval makes {LM_EVAL_SAMPLES} samples of a task at a length, not {needles.samples}. Lower it or set "
            "generator: own",
        )


def _benchmark_problems(benchmarks: ZeroShotConfig) -> Iterator[Problem]:
    """Keys that the source doesn't read, and missing ones that it does."""
    section, source = "evaluation.zero_shot", benchmarks.source
    if source == "path" and benchmarks.path is None:
        yield (
            f"{section}.path",
            "source path needs it. Name the folder that `tlm-repro fetch-benchmarks --out <path>` made",
        )
    if source != "path" and benchmarks.path is not None:
        yield (
            f"{section}.path",
            f"{benchmarks.path!r} has no effect with source {source}. Remove it, or set source: path",
        )
    if source != "hub" and benchmarks.revisions:
        yield (
            f"{section}.revisions",
            f"they have no effect with source {source}. Remove them (`fetch-benchmarks` has --revision)",
        )
    tasks = [*benchmarks.tasks, *(entry.task for entry in benchmarks.additional)]
    for task in benchmarks.revisions:
        if task not in tasks:
            yield f"{section}.revisions.{task}", "this task isn't in tasks. Remove it, or add the task"
    for place, entry in enumerate(benchmarks.additional):
        yield from _additional_problems(benchmarks, f"{section}.additional.{place}", entry)


def _additional_problems(benchmarks: ZeroShotConfig, path: str, entry: AdditionalBenchmark) -> Iterator[Problem]:
    """A column or title that stands for another score, and items that the source doesn't have or doesn't read."""
    column = entry.benchmark.column
    others = [other for other in benchmarks.additional if other is not entry]
    columns = [*MAIN_METRICS, "val_loss", "val_ppl", *(other.benchmark.column for other in others)]
    headings = [other.heading for other in (*PAPER_BENCHMARKS, *(other.benchmark for other in others))]
    if column in columns or column.startswith(NEEDLES):
        yield f"{path}.column", f"'{column}' is the name of another score. Set column to a name of its own"
    elif not re.match(r"[a-z]", column):
        yield f"{path}.column", f"'{column}', from the task's name, doesn't start with a letter. Set column"
    if entry.benchmark.heading in headings:
        yield f"{path}.title", f"'{entry.title}' is the title of another column of this kind. Change it"
    same_task = [other for other in others if other.task == entry.task]
    if entry.items is not None and entry.task in PAPER_TASKS:
        yield f"{path}.items", f"'{entry.task}' is one of the paper's tasks, which share one set of items. Remove items"
    elif any(other.items != entry.items for other in same_task):
        yield f"{path}.items", f"the entries of '{entry.task}' name different item files. Give all of them the same one"
    elif entry.items is None and benchmarks.source == "demo" and entry.task not in PAPER_TASKS:
        yield (
            f"{path}.items",
            f"source demo has no items for '{entry.task}'. Name a JSONL file in the schema of its data set, or set "
            "source to hub or path",
        )


def _width_problems(
    config: Config, path: str, scale: str, allocations: dict[str, AllocationConfig]
) -> Iterator[Problem]:
    for name, allocation in allocations.items():
        for arch, width in config.scales[scale].mlp_width.items():
            if width % 16 or width <= 0:
                continue  # reported with the scale
            try:
                layer_widths(allocation.schedule, config.scales[scale].layers, width, **allocation.parameters())
            except ConfigError as error:
                yield path, f"allocation '{name}' at scale '{scale}' ({arch}): {error}"
