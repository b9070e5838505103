import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from manifests import write_manifest
from small_study import STUDY, study, study_grid
from small_study import edited as edited_study

from tlm_repro.architectures.accounting import parameters
from tlm_repro.artifacts.fingerprint import fingerprint
from tlm_repro.config.loading import load, parse
from tlm_repro.errors import ConfigError
from tlm_repro.reporting.registry import figures, members, tables
from tlm_repro.study.grid import expand

ROOT = Path(__file__).parents[2]


def grid_of(raw: dict[str, Any]):
    return expand(parse(raw, "test"))


def edited(path: str, value: Any):
    return grid_of(edited_study(path, value))


def labels(ids: set[str]) -> set[str]:
    return {name.rsplit("-", 1)[0] for name in ids}


@pytest.mark.parametrize(
    ("path", "tapers", "pairs", "others"),
    [(STUDY, 6, 4, 2), (ROOT / "config/paper.yaml", 15, 8, 0)],
    ids=["study", "paper"],
)
def test_every_run_once(path: Path, tapers: int, pairs: int, others: int):
    """Figure 2 and Table 1 share their uniform model; each model of Table 2 is trained as a pair.

    The study has other papers' allocations too, beside the sweep's own uniform and tapered model.
    """
    grid = expand(load(path))
    assert len(grid.runs) == 4 + tapers + 2 * pairs + others
    counts = {experiment: len({cell.run for cell in cells}) for experiment, cells in grid.experiments.items()}
    allocations = {"allocations": 2 + others} if others else {}
    assert counts == {"motivation": 4, "sweep": 1 + tapers, "main": 2 * pairs, **allocations}
    shared = {c.run for c in grid.experiments["motivation"]} & {c.run for c in grid.experiments["sweep"]}
    assert labels(shared) == {next(iter(shared)).split("_s0")[0] + "_s0"}
    assert all("uniform" in run for run in shared)
    assert len({run.rsplit("-", 1)[1] for run in grid.runs}) == len(grid.runs), "two runs would train the same weights"


def test_the_study_compares_at_equal_seeds_and_budgets():
    grid = expand(load(ROOT / "config/laptop.yaml"))
    assert len(grid.runs) == 5 * 6 + 3
    seeds = {name: {cell.seed for cell in cells} for name, cells in grid.experiments.items()}
    assert seeds == {"motivation": set(range(6)), "main": set(range(6)), "allocations": set(range(3))}
    assert {sum(run.model.intermediate_sizes) for run in grid.runs.values()} == {6 * 256}
    (total,) = {parameters(run.model).total for run in grid.runs.values()}
    assert total == 1024 * 64 + 6 * (4 * 64**2 + 3 * 64 * 256 + 2 * 64) + 64


def test_uniform_and_tapered_share_everything_but_widths():
    grid = expand(load(ROOT / "config/paper.yaml"))
    main = {(c.architecture, c.scale, c.label): grid.runs[c.run] for c in grid.experiments["main"]}
    for arch, scale, label in main:
        uniform, other = main[arch, scale, "uniform"], main[arch, scale, label]
        assert uniform.data == other.data
        assert uniform.training == other.training
        widths = other.model.intermediate_sizes
        assert uniform.model == other.model.model_copy(update={"intermediate_sizes": uniform.model.intermediate_sizes})
        assert sum(widths) == sum(uniform.model.intermediate_sizes)
    tapered = main["transformer", "760m", "tapered"].model.intermediate_sizes
    assert (tapered[0], tapered[-1]) == (1.5 * 3968, 0.5 * 3968)


