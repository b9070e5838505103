"""The evaluation suites, and the evaluation of a model in one of them."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlm_repro.artifacts.fingerprint import fingerprint
from tlm_repro.artifacts.manifest import versions
from tlm_repro.errors import ConfigError, EvaluationError
from tlm_repro.evaluation.benchmarks.harness import zero_shot
from tlm_repro.evaluation.benchmarks.items import check_items
from tlm_repro.evaluation.inputs import Context, Inputs
from tlm_repro.evaluation.needle.suite import check_needle, score_needle
from tlm_repro.evaluation.partial import PartialResults
from tlm_repro.evaluation.scoring import Scores
from tlm_repro.evaluation.subject import Subject, find_subject
from tlm_repro.evaluation.training_curve import training_curve
from tlm_repro.records.evaluation import Evaluation, Metric
from tlm_repro.spec.base import Spec
from tlm_repro.spec.evaluation import NeedleSpec, ValidationSpec, ZeroShotSpec

if TYPE_CHECKING:
    from tlm_repro.data.shards import TokenData


@dataclass(frozen=True)
class Suite:
    """How a suite is specified and run.

    Attributes:
        scores: called with (model, tokenizer, spec, context).
        check: raises EvaluationError, before a model is loaded, if the context lacks an input that the spec needs.
        needs_run: whether the suite requires a run of this project. It then reads token ids alone, and its tokenizer is
            None.
    """

    spec: type[Spec]
    scores: Callable[[Any, Any, Any, Context], Scores]
    check: Callable[[Any, Context], None]
    needs_run: bool = False


def suite_spec(text: str) -> Spec:
    """Parses a spec in JSON by its suite. Raises ConfigError if the suite is unknown or the spec is invalid."""
    try:
        suite = SUITES[json.loads(text)["suite"]]
    except (ValueError, TypeError, KeyError):
        raise ConfigError(f"--spec: {text[:80]!r}: pass a JSON object whose suite is {' or '.join(SUITES)}") from None
    return suite.spec.from_json(text)


def evaluate(spec: Spec, *, model: str, inputs: Inputs, partial: Path | None = None) -> Evaluation:
    """Evaluates a model in one suite.

    Args:
        spec: of the suite.
        model: as for `find_subject`.
        partial: folder for partial results, which the next attempt uses if this one fails; None: they aren't stored.

    Raises:
        ArtifactError: a manifest is of another kind, or a file doesn't match it.
        EvaluationError: the model is unavailable, an input of the suite is missing or belongs to another model, or the
            suite can't be run.
    """
    from tlm_repro.devices import default_device, device_name

    start = time.perf_counter()
    name = spec.canonical()["suite"]
    suite, subject = SUITES[name], find_subject(model)
    if suite.needs_run and subject.run is None:
        raise EvaluationError(
            f"suite '{name}' needs the data set that a run of this project was trained on, but {subject.name} isn't "
            "one of its runs: evaluate it in suite 'zero_shot'"
        )
    device = inputs.device or default_device()
    tokens = open_data(inputs.data, subject)
    identity = {
        "model": subject.identity,
        "data": fingerprint(tokens.manifest.files, length=16) if tokens else None,
        "device": device_name(device),
    }
    context = Context(inputs, tokens, PartialResults(partial, identity))
    suite.check(spec, context)
    if suite.needs_run and subject.load_decoder is not None:
        decoder, tokenizer = subject.load_decoder(device), None
    else:
        decoder, tokenizer = subject.load(device)
    metrics, details = suite.scores(decoder, tokenizer, spec, context)
    if name == "validation" and subject.metrics is not None:
        details = {**details, "curve": training_curve(subject.metrics)}
    if name == "validation" and subject.training is not None:
        details = {**details, "training": subject.training}
    return Evaluation.create(
        {
            "schema": 1,
            "kind": "evaluation",
            "suite": name,
            **subject.block,
            "spec": spec.canonical(),
            "metrics": metrics,
            "details": details,
            "versions": versions(),
            "device": device_name(device),
            "wall_time_s": round(time.perf_counter() - start, 3),
        }
    )


def open_data(data: Path | None, subject: Subject) -> "TokenData | None":
    """Opens the data set of a manifest. Raises EvaluationError if the run wasn't trained on it."""
    from tlm_repro.data.shards import TokenData

    if data is None:
        return None
    tokens = TokenData.open(data)
    if subject.run is not None and subject.run.data.name != tokens.manifest.id:
        raise EvaluationError(
            f"the run {subject.name} was trained on {subject.run.data.name}, but {data} describes "
            f"{tokens.manifest.id}: pass the manifest of the former"
        )
    return tokens


def check_validation(_: ValidationSpec, context: Context) -> None:
    context.held_out("the validation loss is measured on held-out tokens")


def score_validation(model: Any, _: Any, spec: ValidationSpec, context: Context) -> Scores:
    from tlm_repro.evaluation.validation import validation_loss

    tokens, batch_size = context.held_out("validation"), context.inputs.batch_size
    loss = validation_loss(
        model, tokens.validation, sequence_length=spec.sequence_length, limit=spec.tokens, batch_sequences=batch_size
    )
    metrics = {
        "val_loss": Metric(value=loss.loss, stderr=loss.stderr, items=loss.tokens),
        "val_ppl": Metric(value=loss.perplexity, stderr=loss.perplexity_stderr, items=loss.tokens),
    }
    blocks = replace(loss.blocks, data=tokens.manifest.id)
    return metrics, {"windows": loss.windows, "batch_size": batch_size, "blocks": blocks.columns()}


def check_zero_shot(spec: ZeroShotSpec, context: Context) -> None:
    check_items(spec, context.inputs.items)
    if spec.source == "demo" and "wikitext" in spec.all_tasks:
        context.held_out(
            "the demo's task 'wikitext' scores the held-out documents of a data set instead of WikiText's pages (or "
            "remove the task from the spec)"
        )


def score_zero_shot(model: Any, tokenizer: Any, spec: ZeroShotSpec, context: Context) -> Scores:
    inputs, tokens = context.inputs, context.tokens
    return zero_shot(
        model,
        tokenizer,
        spec,
        batch_size=inputs.batch_size,
        held_out=tokens.held_out() if tokens is not None else (),
        files=inputs.items,
        partial=context.partial,
    )


SUITES = {
    "validation": Suite(ValidationSpec, score_validation, check_validation, needs_run=True),
    "zero_shot": Suite(ZeroShotSpec, score_zero_shot, check_zero_shot),
    "niah": Suite(NeedleSpec, score_needle, check_needle),
}
