"""Evaluation files, novelty files and the paper's tables: what is read, and what is refused by name."""

import json
import math
from pathlib import Path

import pytest
import record_files
from exhibits import numbers

from tlm_repro.errors import ArtifactError
from tlm_repro.records.novelty import Novelty
from tlm_repro.records.view import Cell, ExperimentView
from tlm_repro.reporting import published, results, tapers
from tlm_repro.spec import metrics
from tlm_repro.statistics.blocks import Blocks

ACCURACIES = dict(
    zip(
        ("lambada_acc", "piqa", "hellaswag", "winogrande", "arc_easy", "arc_challenge", "siqa", "boolq"),
        (0.390, 0.687, 0.463, 0.571, 0.668, 0.353, 0.425, 0.623),
        strict=True,
    )
)


RUN = record_files.run()["id"]


ERROR = math.sqrt(0.687 * 0.313 / 999)  # of an accuracy over 1,000 items


def evaluation(seed: int = 0, *, val_loss: float | None = None, **accuracies: float) -> dict:
    run = record_files.run(seed=seed)
    return (
        record_files.zero_shot(accuracies, run=run) if val_loss is None else record_files.validation(val_loss, run=run)
    )


def written(folder: Path, name: str, content: object) -> Path:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(content))
    return path


def test_files_become_tidy_rows_and_model_facts(tmp_path):
    paths = [
        written(tmp_path, "validation", evaluation(val_loss=2.5)),
        written(tmp_path, "zero", evaluation(**ACCURACIES)),
    ]
    found = results.load(paths)
    loss = found.find(RUN, "val_loss")
    assert (loss.value, loss.stderr) == (2.5, 0.01)
    assert found.find(RUN, "piqa").stderr == pytest.approx(ERROR)
    assert found.find(RUN, "piqa").value == 0.687
    assert found.find(RUN, "unknown") is None
    row = found.metrics.loc[(RUN, "val_ppl")]
    assert (row["architecture"], row["scale"], row["seed"], row["suite"], row["items"]) == (
        "transformer",
        "toy",
        0,
        "validation",
        10,
    )
    assert found.models.loc[RUN, "training_flops"] == 3000
    assert found.models.loc[RUN, "intermediate_sizes"] == (32, 16)


def test_average_is_the_plain_mean_as_in_table_2(tmp_path):
    found = results.load([written(tmp_path, "zero", evaluation(**ACCURACIES))])
    average = found.find(RUN, "avg")
    assert round(100 * average.value, 2) == 52.25  # the paper's first row
    errors = [math.sqrt(value * (1 - value) / 999) for value in ACCURACIES.values()]
    assert average.stderr == pytest.approx(math.hypot(*errors) / 8)


def test_average_needs_all_eight(tmp_path):
    some = {name: value for name, value in ACCURACIES.items() if name != "boolq"}
    assert results.load([written(tmp_path, "zero", evaluation(**some))]).find(RUN, "avg") is None


BLOCKS = Blocks(data="text-1", sequence_length=8, windows=(2, 1), loss=(2.4, 2.7))


def test_losses_by_block_are_read_where_a_file_has_them(tmp_path):
    files = {"old": evaluation(val_loss=2.5)}
    files["new"] = record_files.validation(2.5, blocks=BLOCKS, run=record_files.run(seed=1))
    found = results.load([written(tmp_path, name, content) for name, content in files.items()])
    assert found.find(files["old"]["run"]["id"], "val_loss").blocks is None
    blocks = found.find(files["new"]["run"]["id"], "val_loss").blocks
    assert (blocks.windows, blocks.loss, blocks.sequence_length, blocks.data) == ((2, 1), (2.4, 2.7), 8, "text-1")
    assert found.find(files["new"]["run"]["id"], "val_ppl").blocks is None


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"loss": [2.4, 2.8]}, "details.blocks.loss: 2.53"),
        ({"loss": [2.5]}, "details.blocks"),
        ({"loss": [2.5, "low"]}, "details.blocks.loss.1"),
        ({"windows": [3, 0]}, "details.blocks"),
        ({"windows": None}, "details.blocks.windows"),
    ],
)
def test_blocks_that_are_not_those_of_the_loss_are_refused(tmp_path, change, expected):
    content = record_files.validation(2.5, blocks=BLOCKS)
    content["details"]["blocks"] |= change
    path = written(tmp_path, "broken", content)
    with pytest.raises(ArtifactError) as error:
        results.load([path])
    assert str(path) in str(error.value)
    assert expected in str(error.value)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"schema": 2}, "schema"),
        ({"kind": "novelty"}, "kind"),
        ({"metrics": {"val_loss": {"value": "low", "stderr": None, "items": 1}}}, "metrics.val_loss.value"),
        ({"model": {"parameters": 1}}, "model.forward_flops"),
    ],
)
def test_malformed_file_is_refused_by_name_and_key(tmp_path, change, expected):
    path = written(tmp_path, "broken", evaluation(val_loss=1.0) | change)
    with pytest.raises(ArtifactError) as error:
        results.load([path])
    assert str(path) in str(error.value)
    assert expected in str(error.value)


def test_nan_is_refused(tmp_path):
    path = tmp_path / "nan.json"
    path.write_text(json.dumps(evaluation(val_loss=math.nan)))
    with pytest.raises(ArtifactError, match="val_loss"):
        results.load([path])


def test_missing_file_and_broken_json_are_named(tmp_path):
    with pytest.raises(ArtifactError, match=r"absent\.json does not exist"):
        results.load([tmp_path / "absent.json"])
    (tmp_path / "cut.json").write_text('{"schema": 1,')
    with pytest.raises(ArtifactError, match=r"cut\.json is not valid JSON"):
        results.load([tmp_path / "cut.json"])