def test_other_allocations_at_440m_are_trained_beside_the_paper_s_own_runs():
    """`config/allocations.yaml` repeats the paper's data, model and training: its two shapes are the paper's runs."""
    paper, others = (expand(load(ROOT / f"config/{name}.yaml")) for name in ("paper", "allocations"))
    shared = {cell.label for cell in others.experiments["allocations"] if cell.run in paper.runs}
    assert (shared, len(others.runs)) == ({"uniform", "tapered"}, 11)
    assert all(sum(run.model.intermediate_sizes) == 24 * 3712 for run in others.runs.values())
    assert {name for suites in others.suites.values() for name in suites} < {
        name for suites in paper.suites.values() for name in suites
    }
    for section in ("data", "model", "training", "trainer"):
        assert getattr(others.config, section) == getattr(paper.config, section)


def test_token_budgets():
    grid = expand(load(ROOT / "config/paper.yaml"))
    for spec in grid.runs.values():
        budget = {"440m": 30e9, "760m": 50e9, "1.3b": 100e9}[spec.labels.scale]
        assert abs(spec.training.tokens - budget) <= 524_288 / 2
        assert spec.training.batch_tokens == 524_288


ALL = "every run"
EDITS = [
    ("toy", False, set()),
    ("name", "other", set()),
    ("trainer/checkpoint_seconds", 5, set()),
    ("evaluation/batch_size", 4, set()),
    ("evaluation/validation/tokens", 1000, set()),
    ("novelty", None, set()),
    ("scales/440m-toy/hardware", {"micro_batch_sequences": 4}, set()),
    ("training/learning_rate/peak", 1e-3, ALL),
    ("training/learning_rate", {"kind": "wsd", "peak": 3e-3}, ALL),
    ("training/learning_rate/warmup_ratio", 0.1001, set()),
    ("training/optimizer", {"kind": "adamw"}, set()),
    ("training/optimizer", {"kind": "adamw", "beta2": 0.99}, ALL),
    ("data/split_seed", 1, ALL),
    ("model/tied_embeddings", False, ALL),
    ("scales/760m-toy/tokens", 40_960, {"760m-toy"}),
    ("scales/760m-toy/mlp_width/gated_attention", 128, {"gated_attention_760m-toy"}),
    ("allocations/wider-early/multipliers", [1.25, 1.0, 0.75], {"thirds-1.5-1.0-0.5"}),
    ("allocations/tapered/start", 1.5, set()),
]


@pytest.mark.parametrize(("path", "value", "touched"), EDITS, ids=[path for path, *_ in EDITS])
def test_an_edit_changes_exactly_the_runs_that_it_touches(path: str, value: Any, touched: Any):
    before, after = set(study_grid().runs), set(edited(path, value).runs)
    gone = before - after
    if touched == ALL:
        assert gone == before
    elif not touched:
        assert gone == set()
    else:
        assert gone == {run for run in before if any(part in run for part in touched)}


def test_evaluation_edits_change_evaluations_and_not_runs():
    before, after = study_grid(), edited("evaluation/validation/tokens", 1000)
    names = [set(next(iter(grid.suites.values()))) for grid in (before, after)]
    assert not names[0] & names[1]
    assert set(before.novelty) == set(after.novelty)


def test_seeds_multiply_cells_and_share_their_data_order():
    grid = edited("seeds", [0, 1])
    assert len(grid.runs) == 2 * len(study_grid().runs)
    pairs = {(c.label, c.seed): grid.runs[c.run].training.seed for c in grid.experiments["motivation"]}
    assert pairs[("uniform", 1)] == pairs[("wider-late", 1)] == 1


def test_an_experiment_can_have_seeds_of_its_own():
    raw = study()
    raw["seeds"] = [3]
    raw["experiments"]["motivation"]["seeds"] = [0, 1, 2]
    grid, alone = grid_of(raw), edited("seeds", [3])
    trained = {name: {cell.seed for cell in cells} for name, cells in grid.experiments.items()}
    assert trained == {"motivation": {0, 1, 2}, "sweep": {3}, "main": {3}, "allocations": {3}}
    assert len(grid.experiments["motivation"]) == 3 * 4
    assert [cell.run for cell in grid.experiments["main"]] == [cell.run for cell in alone.experiments["main"]]


