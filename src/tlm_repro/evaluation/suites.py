"""A model's scores in one suite, as its evaluation file holds them."""

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
from tlm_repro.evaluation.partial import Kept
from tlm_repro.evaluation.scoring import Scores
from tlm_repro.evaluation.subject import Subject, subject
from tlm_repro.evaluation.training_curve import training_curve
from tlm_repro.records.evaluation import Evaluation, Metric
from tlm_repro.spec.base import Spec
from tlm_repro.spec.evaluation import NeedleSpec, ValidationSpec, ZeroShotSpec

if TYPE_CHECKING:
    from tlm_repro.data.shards import TokenData


@dataclass(frozen=True)
class Suite:
    """How a suite is asked for and run: `scores` takes (model, tokenizer, spec, context).

    `needs_run`: it can't be run on a model trained elsewhere. `check` raises an EvaluationError where the spec needs an
    input that the context lacks, before a weight is loaded.
    """

    spec: type[Spec]
    scores: Callable[[Any, Any, Any, Context], Scores]
    check: Callable[[Any, Context], None]
    needs_run: bool = False


def suite_spec(text: str) -> Spec:
    """The spec in a JSON text, of the suite that it names. Raises ConfigError where it names none or doesn't fit it."""
    try:
        suite = SUITES[json.loads(text)["suite"]]
    except (ValueError, TypeError, KeyError):
        raise ConfigError(
            f"--spec: a JSON object whose suite is {' or '.join(SUITES)} is expected, not {text[:80]!r}"
        ) from None
    return suite.spec.from_json(text)


def evaluate(spec: Spec, *, model: str, inputs: Inputs, partial: Path | None = None) -> Evaluation:
    """The record of a model's scores.

    Args:
        spec: names the suite.
        model: as `subject` takes it.
        partial: folder where the finished parts of a failing suite are kept for the next attempt; None: they aren't.

    Raises:
        ArtifactError: a manifest or a file isn't what it should be.
        EvaluationError: the model can't be had, an input that the suite needs is missing or belongs to another model,
            or the suite can't be run.
    """
    from tlm_repro.devices import default_device, device_name

    start = time.perf_counter()
    name = spec.canonical()["suite"]
    suite, found = SUITES[name], subject(model)
    if suite.needs_run and found.run is None:
        raise EvaluationError(
            f"suite '{name}' takes the tokens of the data set that a run of this project was trained on, and "
            f"{found.name} is none: evaluate it in suite 'zero_shot'"
        )
    device = inputs.device or default_device()
    tokens = opened(inputs.data, found)
    identity = {
        "model": found.identity,
        "data": fingerprint(tokens.manifest.files, length=16) if tokens else None,
        "device": device_name(device),
    }
    context = Context(inputs, tokens, Kept(partial, identity))
    suite.check(spec, context)
    decoder, tokenizer = found.load(device)
    metrics, details = suite.scores(decoder, tokenizer, spec, context)
    if name == "validation" and found.metrics is not None:
        details = {**details, "curve": training_curve(found.metrics)}
    if name == "validation" and found.training is not None:
        details = {**details, "training": found.training}
    return Evaluation.create(
        {
            "schema": 1,
            "kind": "evaluation",
            "suite": name,
            **found.block,
            "spec": spec.canonical(),
            "metrics": metrics,
            "details": details,
            "versions": versions(),
            "device": device_name(device),
            "wall_time_s": round(time.perf_counter() - start, 3),
        }
    )


def opened(data: Path | None, found: Subject) -> "TokenData | None":
    """The data set at `data`. Raises EvaluationError when it isn't the one that the run was trained on."""
    from tlm_repro.data.shards import TokenData

    if data is None:
        return None
    tokens = TokenData.open(data)
    if found.run is not None and found.run.data.name != tokens.manifest.id:
        raise EvaluationError(
            f"the run {found.name} was trained on {found.run.data.name}, {data} is {tokens.manifest.id}: pass that one"
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
            "the demo's wikitext scores the held-out documents of a data set in place of WikiText's pages (task "
            "'wikitext' can be left out of the spec instead)"
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
        kept=context.kept,
    )


SUITES = {
    "validation": Suite(ValidationSpec, score_validation, check_validation, needs_run=True),
    "zero_shot": Suite(ZeroShotSpec, score_zero_shot, check_zero_shot),
    "niah": Suite(NeedleSpec, score_needle, check_needle),
}
