"""Who imports whom: the contracts in pyproject.toml, what each stage loads, and what else follows from imports."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import grimp
import importlinter.api  # configures the checks of contracts
import pytest
import yaml
from importlinter.application.use_cases import lint_imports
from small_models import small_spec

from tlm_repro.spec.data import DataSpec, FilesCorpus, HeldOut, TrainedTokenizer
from tlm_repro.spec.evaluation import NoveltySpec, ValidationSpec
from tlm_repro.spec.run import RunLabels, RunSpec, TrainingSpec

ROOT = Path(__file__).parents[1]
assert importlinter.api


def test_the_contracts_are_kept(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(ROOT)
    assert lint_imports(config_filename="pyproject.toml", cache_dir=None, no_logo=True), capsys.readouterr().out


def test_all_that_the_workflow_imports_is_under_contract():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (light,) = [contract["source_modules"] for contract in contracts if contract["id"] == "parse"]
    rules = "\n".join(path.read_text() for path in [ROOT / "workflow/Snakefile", *(ROOT / "workflow").rglob("*.smk")])
    imported = re.findall(r"^\s*(?:from|import) (tlm_repro[\w.]*)", rules, re.MULTILINE)
    assert imported
    packages = {".".join(name.split(".")[:2]) for name in imported}
    # Exhibits import pandas and seaborn where they draw; tests/workflow/test_parse.py holds that no parse loads them.
    assert packages - {"tlm_repro.reporting"} <= {*light}


def test_the_schema_hook_runs_for_each_of_its_sources():
    hooks = {
        hook["id"]: hook
        for repository in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
        for hook in repository["hooks"]
    }
    graph, reference = grimp.build_graph("tlm_repro", cache_dir=None), "tlm_repro.config.reference"
    sources = [f"src/{name.replace('.', '/')}.py" for name in [reference, *graph.find_upstream_modules(reference)]]
    assert "src/tlm_repro/config/schema.py" in sources
    made = ["config/README.md", "workflow/schemas/config.schema.json"]
    assert [path for path in sources + made if not re.search(hooks["schema"]["files"], path)] == []


# Packages that a stage can do without: together they would take longer to load than torch.
HEAVY = ("datasets", "huggingface_hub", "lm_eval", "matplotlib", "pandas", "scipy", "seaborn", "transformers")
PROGRAM = """
import sys
from tlm_repro.cli import app
app(sys.argv[1:], standalone_mode=False)
print(*{name.partition(".")[0] for name in sys.modules})
"""


def run_command(*arguments: str) -> set[str]:
    """Runs a command of the command line in a new process, and returns the packages that the process has loaded."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.process
def test_training_held_out_loss_and_novelty_of_a_run_load_torch_and_little_else(tmp_path: Path) -> None:
    from tlm_repro.data.tokenisation import build

    for index in range(6):
        (tmp_path / f"{index}.txt").write_text(f"{index} quick brown foxes jump over a lazy dog. " * 40)
    data = DataSpec(
        corpus=FilesCorpus(paths=(str(tmp_path / "*.txt"),), format="text"),
        tokenizer=TrainedTokenizer(vocab_size=300),
        validation_fraction=0.4,
        shard_tokens=4096,
    )
    build(data, tmp_path / data.name, workers=1)
    shape = {"layers": 3, "intermediate_sizes": (48, 32, 16), "vocab_size": 300, "sequence_length": 16}
    training = {"steps": 2, "batch_sequences": 4, "sequence_length": 16, "warmup_steps": 1, "peak_learning_rate": 1e-3}
    training |= {"final_learning_rate_ratio": 0.1, "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8}
    run = RunSpec(
        labels=RunLabels(architecture="transformer", scale="tiny", allocation="tapered", seed=0),
        model=small_spec(**shape),
        data=data,
        training=TrainingSpec.from_values({**training, "clip_norm": 1.0, "precision": "fp32", "seed": 0}, "test"),
    )
    manifest, model = str(tmp_path / data.name / "manifest.json"), str(tmp_path / "run" / "manifest.json")
    checkpoints, out = str(tmp_path / "checkpoints"), ["--out", str(tmp_path / "record.json")]
    validation = ValidationSpec(sequence_length=16, tokens=64)
    novelty = NoveltySpec(text=HeldOut(), tokens=60, window=16, data=data)
    commands = {
        "training": ["pretrain", "--spec", run.to_json(), "--checkpoints", checkpoints, "--out", model],
        "held-out loss": ["evaluate", "--spec", validation.to_json(), "--model", model, *out],
        "novelty": ["novelty", "--spec", novelty.to_json(), "--model", model, *out],
    }
    loaded = {stage: run_command(*arguments, "--data", manifest) for stage, arguments in commands.items()}
    assert all("torch" in packages for packages in loaded.values())
    assert {stage: packages & {*HEAVY} for stage, packages in loaded.items()} == {stage: set() for stage in commands}
    # torch's compiler loads sympy and costs a third of torch itself. Optimisers of torch load it, evaluation must not.
    assert not any("sympy" in loaded[stage] for stage in ("held-out loss", "novelty"))
    assert json.loads((tmp_path / "record.json").read_text())["kind"] == "novelty"


@pytest.mark.process
def test_reporting_loads_neither_torch_nor_models() -> None:
    code = """
import importlib, pkgutil, sys
import tlm_repro.reporting
for module in pkgutil.walk_packages(tlm_repro.reporting.__path__, "tlm_repro.reporting."):
    importlib.import_module(module.name)
print(*{name.partition(".")[0] for name in sys.modules})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    packages = set(done.stdout.split())
    assert "tlm_repro" in packages
    assert packages & {"accelerate", "datasets", "lm_eval", "torch", "transformers"} == set()