def test_only_the_models_of_table_2_run_the_benchmarks():
    grid = study_grid()
    benchmarked = {run for run, suites in grid.suites.items() if any(s.suite == "zero_shot" for s in suites.values())}
    assert benchmarked == {cell.run for cell in grid.experiments["main"]}
    assert all(any(s.suite == "validation" for s in suites.values()) for suites in grid.suites.values())
    assert len(grid.evaluations(grid.experiments["sweep"], ["validation"])) == 1 + 6
    assert len(grid.evaluations(grid.experiments["main"], ["validation", "zero_shot"])) == 2 * 8


def test_table_3_and_a_heat_map_for_each_architecture_and_scale_that_looks_for_needles():
    grid = study_grid()
    architectures = study()["experiments"]["main"]["architectures"]
    maps = [f"niah-{name}-760m-toy" for name in architectures]
    assert [name for name in figures(grid) if name.startswith("niah")] == maps
    shipped = [
        "motivation",
        "sweep",
        "main",
        "allocations",
        "niah",
        "scaling",
        "curves",
        "novelty",
        "novelty-pairs",
    ]
    assert [name for name in tables(grid) if name in shipped] == shipped
    cells = members(grid)["niah-titans-760m-toy"].cells["main"]
    assert [(cell.architecture, cell.label) for cell in cells] == [("titans", "uniform"), ("titans", "tapered")]
    assert [name.split("-")[0] for _, name in grid.evaluations(cells, ["niah"])] == ["niah", "niah"]
    without = edited("evaluation/niah", None)
    assert not any(name.startswith("niah") for name in [*tables(without), *figures(without)])


def saved_benchmarks(folder: Path, **rows: str) -> None:
    """A folder as `fetch-benchmarks` leaves it, with these contents of each task's rows."""
    for task in rows:
        (folder / task).mkdir(parents=True, exist_ok=True)
        for name in ("items.parquet", "source.json"):
            (folder / task / name).write_text("rows")
    sources = {
        task: {
            "dataset": "owner/name",
            "config": None,
            "split": "test",
            "revision": "main",
            "commit": None,
            "rows": 1,
            "sha256": hashlib.sha256(contents.encode()).hexdigest(),
            "task_version": 1.0,
            "lm_eval": "0.4.13",
        }
        for task, contents in rows.items()
    }
    files = [folder / task / name for task in rows for name in ("items.parquet", "source.json")]
    hashes = {task: source["sha256"] for task, source in sources.items()}
    write_manifest(
        folder,
        kind="benchmarks",
        id=f"benchmarks-{fingerprint(hashes)}",
        spec={"tasks": {task: {"revision": "main"} for task in rows}},
        summary={"tasks": sources},
        files=files,
        device="cpu",
        wall_time_s=0,
    )


def benchmarked(**zero_shot: Any) -> set[str]:
    """Names of the benchmark evaluations of the study with these keys in `evaluation.zero_shot`."""
    grid = edited("evaluation/zero_shot", zero_shot)
    return {name for suites in grid.suites.values() for name in suites if name.startswith("zero_shot")}


def test_fetched_items_name_the_evaluation_and_their_folder_does_not(tmp_path: Path):
    for name, piqa, boolq in (("a", "1", "2"), ("moved", "1", "2"), ("piqa", "x", "2"), ("other", "1", "x")):
        saved_benchmarks(tmp_path / name, piqa=piqa, boolq=boolq)
    names = {
        name: benchmarked(source="path", path=str(tmp_path / name), tasks=["piqa"])
        for name in ("a", "moved", "piqa", "other")
    }
    assert all(len(found) == 1 for found in names.values())
    assert names["a"] == names["moved"] == names["other"]
    assert not names["a"] & names["piqa"]
    assert not names["a"] & benchmarked(source="hub", tasks=["piqa"])


