"""Who imports whom: the contracts in pyproject.toml, and what else follows from imports."""

import re
import tomllib
from pathlib import Path

import grimp
import importlinter.api  # configures the checks of contracts
import pytest
import yaml
from importlinter.application.use_cases import lint_imports

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
