"""Reading a configuration: YAML or plain values in, a checked `Config` out; every problem is named before any job."""

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from tlm_repro.allocation.widths import layer_widths, resolve
from tlm_repro.architectures import ARCHITECTURES, architecture
from tlm_repro.config import (
    LM_EVAL_SAMPLES,
    Config,
    NeedleConfig,
    ScaleConfig,
    ZeroShotConfig,
)
from tlm_repro.errors import ConfigError
from tlm_repro.experiments import AllocationConfig, experiment_axes

REFERENCE = "config/README.md"
SEVERAL_KINDS = ("corpus", "tokenizer", "text")

Problem = tuple[str, str]  # key path, what is wrong and what to do


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML that refuses a key given twice: the later one would silently win."""


def _unique_mapping(loader: _UniqueKeyLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key) for key, _ in node.value]
    for key in keys:
        if keys.count(key) > 1:
            raise yaml.constructor.ConstructorError(None, None, f"the key '{key}' stands twice", node.start_mark)
    return loader.construct_mapping(node, deep=True)


_UniqueKeyLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)


def load(path: Path) -> Config:
    """Reads and checks a YAML file. Raises ConfigError naming the file, each key path, the value and the remedy."""
    return parse(read(path), str(path))


def read(path: Path) -> Any:
    """The plain values of a YAML file. Raises ConfigError when it can't be read or gives a key twice."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeyLoader)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path} can't be read ({error.strerror}): pass the path of a YAML file") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None


def parse(raw: Any, source: str) -> Config:
    """Checks plain values, as YAML or Snakemake give them; `source` names them in messages. Raises ConfigError."""
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        raise _failure(source, [_explain(item) for item in error.errors()]) from None
    problems = list(_problems(config))
    if problems:
        raise _failure(source, problems)
    return config


def _failure(source: str, problems: list[Problem]) -> ConfigError:
    lines = [f"{source}: {path}: {text}" for path, text in problems]
    return ConfigError("\n".join(lines))


def _explain(error: Any) -> Problem:
    """One of pydantic's errors as key path and remedy."""
    path = ".".join(_keys(error["loc"])) or "the whole file"
    seen = error["input"]
    if error["type"] == "extra_forbidden":
        return path, f"unknown key (its value is {seen!r}): {REFERENCE} lists every key; remove or rename it"
    if error["type"] == "missing":
        return path, f"this key is missing: add it ({REFERENCE} says what it means)"
    message = error["msg"].removeprefix("Value error, ")
    return path, f"{seen!r} doesn't fit: {message[0].lower()}{message[1:]} (see {REFERENCE})"


def _keys(location: Sequence[int | str]) -> list[str]:
    """The keys that a user wrote; pydantic adds the kind after one that holds sections of several kinds."""
    parts = [str(part) for part in location]
    return [part for before, part in zip(["", *parts], parts, strict=False) if before not in SEVERAL_KINDS]


def _unknown(kind: str, seen: str, known: list[str]) -> str:
    close = difflib.get_close_matches(seen, known, n=1)
    hint = f"; did you mean '{close[0]}'?" if close else "."
    return f"unknown {kind} '{seen}'{hint} Known: {', '.join(known)}"


def _problems(config: Config) -> Iterator[Problem]:
    """What single keys can't show: names that point nowhere, sizes that don't divide, budgets that can't be met."""
    for name, options in config.architectures.items():
        if name not in ARCHITECTURES:
            yield f"architectures.{name}", _unknown("architecture", name, list(ARCHITECTURES))
            continue
        try:
            architecture(name).options.model_validate(options)
        except ValidationError as error:
            for item in error.errors():
                path, text = _explain(item)
                yield f"architectures.{name}.{path}", text
    for name, scale in config.scales.items():
        yield from _scale_problems(config, f"scales.{name}", scale)
    for name, allocation in config.allocations.items():
        try:
            resolve(allocation.schedule, allocation.parameters())
        except ConfigError as error:
            yield f"allocations.{name}", str(error)
    if (uniform := config.allocations.get("uniform")) and uniform.schedule != "uniform":
        yield "allocations.uniform.schedule", f"'{uniform.schedule}' under the baseline's name: call it something else"
    yield from _repeated(config)
    yield from _reference_problems(config)


def _repeated(config: Config) -> Iterator[Problem]:
    """Lists that would count one thing twice."""
    experiments = config.experiments
    lists: dict[str, Sequence[Any]] = {"seeds": config.seeds}
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
        twice = [value for value in dict.fromkeys(values) if values.count(value) > 1]
        if twice:
            yield path, f"{twice[0]!r} stands twice: give each once"


