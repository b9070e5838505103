"""The tables' numbers against hand computation and the published CSVs, and what their writers put on disk."""

import io
import math
import re

import pandas as pd
import pytest
import record_files
from exhibits import evidence, numbers

from tlm_repro.errors import ArtifactError
from tlm_repro.records.view import ExperimentView
from tlm_repro.reporting import formats, published, results, sheets
from tlm_repro.reporting.evidence import Evidence
from tlm_repro.reporting.exhibits.main import PAPER_COLUMNS, Main
from tlm_repro.reporting.exhibits.motivation import Motivation
from tlm_repro.reporting.exhibits.novelty import LayerNovelty
from tlm_repro.reporting.exhibits.sweep import Sweep
from tlm_repro.reporting.published import NOT_PUBLISHED
from tlm_repro.spec.metrics import ACCURACIES, MAIN_METRICS


def case(experiment, suite, values, scale, toy=False):
    """Evidence from {(architecture, label): {metric: [a value a seed]}}, each with a standard error of 0.01."""
    rows, cells = [], []
    for (architecture, label), metrics in values.items():
        for seed in range(len(next(iter(metrics.values())))):
            run = f"{architecture} {label} {seed}"
            allocation = "cosine-1.5-0.5" if label == "tapered" else label
            labels = {"architecture": architecture, "scale": scale, "allocation": allocation, "seed": seed, "run": run}
            curve = {} if label.startswith("wider") else numbers(allocation)
            cells.append({**labels, **curve, "label": label, "width": 128, "layers": 6})
            rows += [
                {**labels, "suite": suite, "metric": metric, "value": found[seed], "stderr": 0.01, "items": 9}
                for metric, found in metrics.items()
            ]
    return evidence(
        results.frames(rows, []), ExperimentView(experiment=experiment, toy=toy, config="test", cells=cells)
    )


SWEEP = {
    ("transformer", "uniform"): {"val_loss": [2.80, 2.82]},
    ("transformer", "cosine-1.5-0.5"): {"val_loss": [2.70, 2.74]},
    ("transformer", "cosine-1.9-0.1"): {"val_loss": [2.90, 2.91]},
}


def sweep_frame(scale="440m", toy=False):
    return Sweep().table(case("sweep", "validation", SWEEP, scale, toy)).set_index("allocation", drop=False)


def test_sweep_row_by_hand():
    row = sweep_frame().loc["cosine-1.5-0.5"]
    assert (row["schedule"], row["start"], row["end"], row["seeds"]) == ("cosine", 1.5, 0.5, 2)
    assert row["val_loss"] == pytest.approx(2.72)
    assert row["val_loss_se"] == pytest.approx(0.02)  # |2.74 − 2.70| / 2
    assert row["val_ppl"] == pytest.approx(math.exp(2.72))
    assert row["val_ppl_se"] == pytest.approx(math.exp(2.72) * 0.02)
    assert row["difference"] == pytest.approx(-0.09)
    assert row["difference_interval"] == pytest.approx(12.7062 * 0.01, rel=1e-4)  # t(0.975, 1) × |0.02| / 2
    assert (row["published_val_ppl"], row["published_val_loss"]) == (14.44, 2.67)


def test_published_values_stand_by_label_at_any_scale_and_say_so():
    frame = sweep_frame("demo", toy=True)
    assert frame.loc["uniform", "published_val_ppl"] == 16.28
    assert frame.loc["uniform", "published_scale"] == "440m"
    assert math.isnan(frame.loc["cosine-1.9-0.1", "published_val_ppl"])
    assert frame["toy"].all()
    assert "Toy scale" in Sweep().sheet(frame).caption


def test_motivation_goes_by_label():
    values = {("transformer", label): {"val_loss": [2.8]} for label in ("uniform", "wider-early")}
    frame = Motivation().table(case("motivation", "validation", values, "440m"))
    assert list(frame["published_val_ppl"]) == [16.28, 15.96]
    assert list(frame["basis"]) == ["evaluation", "evaluation"]


def test_missing_evaluation_is_an_error():
    found = case("sweep", "zero_shot", SWEEP, "440m")
    with pytest.raises(ArtifactError, match="run transformer uniform 0 has no validation evaluation"):
        Sweep().table(found)


def published_values():
    """Table 2 in the shape of our files (accuracies as fractions); what isn't published is left out."""
    found = {}
    for row in published.reference("table2_main").to_dict(orient="records"):
        if row["scale"] == "760m":
            metrics = {metric: [row[metric]] for metric in ("wikitext_ppl", "lambada_ppl")}
            metrics |= {metric: [row[metric] / 100] for metric in (*ACCURACIES, "avg")}
            found[row["arch"], row["allocation"]] = metrics
    return found


def test_main_gives_the_published_table_back():
    frame = Main().table(case("main", "zero_shot", published_values(), "760m"))
    levels = frame[frame["quantity"] == "level"].set_index(["architecture", "label"])
    reference = published.reference("table2_main").query("scale == '760m'").set_index(["arch", "allocation"])
    for metric in MAIN_METRICS:
        for key, value in reference[metric].items():
            assert levels.loc[key, metric] == pytest.approx(value)
            assert levels.loc[key, f"published_{metric}"] == value
    change = frame[frame["quantity"] == "difference"].set_index("architecture").loc["transformer"]
    assert change["wikitext_ppl"] == pytest.approx(math.log(21.42 / 21.86))
    assert change["boolq"] == pytest.approx(1.1)
    assert change["published_avg"] == pytest.approx(0.59)
    assert change["boolq_interval"] == pytest.approx(1.959964 * math.sqrt(2))


