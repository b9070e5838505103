"""Evaluation and novelty files, small but whole: each says what follows from the few values that a test gives."""

import copy
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tlm_repro.artifacts.files import write_json
from tlm_repro.artifacts.fingerprint import fingerprint
from tlm_repro.records.novelty import Correlation, Mean, Novelty
from tlm_repro.spec.benchmarks import PAPER_BENCHMARKS, metric_scale
from tlm_repro.spec.evaluation import NeedleSpec, ZeroShotSpec
from tlm_repro.statistics.blocks import Blocks
from tlm_repro.statistics.intervals import wilson

ENVIRONMENT = {"versions": {"torch": "2", "lm-eval": "0.4"}, "device": "cpu", "wall_time_s": 1.0}
FACTS = {
    "parameters": 1000,
    "forward_flops": 2000,
    "training_flops": 3000,
    "tokens": 400,
    "layers": 2,
    "model_width": 8,
    "intermediate_sizes": [32, 16],
}
BOS = {"add_bos": False, "prefix_token": "<|end_of_text|>", "prefix_token_id": 1}
WORK = {"requests": 9, "requests_per_s": 3.0, "tokens_shared": 0.0, "padding_waste": 0.0, "batch_size": 4}
TOKENIZER = "0123456789abcdef"
DEPTHS = (0.0, 0.5, 1.0)


def run(scale: str = "toy", allocation: str = "uniform", seed: int = 0, architecture: str = "transformer") -> Any:
    """A run's labels and its id."""
    labels = {"architecture": architecture, "scale": scale, "allocation": allocation, "seed": seed}
    return {"id": f"{architecture}_{scale}_{allocation}_s{seed}-{fingerprint(labels)}", **labels}