def _scale_problems(config: Config, path: str, scale: ScaleConfig) -> Iterator[Problem]:
    width, heads, length = scale.model_width, scale.heads, config.training.sequence_length
    if width % heads or (width // heads) % 2:
        yield (
            f"{path}.model_width",
            f"{width} must be an even multiple of heads = {heads} (rotary pairs): change one of them",
        )
    for name, mlp_width in scale.mlp_width.items():
        if name not in ARCHITECTURES:
            yield f"{path}.mlp_width.{name}", _unknown("architecture", name, list(ARCHITECTURES))
        if mlp_width % 16 or mlp_width <= 0:
            below = max(mlp_width // 16 * 16, 16)
            yield f"{path}.mlp_width.{name}", f"{mlp_width} is no positive multiple of 16: take {below} or {below + 16}"
    share = length * scale.hardware.processes
    if scale.batch_tokens % share:
        nearest = max(round(scale.batch_tokens / share), 1) * share
        yield (
            f"{path}.batch_tokens",
            f"{scale.batch_tokens} is no multiple of sequence length {length} × processes "
            f"{scale.hardware.processes} = {share}: take {nearest}",
        )
    elif (micro := scale.hardware.micro_batch_sequences) and (scale.batch_tokens // share) % micro:
        local = scale.batch_tokens // share
        yield (
            f"{path}.hardware.micro_batch_sequences",
            f"{micro} doesn't divide the {local} sequences of one process: take a divisor",
        )
    if scale.hardware.processes % scale.hardware.nodes:
        yield (
            f"{path}.hardware.nodes",
            f"{scale.hardware.processes} processes can't be spread evenly over {scale.hardware.nodes} nodes: "
            "change one of them",
        )
    if round(scale.tokens / scale.batch_tokens) < 1:
        yield f"{path}.tokens", f"{scale.tokens} is less than half a batch of {scale.batch_tokens} tokens: raise it"


def _reference_problems(config: Config) -> Iterator[Problem]:
    """Names in `experiments` that `scales`, `architectures` and `allocations` must know, and widths that must exist."""
    experiments = config.experiments
    for axes in experiment_axes(config):
        path, scales = f"experiments.{axes.experiment}", axes.scales
        for scale in scales:
            if scale not in config.scales:
                yield path, _unknown("scale", scale, list(config.scales))
        for name in axes.architectures:
            if name not in config.architectures:
                yield path, f"{_unknown('architecture', name, list(config.architectures))}; add it under architectures"
            for scale in set(scales) & set(config.scales):
                if name not in config.scales[scale].mlp_width:
                    yield f"scales.{scale}.mlp_width", f"no width for '{name}', which {path} trains: add it"
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
                yield f"experiments.{section}.allocations", _unknown("allocation", name, list(config.allocations))
        if names and "uniform" not in names.allocations:
            yield f"experiments.{section}.allocations", "the baseline 'uniform' is missing: add it"
    if not any(True for _ in experiment_axes(config)):
        yield "experiments", "none is given: add motivation, sweep, main or allocations"
    tokens, length = config.evaluation.validation.tokens, config.training.sequence_length
    if tokens is not None and tokens < length:
        yield "evaluation.validation.tokens", f"{tokens} is less than one window of {length} tokens: raise it"
    if config.evaluation.zero_shot and main is None:
        yield (
            "evaluation.zero_shot",
            "it runs on the models of experiments.main, which is missing: add that or set it to null",
        )
    if config.evaluation.zero_shot:
        yield from _benchmark_problems(config.evaluation.zero_shot)
    if config.evaluation.niah:
        yield from _needle_problems(config, config.evaluation.niah)


def _needle_problems(config: Config, needles: NeedleConfig) -> Iterator[Problem]:
    section = "evaluation.niah"
    if not config.experiments.main:
        yield section, "it runs on the models of experiments.main, which is missing: add that or set it to null"
    for key, values in (("tasks", needles.tasks), ("lengths", needles.lengths)):
        for value in dict.fromkeys(value for value in values if values.count(value) > 1):
            yield f"{section}.{key}", f"{value} stands twice: remove one"
    if needles.generator == "lm_eval" and needles.samples > LM_EVAL_SAMPLES:
        yield (
            f"{section}.samples",
            f"lm-eval makes {LM_EVAL_SAMPLES} samples of a task at a length, not {needles.samples}: ask for fewer, or "
            "set generator: own",
        )


def _benchmark_problems(benchmarks: ZeroShotConfig) -> Iterator[Problem]:
    """Keys of another source than the one that is set."""
    section, source = "evaluation.zero_shot", benchmarks.source
    if source == "path" and benchmarks.path is None:
        yield (
            f"{section}.path",
            "source path needs it: name the folder that `tlm-repro fetch-benchmarks --out <path>` made",
        )
    if source != "path" and benchmarks.path is not None:
        yield (
            f"{section}.path",
            f"{benchmarks.path!r} is of no use with source {source}: remove it, or set source: path",
        )
    if source != "hub" and benchmarks.revisions:
        yield (
            f"{section}.revisions",
            f"they are of no use with source {source}: remove them (`fetch-benchmarks` has --revision)",
        )
    for task in benchmarks.revisions:
        if task not in benchmarks.tasks:
            yield f"{section}.revisions.{task}", "a task that isn't in tasks: remove it, or add the task"


def _width_problems(
    config: Config, path: str, scale: str, allocations: dict[str, AllocationConfig]
) -> Iterator[Problem]:
    for name, allocation in allocations.items():
        for arch, width in config.scales[scale].mlp_width.items():
            if width % 16 or width <= 0:
                continue  # said already
            try:
                layer_widths(allocation.schedule, config.scales[scale].layers, width, **allocation.parameters())
            except ConfigError as error:
                yield path, f"allocation '{name}' at scale '{scale}' ({arch}): {error}"
