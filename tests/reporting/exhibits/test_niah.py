"""Table 3 and the needles by depth, from files as the evaluation writes them."""

import json
import re

import pytest
from scipy import stats
from typer.testing import CliRunner

from tlm_repro.errors import ArtifactError
from tlm_repro.records.view import View
from tlm_repro.reporting import commands, formats, sheets
from tlm_repro.reporting.evidence import Evidence
from tlm_repro.reporting.exhibits import niah
from tlm_repro.reporting.exhibits.niah import HeatMaps, Niah
from tlm_repro.reporting.published import NOT_PUBLISHED

SCORES = {
    "niah_multiquery_8192": (0.1, 0.1),
    "niah_single_1_8192": (0.3, 0.9),
    "niah_single_1_4096": (0.9, 0.3),
    "niah_single_3_3000": (0.5, 0.6),
}


def frame(written, **changes):
    paths, view = written
    return Niah().table(Evidence.load(loaded(paths, view | changes)))


def loaded(paths, view):
    """The view of these files, with one experiment."""
    common = {"kind": "view", "config": view["config"], "toy": view["toy"]}
    return View.model_validate({**common, "experiments": [view], "files": paths})


def wilson(successes, samples):
    interval = stats.binomtest(successes, samples).proportion_ci(method="wilson")
    return pytest.approx((100 * interval.low, 100 * interval.high))


def test_metrics_are_found_and_stand_in_the_papers_order():
    names = ["piqa", "val_loss", *SCORES, "niah_single_2_16384", "niah_new_1"]
    assert [item.name for item in niah.metrics(names)] == [
        "niah_single_1_4096",
        "niah_single_1_8192",
        "niah_single_2_16384",
        "niah_single_3_3000",
        "niah_multiquery_8192",
        "niah_new_1",
    ]


def test_levels_and_differences_by_hand(needle_files):
    table = frame(needle_files(SCORES)).set_index(["label", "quantity"])
    assert list(table.index) == [("uniform", "level"), ("tapered", "level"), ("tapered", "difference")]
    name = "niah_single_1_8192"
    uniform, change = table.loc[("uniform", "level")], table.loc[("tapered", "difference")]
    assert (uniform[name], uniform[f"{name}_items"], uniform["training_length"]) == (pytest.approx(30.0), 30, 4096)
    assert (uniform[f"{name}_low"], uniform[f"{name}_high"]) == wilson(9, 30)
    assert change[name] == pytest.approx(60.0)
    # Newcombe: 0.6 − √((0.9 − l₁)² + (u₂ − 0.3)²), with Wilson's l₁, u₂ of 27 and 9 in 30
    one, two = (stats.binomtest(count, 30).proportion_ci(method="wilson") for count in (27, 9))
    assert change[f"{name}_low"] == pytest.approx(60 - 100 * ((0.9 - one.low) ** 2 + (two.high - 0.3) ** 2) ** 0.5)
    assert change[f"{name}_high"] == pytest.approx(60 + 100 * ((one.high - 0.9) ** 2 + (0.3 - two.low) ** 2) ** 0.5)


def test_seeds_are_averaged_and_the_difference_is_over_them(needle_files):
    table = frame(needle_files(SCORES, seeds=(0, 1))).set_index("quantity")
    assert list(table["seeds"]) == [2, 2, 2]
    change = table.loc["difference"]
    assert change["basis"] == "seeds"
    assert (change["niah_single_1_8192_low"], change["niah_single_1_8192_high"]) == pytest.approx((60.0, 60.0))


def test_the_sheet_says_what_people_need(needle_files):
    sheet = Niah().sheet(frame(needle_files(SCORES)))
    text = sheet.text.set_index("Allocation")
    assert list(sheet.text.columns[4:]) == ["S-NIAH-1 4K", "S-NIAH-1 8K †", "S-NIAH-3 3,000", "MQ-NIAH 8K †"]
    low, high = (100 * bound for bound in stats.binomtest(9, 30).proportion_ci(method="wilson"))
    assert text.loc["uniform", "S-NIAH-1 8K †"] == f"30.0 [{low:.1f}, {high:.1f}]"
    assert re.fullmatch(r"−60\.0 \[−\d+\.\d, −\d+\.\d\]", text.loc["tapered − uniform", "S-NIAH-1 4K"])
    assert set(text.loc["all", "S-NIAH-1 4K":]) == {NOT_PUBLISHED}
    tones = sheet.tones[sheet.text["Allocation"] == "tapered"].iloc[0]
    assert list(tones[4:]) == ["worse", "better", "better-unclear", ""]
    assert "† longer than the training length of 4,096 tokens." in sheet.caption
    assert "Toy" not in sheet.caption
    assert "RoPE" not in sheet.caption


def test_the_caption_names_toy_scale_rope_scaling_and_foreign_prompts(needle_files):
    table = frame(needle_files(SCORES, scale="760m-toy", rope="yarn", generator="lm_eval"), sequence_length=None)
    caption = Niah().sheet(table).caption
    assert sheets.TOY in caption
    assert "RoPE scaling: yarn." in caption
    assert "lm-eval's own" in caption
    assert "†" not in caption


def test_three_files_are_written(needle_files, tmp_path):
    table = frame(needle_files(SCORES))
    csv, markdown, latex = formats.write(table, Niah().sheet(table), tmp_path / "tables/niah")
    assert csv.read_text().count(NOT_PUBLISHED) == 3 * len(SCORES)
    assert len({len(line) for line in markdown.read_text().splitlines() if line.startswith("|")}) == 1
    text = latex.read_text()
    assert r"\cellcolor{better} \shortstack{90.0\\{}[" in text
    assert "n/p" in text
    assert not {"†", "−", "±", NOT_PUBLISHED} & set(re.findall(f"†|−|±|& {NOT_PUBLISHED}", text))


