"""A finished product is final: over every set of products that can be there, and additions to the configuration.

What has to be planned is worked out here from the grid alone, without Snakemake.
"""

import itertools
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import dry_runs
import pytest
import small_workflow
import yaml

from tlm_repro.config.loading import parse
from tlm_repro.study.grid import Grid, expand

STAGES = ("data", "needles", "models", "evaluations", "novelty")
RULES = ("tokenize", "needle_samples", "pretrain", "evaluate", "measure_novelty")
PRESENT = [frozenset(names) for size in range(6) for names in itertools.combinations(STAGES, size)]


def config() -> dict[str, Any]:
    """Three runs, one of them for Figure 2 alone, with benchmarks, needles and novelty."""
    values = small_workflow.small_config()
    values["experiments"] = {
        "motivation": {"scale": "440m-toy", "allocations": ["uniform", "wider-early"]},
        "main": {"scales": ["760m-toy"], "architectures": ["transformer"], "allocations": ["uniform", "tapered"]},
    }
    return values


def with_a_seed(values: dict[str, Any]) -> None:
    values["seeds"] = [0, 1]


def with_a_scale(values: dict[str, Any]) -> None:
    values["experiments"]["main"]["scales"] = ["760m-toy", "440m-toy"]


def with_a_benchmark(values: dict[str, Any]) -> None:
    values["evaluation"]["zero_shot"]["tasks"] = ["piqa", "wikitext", "boolq"]


def with_an_allocation(values: dict[str, Any]) -> None:
    values["experiments"]["motivation"]["allocations"] = ["uniform", "wider-early", "wider-late"]


def unchanged(_: dict[str, Any]) -> None:
    pass


ADDITIONS = (unchanged, with_a_seed, with_a_scale, with_a_benchmark, with_an_allocation)


def files(grid: Grid) -> dict[str, set[str]]:
    """Stage → the files that Snakemake takes its products for."""
    return {
        "data": {f"results/data/{grid.data.name}/manifest.json"},
        "needles": {f"results/needles/{name}/manifest.json" for name in grid.samples},
        "models": {f"results/models/{run}/manifest.json" for run in grid.runs},
        "evaluations": {
            f"results/evaluations/{run}/{name}.json" for run, names in grid.suites.items() for name in names
        },
        "novelty": {f"results/novelty/{name}.json" for name in grid.novelty},
    }


def needed(grid: Grid, present: set[str]) -> dict[str, int]:
    """Rule → jobs that `all` needs when `present` are there: what is missing, and what that is made from."""
    of, jobs = files(grid), dict.fromkeys(RULES, 0)
    evaluations = of["evaluations"] - present
    trained = {path.split("/")[2] for path in evaluations}
    evaluated = set(grid.runs) - trained
    for name, task in grid.novelty.items():
        if f"results/novelty/{name}.json" in present:
            continue
        lost = task.run in evaluated and f"results/models/{task.run}/manifest.json" not in present
        if not lost:  # else only the training of a finished run would give it: it's left out
            jobs["measure_novelty"] += 1
            trained |= {task.run} if task.run else set()
    jobs["evaluate"] = len(evaluations)
    jobs["pretrain"] = len({f"results/models/{run}/manifest.json" for run in trained} - present)
    if any("/niah-" in path for path in evaluations):
        jobs["needle_samples"] = len(of["needles"] - present)
    if any(jobs.values()):
        jobs["tokenize"] = len(of["data"] - present)
    return {rule: count for rule, count in jobs.items() if count}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return small_workflow.checkout(tmp_path, config())


def planned(folder: Path, configs: list[str]) -> list[dict[str, int]]:
    """Rule → jobs that a dry run of each configuration plans, of the expensive rules."""
    command = [sys.executable, dry_runs.__file__, "all", *configs]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ, "HOME": str(folder)})
    assert done.returncode == 0, done.stderr
    tables = [output.split("Job stats:", 1)[1].split("total", 1)[0] for output in json.loads(done.stdout)]
    counts = [dict(re.findall(r"^(\w+)\s+(\d+)$", table, re.M)) for table in tables]
    return [{rule: int(count[rule]) for rule in RULES if rule in count} for count in counts]


@pytest.mark.parametrize("present", PRESENT, ids=lambda names: "+".join(sorted(names)) or "nothing")
def test_exactly_the_new_work_is_planned(checkout: Path, present: frozenset[str]):
    before = files(expand(parse(config(), "config")))
    paths = {path for stage in present for path in before[stage]}
    clock = random.Random(0)
    for name in sorted(paths):
        path = checkout / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
        moment = clock.randrange(1_000_000_000, 1_700_000_000)
        os.utime(path, (moment, moment))
    expected = {}
    for add in ADDITIONS:
        values = config()
        add(values)
        (checkout / f"{add.__name__}.yaml").write_text(yaml.safe_dump(values))
        expected[add.__name__] = needed(expand(parse(values, "config")), paths)
    plans = planned(checkout, [f"{name}.yaml" for name in expected])
    assert dict(zip(expected, plans, strict=True)) == expected
