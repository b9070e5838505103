import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from manifests import write_model_manifest
from small_study import STUDY, study_grid

from tlm_repro.architectures.accounting import training_flops
from tlm_repro.config.loading import load
from tlm_repro.overview.progress import last_error, last_rows, newest_checkpoint
from tlm_repro.overview.status import RunStatus, counts, statuses
from tlm_repro.overview.status_document import duration, render, to_json
from tlm_repro.records.attempt import ATTEMPT
from tlm_repro.study.grid import Grid, expand

PAPER = Path(__file__).parents[2] / "config/paper.yaml"
NOW = 1_800_000_000.0
MINUTE = 60.0
ENDED = 2**22 + 1  # beyond the largest process id of Linux


@pytest.fixture(scope="module")
def grid() -> Grid:
    return study_grid()


class Site:
    """The folders of a workflow, and one run's files in them; ages in seconds before NOW."""

    def __init__(self, root: Path, grid: Grid) -> None:
        self.root, self.grid = root, grid
        self.run, self.spec = next(iter(grid.runs.items()))
        self.results, self.logs = root / "results", root / "logs"
        self.checkpoints = self.results / "checkpoints" / self.run

    def put(self, path: Path, text: str, age: float) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (NOW - age, NOW - age))

    def rows(self, count: int, *, age: float, speed: float = 1000.0, torn: bool = False, validated: int = 0) -> None:
        lines = []
        for step in range(1, count + 1):
            row = {"step": step, "tokens": step * 1024, "loss": 8.0 - step / 100, "tokens_per_second": speed}
            lines.append(json.dumps(row | ({"validation_loss": 6.5} if step == validated else {})))
        text = "".join(f"{line}\n" for line in lines) + ('{"step": 9999, "lo' if torn else "")
        self.put(self.checkpoints / "metrics.jsonl", text, age)

    def attempt(self, *, age: float, **changes: Any) -> None:
        facts = {
            "device": "NVIDIA H100 80GB HBM3",
            "processes": 2,
            "arithmetic": "fp32",
            "host": "elsewhere",
            "pid": 1,
            "started": NOW - age,
        }
        self.put(self.checkpoints / ATTEMPT, json.dumps(facts | changes), age)

    def checkpoint(self, step: int, *, age: float) -> None:
        self.put(self.checkpoints / f"step-{step:08d}" / "state.json", "{}", age)

    def log(self, text: str, *, age: float) -> None:
        self.put(self.logs / "pretrain" / f"{self.run}.log", text, age)

    def all(self) -> list[RunStatus]:
        return statuses(self.grid, self.results, self.logs, stalled_s=10 * MINUTE, now=NOW)

    def status(self) -> RunStatus:
        return next(run for run in self.all() if run.id == self.run)


@pytest.fixture
def site(tmp_path: Path, grid: Grid) -> Site:
    return Site(tmp_path, grid)


def test_nothing_there_means_not_started(site: Site):
    runs = site.all()
    assert counts(runs) == {"not started": len(site.grid.runs)}
    assert {run.step for run in runs} == {0}
    assert not list(site.root.iterdir())


def test_a_running_run(site: Site):
    site.attempt(age=20 * MINUTE)
    site.rows(60, age=2, torn=True, validated=40)
    site.checkpoint(25, age=400)
    site.checkpoint(50, age=90)
    site.log("step 59/80, loss 7.4100 nats, 1,000 tokens/s, ETA 0:00:20\n", age=5)
    run = site.status()
    assert (run.state, run.step, run.steps, run.why) == ("running", 60, 80, "")
    assert (run.loss, run.validation_loss) == (pytest.approx(7.4), 6.5)
    assert run.eta_s == pytest.approx(20 * 1024 / 1000)
    assert (run.checkpoint_step, run.checkpoint_age_s) == (50, pytest.approx(90))
    assert (run.evaluations_done, run.evaluations) == (0, len(site.grid.suites[site.run]))
    tokens = site.spec.training.tokens
    by_hand = training_flops(site.spec.model, tokens) / tokens * 1000 / (2 * 67e12)
    assert run.mfu == pytest.approx(by_hand)


def test_speed_is_the_median_so_that_one_slow_step_doesnt_count(site: Site):
    site.rows(9, age=2)
    path = site.checkpoints / "metrics.jsonl"
    site.put(path, path.read_text() + json.dumps({"step": 10, "loss": 7.0, "tokens_per_second": 1.0}) + "\n", 2)
    assert site.status().tokens_per_second == 1000