def test_a_run_without_its_evaluation_is_named(needle_files):
    paths, view = needle_files(SCORES)
    uniform_alone = Evidence.load(loaded(paths[: len(SCORES)], view))
    with pytest.raises(ArtifactError, match=r"run transformer_1\.3b_cosine-1\.5-0\.5_s0-\w+ has no niah evaluation"):
        Niah().table(uniform_alone)
    with pytest.raises(ArtifactError, match=r"no file holds the needles of run transformer_1\.3b_cosine"):
        niah.by_depth(uniform_alone.needles, uniform_alone.views["main"])


def test_a_file_whose_needles_are_malformed_is_named(needle_files):
    paths, view = needle_files(
        {"niah_single_1_4096": (0.5, 0.5)},
        details={"needles": {"niah_single_1_4096": [{"depth": 2, "found": 1, "needed": 1}]}},
    )
    with pytest.raises(ArtifactError, match=r"niah-\w+\.json: details\.needles\.niah_single_1_4096\.0\.depth: 2\."):
        Evidence.load(loaded(paths, view))


def test_needles_are_added_up_over_seeds(needle_files):
    paths, view = needle_files(SCORES, seeds=(0, 1, 2))
    found = Evidence.load(loaded(paths, view))
    table = niah.by_depth(found.needles, found.views["main"])
    assert table["label"].iloc[0] == "uniform"
    row = table.set_index(["label", "task", "length", "depth"]).loc[("tapered", "single_1", 8192, 0.5)]
    assert (row["seeds"], row["found"], row["needed"]) == (3, 27, 30)


GAINS = {
    "gains in low cells": ({"niah_single_1_4096": (0.9, 0.9), "niah_single_1_16384": (0.1, 0.5)}, "reproduced"),
    "losses": ({"niah_single_1_4096": (0.9, 0.9), "niah_single_1_16384": (0.5, 0.1)}, "not reproduced"),
    "gains in high cells alone": (
        {"niah_single_1_4096": (0.5, 0.9), "niah_single_1_16384": (0.1, 0.1)},
        "not reproduced",
    ),
    "noise": ({"niah_single_1_4096": (0.9, 0.91), "niah_single_1_16384": (0.1, 0.12)}, "inconclusive"),
    "all alike": ({"niah_single_1_4096": (0.0, 0.0), "niah_single_1_16384": (0.0, 0.0)}, "inconclusive"),
    "all alike, and worse": ({"niah_single_1_4096": (0.5, 0.1)}, "not reproduced"),
    "mostly nothing found": (
        {"niah_single_1_4096": (0.9, 0.9)} | {f"niah_single_1_{n}000": (0.0, 0.0) for n in range(2, 7)},
        "inconclusive",
    ),
    "nothing": ({}, "not run"),
}


@pytest.mark.parametrize("case", GAINS)
def test_claim_8_from_the_files(needle_files, view_file, case):
    scores, expected = GAINS[case]
    view = view_file(*needle_files(scores, samples=300))
    done = CliRunner().invoke(commands.app, ["claims", "--json", "--view", view])
    claim = json.loads(done.stdout)["claims"][7]
    assert (claim["number"], claim["verdict"]) == (8, expected), claim["reason"]
    if case == "gains in low cells":
        assert claim["ours"] == "mean gain +40.0 points in the 1 low cells, +0.0 in the 1 others"


def test_commands_write_the_table_the_figure_and_the_report(needle_files, view_file, tmp_path):
    paths, view = needle_files(SCORES, scale="1.3b", suites=("niah", "zero_shot"))
    needles, runner = [path for path in paths if "niah" in path.name], CliRunner()
    figure = tmp_path / "figures/niah-transformer-1.3b.svg"
    heat_map = (HeatMaps, {"architecture": "transformer", "scale": "1.3b"})
    for command, exhibit, out in (("table", (Niah, {}), tmp_path / "tables/niah.csv"), ("figure", heat_map, figure)):
        done = runner.invoke(commands.app, [command, "--view", view_file(needles, view, exhibit), "--out", str(out)])
        assert done.exit_code == 0, done.output
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == ["niah.csv", "niah.md", "niah.tex"]
    assert sorted(path.suffix for path in figure.parent.iterdir()) == [".pdf", ".png", ".svg"]
    options = [
        "--view",
        view_file(paths, view, (Niah, {}), heat_map),
        "--figure",
        str(figure),
        "--out",
        str(tmp_path / "report.html"),
    ]
    done = runner.invoke(commands.app, ["report", *options])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "report.html").read_text()
    assert "Table 3: needle-in-a-haystack." in page
    assert ">Needle-in-a-haystack, transformer-1.3b: the share of the needles found," in page
    assert '<a href="tables/niah.csv">' in page
    assert '<a href="figures/niah-transformer-1.3b.pdf">' in page
    assert r"#niah-transformer-1\.3b *" in page


def test_a_report_without_needles_has_no_table_3(needle_files, view_file, tmp_path):
    options = ["--view", view_file(*needle_files({}, suites=("zero_shot",)))]
    figure = tmp_path / "one.svg"
    figure.write_text('<svg xmlns="http://www.w3.org/2000/svg"/>')
    options += ["--figure", str(figure), "--out", str(tmp_path / "report.html")]
    done = CliRunner().invoke(commands.app, ["report", *options])
    assert done.exit_code == 0, done.output
    assert "Table 3" not in (tmp_path / "report.html").read_text()
