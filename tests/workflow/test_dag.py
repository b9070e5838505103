"""The workflow's graph, by dry runs: what each target needs, what an edit changes, and what never triggers anything."""

import base64
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import own_exhibits
import pytest
import yaml
from manifests import write_manifest
from small_study import BENCHMARKS, LOSS, NEEDLES, READS, STUDY, evaluations_of, runs_of, study, study_grid

from tlm_repro.artifacts.fingerprint import fingerprint
from tlm_repro.config.loading import load
from tlm_repro.reporting.registry import figures, file_name, tables, views
from tlm_repro.study.grid import Grid, expand

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the workflow reads, without results; the tests' own study is its default configuration."""
    for name in ("workflow", "config", "profiles"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "Snakefile", tmp_path)
    shutil.copy(STUDY, tmp_path / "config.yaml")
    (tmp_path / "slurm").symlink_to("profiles/slurm")
    return tmp_path


def dry_run(folder: Path, *arguments: str, check: bool = True) -> str:
    command = [sys.executable, "-m", "snakemake", "-n", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ, "HOME": str(folder)})
    output = done.stdout + done.stderr
    assert not check or done.returncode == 0, output
    return output


def jobs(output: str) -> dict[str, int]:
    """Rule → number of jobs, from the table that a dry run prints."""
    if "Nothing to be done" in output:
        return {}
    table = output.split("Job stats:", 1)[1].split("total", 1)[0]
    return {name: int(count) for name, count in re.findall(r"^(\w+)\s+(\d+)$", table, re.M)}


def needed(grid: Grid, runs: set[str], evaluations: dict[str, int], **others: int) -> dict[str, int]:
    """The jobs that train these runs and evaluate them, and others; without those of which there are none."""
    parts = grid.config.data.jobs
    counts = {"tokenize_start": 1, "tokenize_part": parts} if parts > 1 else {}
    counts |= {"tokenize": 1, "pretrain": len(runs), "evaluate": sum(evaluations.values())}
    counts["needle_samples"] = len(grid.samples) if evaluations.get(NEEDLES) else 0
    return {rule: count for rule, count in (counts | others).items() if count}


def all_jobs(grid: Grid) -> dict[str, int]:
    """All that a configuration asks for."""
    suites = evaluations_of(grid, *grid.experiments, suites=(LOSS, BENCHMARKS, NEEDLES))
    rendering = {"views": 1, "table": len(tables(grid)), "figure": len(figures(grid)), "claims": 1, "html_report": 1}
    return needed(grid, set(grid.runs), suites, measure_novelty=len(grid.novelty), all=1, **rendering)


def finish(folder: Path, config: str = "config.yaml") -> None:
    """Every product of the expensive stages, as `dvc pull` would bring it: any time, no metadata of Snakemake's."""
    grid = expand(load(folder / config))
    paths = [f"results/data/{grid.data.name}/manifest.json"]
    paths += [f"results/models/{run}/manifest.json" for run in grid.runs]
    paths += [f"results/evaluations/{run}/{name}.json" for run, suites in grid.suites.items() for name in suites]
    paths += [f"results/novelty/{name}.json" for name in grid.novelty]
    clock = random.Random(0)
    for name in paths:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
        moment = clock.randrange(1_000_000_000, 1_700_000_000)
        os.utime(path, (moment, moment))


@pytest.mark.parametrize("path", [STUDY, ROOT / "config.yaml"], ids=["the tests' study", "the demo"])
def test_everything_is_in_the_default_graph(checkout: Path, path: Path):
    shutil.copy(path, checkout / "config.yaml")
    assert jobs(dry_run(checkout, "all")) == all_jobs(expand(load(path)))


def test_tokenising_is_shared_by_as_many_jobs_as_the_configuration_says(checkout: Path):
    counts = jobs(dry_run(checkout, "data", "--config", "data={jobs: 3}"))
    assert counts == {"tokenize_start": 1, "tokenize_part": 3, "tokenize": 1, "data": 1}


def test_without_a_target_everything_is_asked_for(checkout: Path):
    assert jobs(dry_run(checkout)) == jobs(dry_run(checkout, "all"))


def test_a_model_read_on_a_text_from_the_hub_needs_no_data_set_of_ours(checkout: Path):
    name = next(name for name in expand(load(ROOT / "config/paper.yaml")).novelty if name.startswith("gpt-2-124m"))
    output = dry_run(checkout, f"results/novelty/{name}.json", "--configfile", "config/paper.yaml")
    assert jobs(output) == {"measure_novelty": 1}


def test_the_bare_profile_name_gives_the_paper_s_graph_from_an_empty_home(checkout: Path):
    counts = jobs(dry_run(checkout, "all", "--profile", "slurm"))
    assert counts == all_jobs(expand(load(ROOT / "config/paper.yaml")))