def test_main_says_what_is_not_published_and_what_was_not_run():
    values = {("transformer", label): {"wikitext_ppl": [17.0], "piqa": [0.7]} for label in ("uniform", "tapered")}
    frame = Main().table(case("main", "zero_shot", values, "1.3b"))
    sheet = Main().sheet(frame)
    paper = sheet.text[sheet.text["Source"] == "paper"].iloc[0]
    assert paper["WikiText ppl ↓"] == "17.39"
    assert paper["PIQA % ↑"] == NOT_PUBLISHED
    ours = sheet.text[sheet.text["Source"] == "ours"].iloc[0]
    assert ours["PIQA % ↑"] == "70.0 ± 1.0"
    assert ours["BoolQ % ↑"] == "not run"


HEADINGS = {benchmark.column: benchmark.heading for benchmark in PAPER_COLUMNS}


def test_shades_follow_the_sign_and_the_interval():
    values = {
        ("transformer", "uniform"): {"lambada_ppl": [20.0], "wikitext_ppl": [20.0], "piqa": [0.7], "boolq": [0.5]},
        ("transformer", "tapered"): {"lambada_ppl": [19.0], "wikitext_ppl": [21.0], "piqa": [0.71], "boolq": [0.49]},
    }
    sheet = Main().sheet(Main().table(case("main", "zero_shot", values, "toy")))
    tapered = sheet.tones[sheet.text["Allocation"] == "tapered"].iloc[0]
    shades = [tapered[HEADINGS[metric]] for metric in ("lambada_ppl", "wikitext_ppl", "piqa", "boolq")]
    assert shades == ["better", "worse", "better-unclear", "worse-unclear"]
    assert not sheet.tones[sheet.text["Allocation"] == "uniform"].any(axis=None)
    text = formats.latex(sheet)
    assert [text.count(f"\\cellcolor{{{shade}}}") for shade in shades] == [1, 1, 1, 1]
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == 1
    assert r"\usepackage{booktabs}" in text
    assert "±" not in text
    assert "−" not in text
    assert re.search(r"Transformer & toy & all rows & paper & n/p", text)


def test_csv_keeps_full_precision_and_names_what_is_missing():
    frame = sweep_frame("demo")
    back = pd.read_csv(io.StringIO(formats.csv(frame)), dtype={"published_val_ppl": str}).set_index("allocation")
    assert back.loc["cosine-1.5-0.5", "val_ppl"] == frame.loc["cosine-1.5-0.5", "val_ppl"]
    assert back.loc["cosine-1.9-0.1", "published_val_ppl"] == NOT_PUBLISHED
    assert back.loc["uniform", "published_val_ppl"] == "16.28"
    wanted = "allocation,start,end,schedule,architecture,scale,seeds,val_loss,val_loss_se,val_ppl,val_ppl_se,"
    assert set((wanted + "published_val_ppl,published_val_loss").split(",")) <= {"allocation", *back.columns}


def test_files_are_written_together_and_markdown_is_aligned(tmp_path):
    paths = formats.write(sweep_frame(), Sweep().sheet(sweep_frame()), tmp_path / "tables/sweep")
    assert sorted(path.name for path in paths) == sorted(path.name for path in (tmp_path / "tables").iterdir())
    rows = [line for line in paths[1].read_text().splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 3
    assert len({len(row) for row in rows}) == 1
    assert "2.7200 ± 0.0200" in rows[3]


def test_novelty_table():
    profile = [{"mean": mean, "stderr": 0.01} for mean in (0.9, 0.1, 0.2, 0.3, 0.9)]
    found = record_files.novelty(
        {
            "schema": 1,
            "kind": "novelty",
            "model": {"name": "tiny", "run": None, "layers": 5, "parameters": 7},
            "tokens": 64,
            "block": profile,
            "mlp": profile,
            "correlation": {"block": {"r": 1.0, "layers": 3}, "mlp": {"r": None, "layers": 0}},
        }
    )
    row = LayerNovelty().table(Evidence(results.frames([], []), {}, [found])).iloc[0]
    assert (row["model"], row["r_block"], row["layers_block"], row["tokens"]) == ("tiny", 1.0, 3, 64)
    assert row["r_block_se"] == pytest.approx(0.0, abs=1e-9)  # a straight line: r is at its maximum, its gradient zero
    assert math.isnan(row["r_mlp"])
    assert (
        LayerNovelty().sheet(LayerNovelty().table(Evidence(results.frames([], []), {}, [found]))).text.loc[0, "r MLP"]
        == "undefined"
    )


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [(5.8352, 0.0076, "5.84 ± 0.01"), (-0.5, math.nan, "−0.50"), (137_700_297.66, 1.09e8, "1.38e+08 ± 1.09e+08")],
)
def test_numbers_are_as_long_as_people_read_them(value, error, text):
    assert sheets.number(value, error) == text
