"""Evaluation files, small but complete, for tests of what reads them."""

import copy
from typing import Any

from tlm_repro.artifacts.fingerprint import fingerprint

ENVIRONMENT = {"versions": {"torch": "2"}, "device": "cpu", "wall_time_s": 1.0}
SPECS: dict[str, dict[str, Any]] = {
    "validation": {"suite": "validation", "tokens": None, "sequence_length": 8},
    "zero_shot": {
        "suite": "zero_shot",
        "source": "demo",
        "items_version": 1,
        "tasks": ["piqa"],
        "max_length": 8,
        "limit": None,
    },
    "niah": {
        "suite": "niah",
        "samples": {
            "version": 1,
            "tasks": ["single_1"],
            "lengths": [4096],
            "samples": 30,
            "generated_tokens": 128,
            "text": {"kind": "held_out"},
            "data": None,
        },
        "generator": "own",
        "rope_scaling": {"kind": "none", "factor": None},
    },
}
FACTS = {
    "parameters": 1000,
    "forward_flops": 2000,
    "training_flops": 3000,
    "tokens": 400,
    "layers": 2,
    "model_width": 8,
    "intermediate_sizes": [32, 16],
}


def run(scale: str = "toy", allocation: str = "uniform", seed: int = 0, architecture: str = "transformer") -> Any:
    """A run's labels and its id."""
    labels = {"architecture": architecture, "scale": scale, "allocation": allocation, "seed": seed}
    return {"id": f"{architecture}_{scale}_{allocation}_s{seed}-{fingerprint(labels)}", **labels}


def evaluation(suite: str, scores: dict[str, float], **changes: Any) -> dict[str, Any]:
    """The contents of a run's file in `suite`; `changes` replace keys of it, as in `run=` or `details=`."""
    content: dict[str, Any] = {
        "schema": 1,
        "kind": "evaluation",
        "suite": suite,
        "run": run(),
        "model": FACTS,
        "spec": SPECS[suite],
        "metrics": {name: {"value": value, "stderr": 0.01, "items": 10} for name, value in scores.items()},
        "details": {"needles": {}} if suite == "niah" else {},
        **ENVIRONMENT,
    }
    return copy.deepcopy(content | changes)