def test_a_run_without_a_record_of_its_devices_has_no_mfu(site: Site):
    site.rows(3, age=2)
    assert (site.status().state, site.status().mfu) == ("running", None)
    assert site.status().mfu_note == "devices not recorded"
    site.attempt(age=60, device="cpu")
    assert site.status().mfu_note == "unknown device 'cpu'"


def test_a_resumed_run_that_has_no_row_yet_is_starting(site: Site):
    site.rows(50, age=3600)
    site.checkpoint(50, age=3600)
    site.log("tlm-repro: error: stopped by SIGTERM after step 50 of 80\n", age=3590)
    site.attempt(age=30)
    assert (site.status().state, site.status().step) == ("starting", 50)


def test_a_silent_run_is_stalled(site: Site):
    site.attempt(age=3600)
    site.rows(30, age=25 * MINUTE)
    site.checkpoint(20, age=30 * MINUTE)
    run = site.status()
    assert (run.state, run.eta_s) == ("stalled", None)
    assert run.why.startswith("no new metrics for 25 minutes")
    assert run.why.endswith("resumes after step 20")


def test_a_run_with_slow_steps_is_given_ten_of_them(site: Site):
    """A step of 1,024 tokens at 4 tokens/s takes 4 minutes, ten take 43."""
    site.attempt(age=3600)
    site.rows(3, age=25 * MINUTE, speed=4.0)
    assert site.status().state == "running"
    site.rows(3, age=45 * MINUTE, speed=4.0)
    assert site.status().state == "stalled"


def test_a_process_that_is_gone_without_a_message(site: Site):
    site.attempt(age=3600, host=platform.node(), pid=ENDED)
    site.rows(30, age=5)
    site.checkpoint(20, age=300)
    run = site.status()
    assert run.state == "failed"
    assert run.why.startswith(f"process {ENDED} ended without a message")
    site.attempt(age=3600, host=platform.node(), pid=os.getpid())
    assert site.status().state == "running"


def test_an_attempt_that_waits_for_another(site: Site):
    site.log("waiting for another process (pid 7 on node3) to leave results/checkpoints/x\n", age=60)
    assert site.status().state == "waiting"
    site.rows(30, age=5)  # the other one trains
    assert site.status().state == "running"


DIVERGED = "step 31: the loss is nan, the gradient's norm nan; the last good checkpoint is step-00000020"
INTERRUPTED = "stopped by SIGTERM after step 31 of 80; the next attempt resumes from step-00000031"
RAISED = """step 30/80, loss 7.7000 nats, 1,000 tokens/s, ETA 0:00:50
[rank0]: Traceback (most recent call last):
[rank0]:   File "trainer.py", line 1, in update
[rank0]:     raise
[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB
Traceback (most recent call last):
  File "run.py", line 9, in main
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
"""


