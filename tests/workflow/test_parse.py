"""What Snakemake loads when it parses the workflow: every call of it waits for that."""

import subprocess
import sys
import tomllib
from pathlib import Path

from small_study import study
from small_workflow import ROOT, checkout

# In one process with Snakemake, so that what it loaded can be seen. The report of SLURM's plugin loads pandas, but a
# dry run makes none.
PROGRAM = """
import sys
from unittest.mock import MagicMock
sys.modules["snakemake_executor_plugin_slurm.efficiency_report"] = MagicMock()
from snakemake.cli import main
sys.argv = ["snakemake", "--dry-run", "all"]
try:
    main()
except SystemExit as end:
    print(end.code, *sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_parsing_loads_nothing_heavy(tmp_path: Path):
    folder = checkout(tmp_path, study())
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=True)
    code, *loaded = done.stdout.splitlines()[-1].split()
    assert (code, "tlm_repro" in loaded) == ("0", True), done.stderr
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (heavy,) = [contract["forbidden_modules"] for contract in contracts if contract["id"] == "parse"]
    assert "torch" in heavy
    assert set(heavy) & set(loaded) <= {"numpy"}  # which Snakemake's templates load