def test_another_configuration_takes_the_place_of_the_profile_s(checkout: Path):
    counts = jobs(dry_run(checkout, "all", "--profile", "slurm", "--configfile", "config.yaml"))
    assert counts["pretrain"] == jobs(dry_run(checkout, "all"))["pretrain"]


TARGETS = [
    *("results/tables/sweep.csv", "results/figures/motivation.svg", "results/tables/main.csv"),
    *("results/tables/allocations.csv", "results/figures/scaling.svg", "results/figures/curves.svg"),
    "results/tables/niah.csv",
]


@pytest.mark.parametrize("target", TARGETS)
def test_a_table_or_figure_needs_just_its_own(checkout: Path, target: str):
    grid, path = study_grid(), Path(target)
    experiments, suites = READS[path.stem]
    rendering = {"views": 1, "table" if path.suffix == ".csv" else "figure": 1}
    evaluations = evaluations_of(grid, *experiments, suites=suites)
    assert jobs(dry_run(checkout, target)) == needed(grid, runs_of(grid, *experiments), evaluations, **rendering)


def test_a_heat_map_needs_the_two_models_of_its_architecture(checkout: Path):
    grid = study_grid()
    pair = {run for run in runs_of(grid, "main") if run.startswith("titans")}
    expected = needed(grid, pair, {NEEDLES: 2}, views=1, figure=1)
    assert jobs(dry_run(checkout, "results/figures/niah-titans-760m-toy.svg")) == expected


def test_a_figure_of_widths_needs_no_model(checkout: Path):
    assert jobs(dry_run(checkout, "results/figures/allocation.svg")) == {"views": 1, "figure": 1}


def test_a_stage_is_a_target(checkout: Path):
    grid = study_grid()
    assert jobs(dry_run(checkout, "data")) == needed(grid, set(), {}, data=1)
    assert jobs(dry_run(checkout, "models")) == needed(grid, set(grid.runs), {}, models=1)
    measured = {task.run for task in grid.novelty.values() if task.run}
    shown = {"measure_novelty": len(grid.novelty), "views": 1, "table": 2, "figure": 2, "novelty": 1}
    assert jobs(dry_run(checkout, "novelty")) == needed(grid, measured, {}, **shown)


def test_finished_products_stay_finished_whatever_their_times(checkout: Path):
    """After a fresh clone and a pull: no metadata, times in any order, sources touched."""
    finish(checkout)
    for path in checkout.rglob("*"):
        if path.is_file() and "results" not in path.parts:
            path.touch()
    output = dry_run(checkout, "evaluations", "models", "data", *[str(p) for p in novelty_files(checkout)])
    assert jobs(output) == {}
    counts = jobs(dry_run(checkout, "all"))
    assert "pretrain" not in counts
    assert "evaluate" not in counts
    assert counts["table"] == len(tables(study_grid()))


def novelty_files(folder: Path) -> list[Path]:
    return sorted(path.relative_to(folder) for path in (folder / "results/novelty").iterdir())


def test_a_mark_of_a_killed_job_hides_none_of_the_work_behind_it(checkout: Path):
    """A product that an orphan finished after its workflow was killed: Snakemake still holds it for incomplete."""
    grid = expand(load(checkout / "config.yaml"))
    manifest = f"results/data/{grid.data.name}/manifest.json"
    (checkout / manifest).parent.mkdir(parents=True)
    (checkout / manifest).write_text("{}")
    mark = checkout / ".snakemake/incomplete" / base64.b64encode(manifest.encode()).decode()
    mark.parent.mkdir(parents=True)
    mark.write_text("{}")
    counts = jobs(dry_run(checkout, "all"))
    assert "tokenize" not in counts
    assert counts == {rule: count for rule, count in all_jobs(grid).items() if rule != "tokenize"}


ALL, RUNS = all_jobs(study_grid()), len(study_grid().runs)
EXTERNAL = sum(task.run is None for task in study_grid().novelty.values())
EDITS = [
    (
        "peak: 3.0e-3",
        "peak: 1.0e-3",
        {
            "pretrain": ALL["pretrain"],
            "evaluate": ALL["evaluate"],
            "measure_novelty": ALL["measure_novelty"] - EXTERNAL,
        },
    ),
    ("validation: {tokens: 32_768}", "validation: {tokens: 16_384}", {"evaluate": RUNS}),
    ("  tokens: 2_048\n", "  tokens: 1_024\n", {"measure_novelty": ALL["measure_novelty"]}),
    ("name: study", "name: other", {}),
    ("checkpoint_seconds: 30", "checkpoint_seconds: 60", {}),
]


