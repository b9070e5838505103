"""A trained model's scores in one suite, as its evaluation file holds them."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlm_repro.artifacts import read_manifest, versions
from tlm_repro.errors import ConfigError, EvaluationError
from tlm_repro.evaluation.harness import Metric, zero_shot, zero_shot_details
from tlm_repro.models.accounting import forward_flops, parameters, training_flops
from tlm_repro.spec import RunSpec, Spec, ValidationSpec, ZeroShotSpec

if TYPE_CHECKING:
    from tlm_repro.data.shards import TokenData

SCHEMA = 1
Scores = tuple[dict[str, Metric], dict[str, Any]]  # metrics, details


@dataclass(frozen=True)
class Suite:
    """How a suite is asked for and run; `scores` takes (model, tokenizer, data, spec, batch size)."""

    spec: type[Spec]
    scores: Callable[[Any, Any, "TokenData", Any, int], Scores]


def suite_spec(text: str) -> Spec:
    """The spec in a JSON text, of the suite that it names. Raises ConfigError where it names none or doesn't fit it."""
    try:
        suite = SUITES[json.loads(text)["suite"]]
    except (ValueError, TypeError, KeyError):
        raise ConfigError(
            f"--spec: a JSON object whose suite is {' or '.join(SUITES)} is expected, not {text[:80]!r}"
        ) from None
    return suite.spec.from_json(text)


def evaluate_run(spec: Spec, *, model: Path, data: Path, batch_size: int, device: str | None = None) -> dict[str, Any]:
    """The contents of an evaluation file.

    Args:
        spec: names the suite.
        model: the manifest of a finished run.
        data: the manifest of the data set that it was trained on.
        batch_size: sequences in one forward pass.
        device: as PyTorch names it; None: the first GPU if there is one, else the CPU.

    Raises:
        ArtifactError: a manifest or a file isn't what it should be.
        EvaluationError: the data set is another one than the run's, or the suite can't be run.
    """
    from tlm_repro import pretrained
    from tlm_repro.data.shards import TokenData
    from tlm_repro.devices import default_device, device_name

    start = time.perf_counter()
    manifest, tokens = read_manifest(model, kind="model", verify="sha256"), TokenData.open(data)
    run = RunSpec.from_values(manifest.spec, f"{model}: spec")
    if run.data.name != tokens.manifest.id:
        raise EvaluationError(
            f"the run {manifest.id} was trained on {run.data.name}, {data} is {tokens.manifest.id}: pass that one"
        )
    device = device or default_device()
    decoder, tokenizer = pretrained.run(manifest, device=device)
    suite = spec.canonical()["suite"]
    metrics, details = SUITES[suite].scores(decoder, tokenizer, tokens, spec, batch_size)
    return {
        "schema": SCHEMA,
        "kind": "evaluation",
        "suite": suite,
        "run": {"id": manifest.id, **run.labels.canonical()},
        "model": model_facts(run),
        "spec": spec.canonical(),
        "metrics": {name: asdict(metric) for name, metric in metrics.items()},
        "details": details,
        "versions": versions(),
        "device": device_name(device),
        "wall_time_s": round(time.perf_counter() - start, 3),
    }


def model_facts(run: RunSpec) -> dict[str, Any]:
    """What tables say of a model beside its scores. FLOPs: one sequence forward, and the whole training."""
    model = run.model
    return {
        "parameters": parameters(model).total,
        "forward_flops": forward_flops(model, model.sequence_length),
        "training_flops": training_flops(model, run.training.tokens),
        "tokens": run.training.tokens,
        "layers": model.layers,
        "model_width": model.model_width,
        "intermediate_sizes": list(model.intermediate_sizes),
    }


def score_validation(model: Any, _: Any, data: "TokenData", spec: ValidationSpec, batch_size: int) -> Scores:
    from tlm_repro.evaluation.validation import validation_loss

    loss = validation_loss(
        model, data.validation, sequence_length=spec.sequence_length, limit=spec.tokens, batch_sequences=batch_size
    )
    metrics = {
        "val_loss": Metric(loss.loss, loss.stderr, loss.tokens),
        "val_ppl": Metric(loss.perplexity, loss.perplexity_stderr, loss.tokens),
    }
    return metrics, {"windows": loss.windows, "batch_size": batch_size}


def score_zero_shot(model: Any, tokenizer: Any, data: "TokenData", spec: ZeroShotSpec, batch_size: int) -> Scores:
    metrics = zero_shot(model, tokenizer, spec, held_out=data.held_out(), batch_size=batch_size)
    return metrics, zero_shot_details(tokenizer, spec, batch_size=batch_size)


SUITES = {
    "validation": Suite(ValidationSpec, score_validation),
    "zero_shot": Suite(ZeroShotSpec, score_zero_shot),
}