def test_a_folder_without_the_items_stops_before_any_job(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"evaluation\.zero_shot\.path: .*doesn't exist: run `tlm-repro fetch-benchm"):
        benchmarked(source="path", path=str(tmp_path / "none"), tasks=["piqa"])
    saved_benchmarks(tmp_path, boolq="1")
    with pytest.raises(ConfigError, match=rf"no items of piqa.*fetch-benchmarks --out {tmp_path} --task piqa"):
        benchmarked(source="path", path=str(tmp_path), tasks=["piqa", "boolq"])
    (tmp_path / "boolq" / "items.parquet").write_text("more rows")
    with pytest.raises(ConfigError, match=r"has 9 bytes, but its manifest says 4: run `tlm-repro fetch-benchmarks"):
        benchmarked(source="path", path=str(tmp_path), tasks=["boolq"])


def test_pinned_revisions_name_the_evaluation():
    plain = benchmarked(source="hub", tasks=["piqa", "boolq"])
    pinned = benchmarked(source="hub", tasks=["piqa", "boolq"], revisions={"piqa": "abc"})
    assert len(plain | pinned) == 2
    assert benchmarked(source="hub", tasks=["piqa", "boolq"], revisions={}) == plain


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"source": "path"}, r"zero_shot\.path: source path needs it\..*fetch-benchmarks"),
        ({"source": "hub", "path": "x"}, r"zero_shot\.path: 'x' has no effect with source hub"),
        ({"source": "demo", "revisions": {"piqa": "x"}}, r"zero_shot\.revisions: .* no effect with source demo"),
        ({"source": "hub", "revisions": {"boolq": "x"}}, r"zero_shot\.revisions\.boolq: this task isn't in tasks"),
        ({"source": "hub", "revisions": {"mmlu": "x"}}, r"zero_shot\.revisions"),
    ],
)
def test_keys_of_another_source_are_refused(keys: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        benchmarked(tasks=["piqa"], **keys)


def test_a_total_far_from_the_nominal_size_is_refused():
    raw = yaml.safe_load((ROOT / "config/paper.yaml").read_text())
    raw["scales"]["440m"]["mlp_width"]["transformer"] = 3584
    with pytest.raises(ConfigError, match=r"scales\.440m\.mlp_width\.transformer: 430\.5 M parameters are -2\.2 %"):
        grid_of(raw)


def test_ids_are_as_they_always_were():
    """Golden ids: an upgrade that changes one would orphan the artifacts of every lab. A new one orphans nothing."""
    golden = json.loads((ROOT / "tests/golden/ids.json").read_text())
    for name, expected in golden.items():
        grid = expand(load(ROOT / name))
        evaluations = {suite for suites in grid.suites.values() for suite in suites}
        ids = {"runs": {*grid.runs}, "evaluations": evaluations, "novelty": {*grid.novelty}}
        assert expected.pop("data") == grid.data.name
        assert {kind: sorted({*expected[kind]} - ids[kind]) for kind in expected} == {kind: [] for kind in ids}


@pytest.mark.process
def test_expanding_the_paper_imports_nothing_heavy():
    code = (
        "import sys; from pathlib import Path\n"
        "from tlm_repro.config.loading import load; from tlm_repro.study.grid import expand\n"
        f"expand(load(Path({str(ROOT / 'config/paper.yaml')!r})))\n"
        "print([name for name in ('torch', 'transformers', 'datasets', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_without_benchmarks_there_is_no_table_2():
    raw = study()
    raw["evaluation"]["zero_shot"] = None
    grid = grid_of(raw)
    assert "main" in grid.experiments
    assert "main" not in tables(grid)
    assert {"scaling", "curves", "niah"} <= set(tables(grid))


def test_models_without_late_layers_have_no_table_of_them():
    raw = study()
    raw["scales"]["760m-toy"]["layers"] = 5
    grid = grid_of(raw)
    assert "novelty" in tables(grid)
    assert "novelty-pairs" not in tables(grid) + figures(grid)
    assert "novelty-pairs" in tables(study_grid())