@pytest.mark.parametrize(("before", "after", "expected"), EDITS, ids=[after.strip() for _, after, _ in EDITS])
def test_an_edit_schedules_exactly_what_it_changes(checkout: Path, before: str, after: str, expected: dict[str, int]):
    finish(checkout)
    path = checkout / "config.yaml"
    text = path.read_text()
    assert text.count(before) == 1
    path.write_text(text.replace(before, after))
    counts = jobs(dry_run(checkout, "all"))
    assert {rule: counts[rule] for rule in ("pretrain", "evaluate", "measure_novelty") if rule in counts} == expected


def test_a_dry_run_changes_no_file(checkout: Path):
    finish(checkout)
    before = {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()}
    dry_run(checkout, "all")
    after = {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()}
    assert {path for path in after if path not in before and ".snakemake" not in path.parts} == set()
    assert {path: after.get(path) for path in before} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--config", "colour=red"), "config.yaml: colour: unknown key (its value is 'red')"),
        (("--config", "seeds=[0,0]"), "config.yaml: seeds: 0 is listed twice; remove one"),
        (("--configfile", "bad.yaml"), "bad.yaml: name: this key is missing"),
        (("--configfile", "twice.yaml"), "twice.yaml is not valid YAML: the key 'toy' is given twice"),
    ],
)
def test_a_bad_configuration_stops_with_the_file_and_the_key(checkout: Path, arguments: tuple[str, ...], message: str):
    (checkout / "bad.yaml").write_text("toy: true\n")
    (checkout / "twice.yaml").write_text("toy: true\ntoy: false\n")
    output = dry_run(checkout, "all", *arguments, check=False)
    assert message in output
    assert "Traceback" not in output


def test_a_product_of_another_configuration_is_explained(checkout: Path):
    output = dry_run(checkout, "results/models/transformer_1b_uniform_s0-00000000/manifest.json", check=False)
    assert "this configuration has no run 'transformer_1b_uniform_s0-00000000'" in output


def test_fetched_benchmarks_are_handed_over_and_missing_ones_stop_everything(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
):
    path = checkout / "config.yaml"
    config = study()
    own = {"task": "openbookqa", "metric": "acc", "title": "OpenBookQA", "direction": "higher", "items": "my own.jsonl"}
    keys = {"source": "path", "path": "my items", "tasks": ["piqa"], "additional": [own]}
    config["evaluation"]["zero_shot"] = keys
    (checkout / "my own.jsonl").write_text("{}\n")
    path.write_text(yaml.safe_dump(config))
    output = dry_run(checkout, "evaluations", check=False)
    assert "evaluation.zero_shot.path: my items, the folder of the fetched benchmarks, doesn't exist" in output
    assert "tlm-repro fetch-benchmarks --out 'my items'" in output
    save_piqa(checkout / "my items")
    monkeypatch.chdir(checkout)
    finish(checkout)
    name = next((checkout / "results/evaluations").glob("transformer*/zero_shot-*.json")).relative_to(checkout)
    (checkout / name).unlink()
    output = dry_run(checkout, "-p", str(name))
    assert jobs(output) == {"evaluate": 1}
    assert "--benchmarks 'my items' --items 'openbookqa=my own.jsonl' --batch-size" in output


def save_piqa(folder: Path) -> None:
    """What `fetch-benchmarks` leaves, as far as the workflow reads it."""
    (folder / "piqa").mkdir(parents=True)
    (folder / "piqa/items.parquet").write_text("rows")
    (folder / "piqa/source.json").write_text("{}")
    places = {"dataset": "baber/piqa", "config": None, "split": "validation", "revision": "main", "commit": None}
    source = {**places, "rows": 1, "sha256": "0" * 64, "task_version": 1.0, "lm_eval": "0.4.13"}
    write_manifest(
        folder,
        kind="benchmarks",
        id=f"benchmarks-{fingerprint({'piqa': source['sha256']})}",
        spec={"tasks": {"piqa": {"revision": "main"}}},
        summary={"tasks": {"piqa": source}},
        files=[folder / "piqa/items.parquet", folder / "piqa/source.json"],
        device="cpu",
        wall_time_s=0,
    )


def test_without_needles_there_is_no_table_3(checkout: Path):
    path = checkout / "config.yaml"
    path.write_text(re.sub(r"  niah:.*\n(    .*\n)+", "", path.read_text()))
    counts = jobs(dry_run(checkout, "all"))
    assert [rule for rule in counts if rule.startswith(("niah", "needle"))] == []
    without = expand(load(path))
    assert counts == all_jobs(without)
    output = dry_run(checkout, "results/tables/niah.csv", check=False)
    others = ", ".join(name for name in tables(study_grid()) if name != "niah")
    assert f"this configuration has no table 'niah'; it has {others}" in output


def test_a_second_seed_doubles_the_runs(checkout: Path):
    assert jobs(dry_run(checkout, "models", "--config", "seeds=[0,1]"))["pretrain"] == 2 * len(study_grid().runs)