@pytest.mark.parametrize(
    ("text", "state", "why"),
    [
        (f"tlm-repro: error: {DIVERGED}\n", "failed", DIVERGED),
        (f"step 31/80, loss 7.6900 nats, x\ntlm-repro: error: {INTERRUPTED}\n", "interrupted", INTERRUPTED),
        (RAISED, "failed", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"),
    ],
)
def test_why_a_run_ended(site: Site, text: str, state: str, why: str):
    site.attempt(age=3600)
    site.rows(31, age=60)
    site.log(text, age=59)
    run = site.status()
    assert (run.state, run.why, run.step) == (state, why, 31)
    assert run.log == str(site.logs / "pretrain" / f"{site.run}.log")
    assert why in render("demo", site.all())


def test_an_error_before_the_last_progress_line_is_past(site: Site):
    site.attempt(age=3600)
    site.rows(31, age=5)
    site.log("Traceback (most recent call last):\n  x\nValueError: caught\nstep 31/80, loss 7.6900 nats, x\n", age=4)
    assert site.status().state == "running"


def test_the_cause_is_our_own_message_or_the_tracebacks_last_line():
    chained = [
        "Traceback (most recent call last):",
        "  File 'a'",
        "KeyError: 'x'",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        "Traceback (most recent call last):",
        "  File 'b'",
        "RuntimeError: y",
    ]
    assert last_error(chained) == "RuntimeError: y"
    assert last_error([*chained, "tlm-repro: error: no room"]) == "no room"
    assert last_error(["all is well"]) is None


def test_a_finished_run(site: Site):
    summary = {"final_loss": 5.25, "validation_loss": 5.5, "tokens_per_second": 2000.0}
    folder = site.results / "models" / site.run
    write_model_manifest(folder, site.spec, device="NVIDIA A100-SXM4-80GB", **summary)
    site.attempt(age=7200, device="NVIDIA A100-SXM4-80GB")
    site.log("tlm-repro: error: of a second attempt, after the product was there\n", age=5)
    (name, *_) = site.grid.suites[site.run]
    site.put(site.results / "evaluations" / site.run / f"{name}.json", "{}", 5)
    run = site.status()
    assert (run.state, run.step, run.loss, run.validation_loss, run.eta_s) == ("finished", 80, 5.25, 5.5, None)
    assert run.evaluations_done == 1
    tokens = site.spec.training.tokens
    assert run.mfu == pytest.approx(training_flops(site.spec.model, tokens) / tokens * 2000 / (2 * 19.5e12))


def test_another_runs_product_doesnt_finish_it(site: Site):
    other = next(spec for run, spec in site.grid.runs.items() if run != site.run)
    write_model_manifest(site.results / "models" / site.run, other)
    assert site.status().state == "not started"


def test_a_long_file_is_read_from_its_end(site: Site):
    """200,000 rows of some 190 bytes, the last validation 20,000 rows ago, far before the block that is read first."""
    line = '{{"step": {0}, "tokens": {0}, "loss": 2.5, "learning_rate": 0.000123456789, "grad_norm": 0.123456789{1}}}'
    filler = ', "tokens_per_second": 500000.0, "padding": "' + "x" * 60 + '"'
    special = {180_000: filler + ', "validation_loss": 2.75', 100_000: filler + ', "validation_loss": 9.0'}
    text = "\n".join(line.format(step, special.get(step, filler)) for step in range(1, 200_001))
    site.put(site.checkpoints / "metrics.jsonl", text + "\n", 1)
    rows = last_rows(site.checkpoints)
    assert rows is not None
    assert (rows.step, rows.validation_loss, rows.tokens_per_second) == (200_000, 2.75, 500_000)


def test_half_a_checkpoint_doesnt_count(site: Site):
    site.checkpoint(20, age=10)
    (site.checkpoints / "step-00000030").mkdir()
    (site.checkpoints / ".step-00000040.abc").mkdir()
    checkpoint = newest_checkpoint(site.checkpoints)
    assert checkpoint is not None
    assert checkpoint.step == 20


@pytest.mark.parametrize("text", ["", "{", "[]", '{"device": 3}'])
def test_files_that_arent_whole_are_passed_over(site: Site, text: str):
    site.put(site.checkpoints / ATTEMPT, text, 1)
    site.put(site.checkpoints / "metrics.jsonl", text, 1)
    site.put(site.results / "models" / site.run / "manifest.json", text, 1)
    assert site.status().state == "not started"


def test_looking_changes_nothing(site: Site):
    site.attempt(age=3600)
    site.rows(31, age=5, torn=True)
    site.checkpoint(20, age=300)
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in site.root.rglob("*") if path.is_file()}
    site.all()
    after = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in site.root.rglob("*") if path.is_file()}
    assert after == before


def test_the_document_and_the_table(site: Site):
    site.attempt(age=3600)
    site.rows(60, age=2)
    values = json.loads(json.dumps(to_json("demo", site.all())))
    assert values["states"] == {"running": 1, "not started": len(site.grid.runs) - 1}
    assert {"id", "state", "step", "loss", "tokens_per_second", "mfu", "eta_s", "why"} <= values["runs"][0].keys()
    (line,) = [line for line in render("demo", site.all()).splitlines() if line.startswith(site.run)]
    assert line.split()[1:6] == ["running", "60/80", "7.4000", "—", "1,000"]
    assert (duration(20.4), duration(3661), duration(90_000)) == ("0:00:20", "1:01:01", "1 d 1 h")


@pytest.mark.process
def test_the_command_looks_without_torch(tmp_path: Path):
    code = (
        f"import sys; sys.argv = ['tlm-repro', 'status', '--config', {str(PAPER)!r}, '--json']\n"
        "from tlm_repro.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([name for name in ('torch', 'pandas', 'transformers') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stderr.strip() == "[]"
    assert json.loads(done.stdout)["states"] == {"not started": len(expand(load(PAPER)).runs)}


@pytest.mark.process
def test_watching_ends_when_all_runs_are_finished(site: Site):
    for run, spec in site.grid.runs.items():
        write_model_manifest(site.results / "models" / run, spec)
    command = [sys.executable, "-m", "tlm_repro", "status", "--watch", "60", "--config", str(STUDY)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=site.root, timeout=60)
    assert done.returncode == 0
    assert f"{len(site.grid.runs)} finished" in done.stdout.splitlines()[0]