def test_same_metric_twice_names_both_files(tmp_path):
    paths = [written(tmp_path, name, evaluation(val_loss=1.0)) for name in ("one", "two")]
    with pytest.raises(ArtifactError, match=r"two\.json and .*one\.json both hold 'val_loss'"):
        results.load(paths)


def test_disagreeing_facts_are_refused(tmp_path):
    other = evaluation(piqa=0.5)
    other["model"]["parameters"] = 1001
    paths = [written(tmp_path, "one", evaluation(val_loss=1.0)), written(tmp_path, "two", other)]
    with pytest.raises(ArtifactError, match=f"disagree on 'parameters' of run {RUN}"):
        results.load(paths)


def test_missing_cell_names_the_run_and_its_target(tmp_path):
    found = results.load([written(tmp_path, "one", evaluation(val_loss=1.0))])
    cell = {
        "label": "tapered",
        "architecture": "transformer",
        "scale": "toy",
        "allocation": "cosine-1.5-0.5",
        "seed": 3,
    }
    view = ExperimentView(
        experiment="main", toy=True, config="demo", cells=[{**cell, "run": "lost-7", "width": 128, "layers": 4}]
    )
    with pytest.raises(ArtifactError, match=r"run lost-7 has no zero_shot evaluation.*snakemake evaluations"):
        found.require(view, "zero_shot")


def test_novelty_file_is_read_and_checked(tmp_path):
    content = record_files.novelty_content({"name": "gpt2", "run": None}, [0.1, 0.2], [0.1, None])
    measured = Novelty.read(written(tmp_path, "gpt2", content))
    assert measured.mlp[1] is None
    assert measured.block[1].mean == 0.2
    del content["correlation"]["mlp"]
    with pytest.raises(ArtifactError, match=r"bad\.json: correlation\.mlp: the key is missing"):
        Novelty.read(written(tmp_path, "bad", content))


def cell(allocation: str) -> Cell:
    place = {"architecture": "transformer", "scale": "toy", "seed": 0, "run": "a_run-1", "width": 64, "layers": 4}
    return Cell.model_validate({**place, **numbers(allocation), "label": allocation, "allocation": allocation})


@pytest.mark.parametrize(
    ("allocation", "expected", "plain"),
    [
        ("uniform", ("uniform", 1.0, 1.0), False),
        ("cosine-1.375-0.625", ("cosine", 1.375, 0.625), True),
        ("sigmoid-1.5-0.5", ("sigmoid", 1.5, 0.5), True),
        ("sigmoid-1.5-0.5-k8", ("sigmoid", 1.5, 0.5), False),
    ],
)
def test_the_ends_and_the_plainness_of_a_taper_are_its_numbers(
    allocation: str, expected: tuple[str, float, float], plain: bool
):
    assert (cell(allocation).curve, *tapers.ends(cell(allocation))) == expected
    assert tapers.is_plain(cell(allocation)) is plain


def test_an_allocation_without_two_ends_has_none():
    shape = cell("thirds-1.5-1.0-0.5")
    assert shape.curve == "thirds"
    assert all(math.isnan(end) for end in tapers.ends(shape))


def test_a_cell_of_an_older_view_has_no_numbers():
    older = cell("cosine-1.5-0.5").model_copy(update={"curve": None, "parameters": {}})
    assert all(math.isnan(end) for end in tapers.ends(older))
    assert not tapers.is_plain(older)


def test_published_losses_give_the_published_perplexities_back():
    table = published.reference("table1_sweep")
    assert len(table) == 16
    for perplexity in table["val_ppl"]:
        assert round(math.exp(published.published_loss(perplexity)), 2) == pytest.approx(perplexity)


def test_published_averages_are_means_of_the_published_accuracies():
    complete = published.reference("table2_main").dropna()
    assert len(complete) == 8
    means = complete[list(metrics.ACCURACIES)].mean(axis=1)
    assert (abs(means - complete["avg"]) <= 0.005 + 1e-9).all()


def test_an_evaluation_is_of_one_model(tmp_path):
    both = evaluation(piqa=0.5) | {"external": record_files.external()["external"]}
    neither = {key: value for key, value in evaluation(piqa=0.5).items() if key not in ("run", "model")}
    for name, content in (("both", both), ("neither", neither)):
        with pytest.raises(ArtifactError, match=rf"{name}\.json.*run and model are expected, or external"):
            results.load([written(tmp_path, name, content)])


def test_models_trained_elsewhere_are_kept_apart_and_printed(tmp_path):
    from typer.testing import CliRunner

    from tlm_repro.cli import app

    elsewhere = record_files.zero_shot(ACCURACIES, **record_files.external())
    paths = [
        written(tmp_path, "ours", evaluation(piqa=0.25)),
        written(tmp_path, "other", elsewhere),
    ]
    found = results.load(paths)
    assert set(found.metrics["run"]) == {RUN}
    rows = found.external.set_index("metric")
    assert rows.loc["piqa", "value"] == 0.687
    assert rows.loc["avg", "value"] == pytest.approx(sum(ACCURACIES.values()) / 8)
    assert set(rows["version"]) == {"0" * 40}
    printed = CliRunner().invoke(app, ["scores", *map(str, paths)])
    assert printed.exit_code == 0
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in printed.stdout.splitlines()]
    assert [RUN, "zero_shot", "piqa", "0.25", "0.0137", "1000"] in cells
    assert ["other", "zero_shot", "piqa", "0.687", "0.01467", "1000"] in cells