def test_no_command_of_the_report_grows_with_the_seeds(checkout: Path):
    """Linux takes 128 KiB for one string, and a rule's command is one: forty seeds of the paper's grid stay below."""
    seeds = f"seeds={list(range(40))}"
    output = dry_run(checkout, "-p", "results/report.html", "--configfile", "config/paper.yaml", "--config", seeds)
    sizes: dict[str, int] = {}
    for command, name in re.findall(r"(tlm-repro ([a-z-]+) .*)", output):
        sizes[name] = max(sizes.get(name, 0), len(command.encode()))
    assert {"views", "table", "figure", "claims", "report"} <= set(sizes)
    assert {name: size for name, size in sizes.items() if size > 20_000} == {}


def test_what_an_edit_leaves_as_it_was_is_not_shown_anew(checkout: Path):
    """View are named after their content: an edit that changes none of them renders nothing."""
    finish(checkout)
    grid = expand(load(checkout / "config.yaml"))
    shown = {name: f"results/views/{file_name(name, content)}" for name, content in views(grid).items()}
    files = [f"results/tables/{name}.{form}" for name in tables(grid) for form in ("csv", "md", "tex")]
    for name in [*shown.values(), *files]:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text("{}")
    assert jobs(dry_run(checkout, "tables")) == {}
    faster = dry_run(checkout, "tables", "--config", "trainer={checkpoint_seconds: 60}")
    assert jobs(faster) == {}
    (checkout / "results/tables/sweep.md").unlink()
    assert jobs(dry_run(checkout, "tables")) == {"table": 1, "tables": 1}


def test_what_lacks_is_rendered_also_where_its_view_is_written_anew(checkout: Path):
    """Were views ancient to what shows them, Snakemake would plan their job and nothing behind it."""
    finish(checkout)
    grid = expand(load(checkout / "config.yaml"))
    view = checkout / f"results/views/{file_name('motivation', views(grid)['motivation'])}"
    view.parent.mkdir(parents=True)
    view.write_text("{}")
    table = "results/tables/motivation.csv"
    assert jobs(dry_run(checkout, table)) == {"table": 1}
    assert jobs(dry_run(checkout, table, "--forcerun", "views")) == {"views": 1, "table": 1}


def test_exhibits_of_one_s_own_are_targets_like_all_others(checkout: Path):
    (checkout / "my_figures.py").write_text(own_exhibits.SOURCE)
    (checkout / "config.yaml").write_text(yaml.safe_dump(study() | {"reporting": {"exhibits": ["my_figures.py"]}}))
    counts, plain = jobs(dry_run(checkout, "all")), all_jobs(study_grid())
    architectures = len(study()["experiments"]["main"]["architectures"])
    assert counts == plain | {"table": plain["table"] + 1, "figure": plain["figure"] + 1 + architectures}
    finish(checkout)
    table = "results/tables/losses.csv"
    assert jobs(dry_run(checkout, table)) == {"views": 1, "table": 1}
    output = dry_run(checkout, "-p", "results/figures/losses-titans.svg")
    assert re.search(
        r"tlm-repro figure --view results/views/losses-titans-\w+\.json --out results/figures/losses", output
    )


def test_an_edit_of_one_s_own_exhibits_renders_them_anew(checkout: Path, monkeypatch: pytest.MonkeyPatch):
    mine = checkout / "my_figures.py"
    mine.write_text(own_exhibits.SOURCE)
    (checkout / "config.yaml").write_text(yaml.safe_dump(study() | {"reporting": {"exhibits": [mine.name]}}))
    finish(checkout)
    monkeypatch.chdir(checkout)
    grid = expand(load(checkout / "config.yaml"))
    views_now = [f"results/views/{file_name(name, view)}" for name, view in views(grid).items()]
    for name in [*views_now, *(f"results/tables/losses.{form}" for form in ("csv", "md", "tex"))]:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text("{}")
    assert jobs(dry_run(checkout, "results/tables/losses.csv")) == {}
    later = mine.stat().st_mtime + 3600
    os.utime(mine, (later, later))
    assert jobs(dry_run(checkout, "results/tables/losses.csv")) == {"table": 1}


def test_a_file_of_exhibits_that_cannot_be_used_stops_everything(checkout: Path):
    (checkout / "broken.py").write_text("import nowhere\n")
    for name, message in {"broken.py": "can't be imported (ModuleNotFoundError", "none.py": "no such file"}.items():
        output = dry_run(checkout, "all", "--config", f"reporting={{exhibits: [{name}]}}", check=False)
        assert f"The configuration can't be used:\nreporting.exhibits: {name}: " in output
        assert message in output
        assert "Traceback" not in output
