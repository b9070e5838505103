"""Products of the expensive stages without the expense: whole by their manifests, with results that can be rendered."""

import random
from pathlib import Path
from typing import Any

import record_files

from tlm_repro.architectures.accounting import forward_flops, parameters, training_flops
from tlm_repro.artifacts.files import write_json
from tlm_repro.artifacts.manifest import write_manifest
from tlm_repro.config.loading import load
from tlm_repro.spec.benchmarks import metric_scale
from tlm_repro.spec.evaluation import NoveltySpec
from tlm_repro.spec.metrics import ACCURACIES
from tlm_repro.spec.run import RunSpec
from tlm_repro.study.grid import Grid, expand

CONTENTS = {
    "data": ("tokenizer/tokenizer.json", "train/0000.npy", "validation/0000.npy", "validation.jsonl"),
    "model": ("model/model.safetensors", "model/config.json", "spec.json", "metrics.jsonl"),
    "samples": ("single_1_512.parquet",),
}
TREES = {"data": "data", "model": "models", "samples": "needles"}


def product(results: Path, kind: str, id: str) -> Path:
    """A folder whose contents follow from its name, and its manifest."""
    folder, chance = results / TREES[kind] / id, random.Random(id)
    files = [folder / name for name in CONTENTS[kind]]
    for path in files:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(chance.randbytes(500))
    return write_manifest(folder, kind=kind, id=id, spec={}, summary={}, files=files, device="cpu", wall_time_s=1.0)  # type: ignore[arg-type]


def finish(folder: Path) -> Grid:
    """Every product of the expensive stages that `folder`/config.yaml asks for."""
    grid, results = expand(load(folder / "config.yaml")), folder / "results"
    product(results, "data", grid.data.name)
    for name in grid.samples:
        product(results, "samples", name)
    for run, spec in grid.runs.items():
        product(results, "model", run)
        for name, suite in grid.suites[run].items():
            write_json(results / f"evaluations/{run}/{name}.json", evaluation(spec, suite))
    for name, task in grid.novelty.items():
        write_json(results / f"novelty/{name}.json", novelty(task.run and grid.runs[task.run], task.spec, task.name))
    return grid


def evaluation(spec: RunSpec, suite: Any) -> dict[str, Any]:
    chance = random.Random(spec.id + suite.suite)
    facts = {
        "parameters": parameters(spec.model).total,
        "forward_flops": forward_flops(spec.model, spec.model.sequence_length),
        "training_flops": training_flops(spec.model, spec.training.tokens),
        "tokens": spec.training.tokens,
        "layers": spec.model.layers,
        "model_width": spec.model.model_width,
        "intermediate_sizes": list(spec.model.intermediate_sizes),
    }
    common = {"run": {"id": spec.id, **spec.labels.model_dump()}, "model": facts, "spec": suite.canonical()}
    if suite.suite == "validation":
        return record_files.validation(3 + chance.random(), **common)
    if suite.suite == "zero_shot":
        items = suite.limit or 1000
        shares = [*ACCURACIES, *(one.column for one in suite.additional if metric_scale(one.metric) == "percent")]
        return record_files.zero_shot(
            {name: chance.randrange(items + 1) / items for name in shares}, items=items, **common
        )
    cells = [f"niah_{task}_{length}" for task in suite.samples.tasks for length in suite.samples.lengths]
    return record_files.needles(dict.fromkeys(cells, 0.5), samples=suite.samples.samples, **common)


def novelty(spec: RunSpec | None, task: NoveltySpec, name: str) -> dict[str, Any]:
    chance, layers = random.Random(name), spec.model.layers if spec else 6
    rho = [[chance.uniform(-1, 1) for _ in range(layers)] for _ in range(2)]
    labels = {"id": spec.id, **spec.labels.model_dump()} if spec else None
    model = {"name": spec.id if spec else task.external and task.external.name, "run": labels}
    how = {"spec": task.canonical(), "tokens": task.tokens, "window": task.window}
    return record_files.novelty_content(model, *rho, **how)