def validation(
    loss: float,
    *,
    stderr: float = 0.01,
    blocks: Blocks | None = None,
    spec: Mapping[str, Any] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """A run's held-out loss over 10 tokens, or over those of `blocks`."""
    spec = spec or {"suite": "validation", "tokens": None, "sequence_length": blocks.sequence_length if blocks else 1}
    length = spec["sequence_length"]
    windows = sum(blocks.windows) if blocks else (spec["tokens"] or 10) // length
    error = blocks.stderr if blocks else stderr
    perplexity, items = math.exp(loss), windows * length
    metrics = {
        "val_loss": {"value": loss, "stderr": error, "items": items},
        "val_ppl": {"value": perplexity, "stderr": None if error is None else perplexity * error, "items": items},
    }
    details = {"windows": windows, "batch_size": 4} | ({"blocks": blocks.columns()} if blocks else {})
    return _evaluation("validation", spec, metrics, details, changes)


def zero_shot(
    scores: Mapping[str, float], *, items: int = 1000, spec: Mapping[str, Any] | None = None, **changes: Any
) -> Any:
    """A run's accuracies, each a share of `items`; any other score of the spec is 20 unless `scores` has it."""
    asked = [one.task for one in PAPER_BENCHMARKS if one.column in scores]
    spec = spec or {
        "suite": "zero_shot",
        "source": "demo",
        "items_version": 1,
        "tasks": list(dict.fromkeys(asked)),
        "max_length": 8,
        "limit": None,
    }
    metrics = {}
    tasks = ZeroShotSpec.from_values(spec, "the test's spec")
    for column, metric in (score for task in tasks.all_tasks for score in tasks.columns(task).items()):
        value = scores.get(column, 20.0)
        error = math.sqrt(value * (1 - value) / (items - 1)) if metric_scale(metric) == "percent" else 0.5
        metrics[column] = {"value": value, "stderr": error, "items": items}
    details = {
        "lm_eval": ENVIRONMENT["versions"]["lm-eval"],  # type: ignore[index]
        "task_versions": dict.fromkeys(tasks.all_tasks, 1.0),
        "source": spec["source"],
        "items_version": spec["items_version"] if spec["source"] == "demo" else None,
        "data": {},
        "max_length": spec["max_length"],
        "batch_size": 4,
        "batch_tokens": 32,
        "tokenizer": TOKENIZER,
        "bos_policy": BOS,
        "work": dict.fromkeys(tasks.all_tasks, WORK),
    }
    return _evaluation("zero_shot", spec, metrics, details, changes)


def needles(
    scores: Mapping[str, float],
    *,
    samples: int = 30,
    rope: str = "none",
    generator: str = "own",
    spec: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Any:
    """A run's shares of the needles found, one needle a sample; they lie in equal parts at each of `DEPTHS`.

    `scores` has a value for each task at each length, as in `niah_single_1_4096`.
    """
    cells = [name.removeprefix("niah_").rsplit("_", 1) for name in scores]
    tasks, lengths = (list(dict.fromkeys(part)) for part in zip(*cells, strict=True))
    spec = spec or {
        "suite": "niah",
        "samples": {
            "version": 1,
            "tasks": tasks,
            "lengths": [int(length) for length in lengths],
            "samples": samples,
            "generated_tokens": 1,
            "text": {"kind": "held_out"},
            "data": None,
        },
        "generator": generator,
        "rope_scaling": {"kind": rope, "factor": None},
    }
    rows, metrics = {}, {}
    for name, value in scores.items():
        hits = round(value * samples)
        parts = zip(DEPTHS, even_parts(hits), even_parts(samples), strict=True)
        rows[name] = [{"depth": depth, "found": found, "needed": needed} for depth, found, needed in parts if needed]
        value = hits / samples
        error = math.sqrt(value * (1 - value) / (samples - 1))
        metrics[name] = {"value": value, "stderr": error, "items": samples}
    kinds: dict[str, Any] = {"kind": rope} if rope == "none" else {"kind": rope, "factor": 1.0, "applied": True}
    details = {
        "needles": rows,
        "intervals": {name: list(wilson(one["value"], samples)) for name, one in metrics.items()},
        "prompt_tokens": {name: [1, 1] for name in scores},
        "generator": generator,
        "generated_tokens": spec["samples"]["generated_tokens"],
        "rope_scaling": {"kind": rope, "lengths": {str(length): kinds for length in spec["samples"]["lengths"]}},
        "training_length": 2**20,
        "tokenizer": TOKENIZER,
        "bos_policy": "none",
        "samples": NeedleSpec.model_validate(spec).samples.name if generator == "own" else None,
        "batch_size": 4,
    }
    return _evaluation("niah", spec, metrics, details, changes)


def even_parts(count: int) -> list[int]:
    """`count` in parts, one a depth, as even as can be."""
    whole, rest = divmod(count, len(DEPTHS))
    return [whole + (place < rest) for place in range(len(DEPTHS))]


def external(name: str = "other") -> dict[str, Any]:
    """A model of the hub, for `changes`: it takes the place of a run."""
    return {
        "run": None,
        "model": None,
        "external": {"name": name, "source": "hub", "path": f"a/{name}", "revision": "0" * 40},
    }


def _evaluation(suite: str, spec: Any, metrics: Any, details: Any, changes: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {
        "schema": 1,
        "kind": "evaluation",
        "suite": suite,
        "run": run(),
        "model": FACTS,
        "spec": spec,
        "metrics": metrics,
        "details": details | changes.pop("details", {}),
        **ENVIRONMENT,
    }
    content |= changes
    return copy.deepcopy({key: value for key, value in content.items() if value is not None})


def write_evaluation(folder: Path, content: dict[str, Any]) -> Path:
    """Writes an evaluation where the workflow has it below `folder`."""
    path = folder / "evaluations" / content["run"]["id"] / f"{content['suite']}-{fingerprint(content['spec'])}.json"
    write_json(path, content)
    return path


def novelty(content: dict[str, Any]) -> Novelty:
    """A novelty record with the parts that `content` leaves out; nothing checks that they agree."""
    return Novelty.model_validate(_novelty_frame(content) | content)


def novelty_content(model: dict[str, Any], block: Sequence[float], mlp: Sequence[float | None], **changes: Any) -> Any:
    """The contents of a novelty file over 64 tokens, every error 0.01, with the correlations that follow."""
    profiles: dict[str, Sequence[float | None]] = {"block": block, "mlp": mlp}
    means = {
        kind: tuple(None if value is None else Mean(mean=value, stderr=0.01) for value in values)
        for kind, values in profiles.items()
    }
    content: dict[str, Any] = {
        "schema": 1,
        "kind": "novelty",
        "model": {"parameters": 9, "layers": len(block)} | model,
        "tokens": 64,
        **{kind: [one and one.content() for one in values] for kind, values in means.items()},
        "correlation": {kind: Correlation.of(values).content() for kind, values in means.items()},
    }
    return _novelty_frame(content) | content | changes


def _novelty_frame(content: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = {"text": {"kind": "held_out"}, "tokens": content["tokens"], "window": content["tokens"]}
    spec |= {"external": None, "data": None}
    if not content["model"]["run"]:
        other = {"path": "org/name", "revision": "main", "package": None, "gguf": None}
        spec["external"] = {"name": content["model"]["name"], **other}
    return {"spec": spec, "window": content["tokens"], **ENVIRONMENT}
