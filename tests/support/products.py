"""Products of the expensive stages without the expense: whole by their manifests, with results that can be rendered."""

import random
from pathlib import Path
from typing import Any

import record_files
from manifests import model_summary
from small_study import study_grid

from tlm_repro.architectures.accounting import forward_flops, parameters, training_flops
from tlm_repro.artifacts.checksums import sha256_file
from tlm_repro.artifacts.files import write_json
from tlm_repro.config.loading import load
from tlm_repro.records.manifests import SHARD_HEADER, DataManifest, ModelManifest, SamplesManifest
from tlm_repro.spec.benchmarks import metric_scale
from tlm_repro.spec.data import DataSpec
from tlm_repro.spec.evaluation import NeedleSamplesSpec, NoveltySpec
from tlm_repro.spec.metrics import ACCURACIES
from tlm_repro.spec.run import RunSpec
from tlm_repro.study.grid import Grid, expand

SIZE = 500  # bytes of every file
TOKENS = (SIZE - SHARD_HEADER) // 2  # of a shard of that size


def another_run(allocation: str = "uniform") -> RunSpec:
    """A run of no configuration here: that of a small study, by other labels."""
    spec = next(spec for spec in study_grid().runs.values() if spec.labels.allocation == "uniform")
    labels = spec.labels.model_copy(update={"scale": "1b", "allocation": allocation})
    return spec.model_copy(update={"labels": labels})


def product(results: Path, spec: DataSpec | RunSpec | NeedleSamplesSpec) -> Path:
    """A folder whose contents follow from its name, and its manifest."""
    if isinstance(spec, RunSpec):
        files = ["model/model.safetensors", "model/config.json", "spec.json", "metrics.jsonl"]
        folder, chance = results / "models" / spec.id, random.Random(spec.id)
    elif isinstance(spec, DataSpec):
        files = ["tokenizer/tokenizer.json", "train/00000.npy", "validation/00000.npy", "validation.jsonl"]
        folder, chance = results / "data" / spec.name, random.Random(spec.name)
    else:
        files = [f"{task}_{length}.parquet" for task in spec.tasks for length in spec.lengths]
        folder, chance = results / "needles" / spec.name, random.Random(spec.name)
    for name in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(chance.randbytes(SIZE))
    return describe(folder, spec, [folder / name for name in files])


def describe(folder: Path, spec: DataSpec | RunSpec | NeedleSamplesSpec, files: list[Path]) -> Path:
    """Writes the manifest of a product."""
    common: dict[str, Any] = {"spec": spec.canonical(), "files": files, "device": "cpu", "wall_time_s": 1.0}
    if isinstance(spec, RunSpec):
        return ModelManifest.write_product(folder, id=spec.id, summary=model_summary(spec), **common)
    if isinstance(spec, DataSpec):
        split = {"documents": 1, "tokens": TOKENS, "bytes": 9, "shards": [TOKENS]}
        summary = {"vocab_size": spec.tokenizer.vocab_size, "dtype": "uint16", "eos_token_id": 1}
        summary |= {"tokenizer_sha256": sha256_file(folder / "tokenizer/tokenizer.json")}
        summary |= {"train": split, "validation": split}
        return DataManifest.write_product(folder, id=spec.name, summary=summary, **common)
    cell = {"samples": spec.samples, "tokens": [1, 1]}
    cells = {f"niah_{task}_{length}": cell for task in spec.tasks for length in spec.lengths}
    summary = {"tokenizer": record_files.TOKENIZER, "cells": cells}
    return SamplesManifest.write_product(folder, id=spec.name, summary=summary, **common)


def finish(folder: Path) -> Grid:
    """Every product of the expensive stages that `folder`/config.yaml asks for."""
    grid, results = expand(load(folder / "config.yaml")), folder / "results"
    product(results, grid.data)
    for samples in grid.samples.values():
        product(results, samples)
    for run, spec in grid.runs.items():
        product(results, spec)
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
