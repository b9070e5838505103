"""Other allocations side by side: differences, widths and counts by hand, and what the figure draws of them."""

import io
import itertools
import json
import math

import pandas as pd
import pytest
from exhibits import evidence, numbers
from matplotlib.container import ErrorbarContainer

from tlm_repro.allocation.curves import CURVES
from tlm_repro.errors import ArtifactError
from tlm_repro.records.view import ExperimentView
from tlm_repro.reporting import formats, style
from tlm_repro.reporting.claims import rules
from tlm_repro.reporting.claims.verdicts import Outcome
from tlm_repro.reporting.exhibits.allocations import Allocations
from tlm_repro.reporting.results import frames

WIDTHS = {
    "uniform": ("uniform", (64, 64, 64, 64)),
    "crown": ("crown", (32, 96, 96, 32)),
    "middle-70": ("middle", (0, 128, 128, 0)),
    "steep": ("vanilla-reversed-start3", (112, 80, 48, 16)),
}
# One loss a seed, the seed's own part alike in all: the paired differences are −0.05 ± 0, 0.02 ± 0.01 and 0.1, −0.1.
LOSSES = {"uniform": (3.0, 3.4), "crown": (2.95, 3.35), "middle-70": (3.01, 3.43), "steep": (3.1, 3.3)}


def case(toy: bool = True, seeds: int = 2):
    rows, cells, models = [], [], []
    for (label, (allocation, widths)), seed in itertools.product(WIDTHS.items(), range(seeds)):
        run = f"{label}-{seed}"
        labels = {"architecture": "transformer", "scale": "440m", "allocation": allocation, "seed": seed, "run": run}
        cells.append({**labels, **numbers(allocation), "label": label, "width": 64, "layers": 4})
        measured = {"metric": "val_loss", "value": LOSSES[label][seed], "stderr": 0.03, "items": 9}
        rows.append({**labels, **measured, "suite": "validation"})
        parameters = 1000 - 8 * widths.count(0)
        facts = {
            "run": run,
            "parameters": parameters,
            "forward_flops": 5,
            "training_flops": 7,
            "tokens": 1,
            "layers": 4,
        }
        models.append({**facts, "model_width": 8, "intermediate_sizes": widths})
    return frames(rows, models), ExperimentView(experiment="allocations", toy=toy, config="test", cells=cells)


def frame(**options) -> pd.DataFrame:
    return Allocations().table(evidence(*case(**options))).set_index("label", drop=False)


def test_rows_by_hand_in_the_order_of_the_configuration() -> None:
    rows = frame()
    assert list(rows["label"]) == ["uniform", "crown", "middle-70", "steep"]
    assert math.isnan(rows.loc["uniform", "difference"])
    assert rows.loc["crown", "difference"] == pytest.approx(-0.05)
    assert rows.loc["crown", "difference_interval"] == pytest.approx(0, abs=1e-9)
    assert rows.loc["middle-70", "difference"] == pytest.approx(0.02)
    assert rows.loc["middle-70", "difference_interval"] == pytest.approx(12.7062 * 0.01, rel=1e-4)  # t(0.975, 1)
    assert rows.loc["middle-70", ["layers_without_mlp", "parameters_less_uniform", "flops_less_uniform"]].tolist() == [
        2,
        -16,
        0,
    ]
    assert rows.loc["steep", ["width", "widths"]].tolist() == [64, [112, 80, 48, 16]]


def test_the_source_is_that_of_the_allocation_s_curve() -> None:
    names = {"crown": "crown", "middle-70": "middle", "steep": "vanilla-reversed", "uniform": "uniform"}
    rows = frame()
    for label, name in names.items():
        assert (rows.loc[label, "shape"], rows.loc[label, "source"]) == (CURVES[name].title, CURVES[name].source)


def test_every_label_that_a_run_can_have_gives_its_curve() -> None:
    labels = ("v-shape-bottleneck0.5", "vanilla-reversed", "vanilla-end3", "middle", "cosine-1.5-0.5")
    curves = [numbers(label)["curve"] for label in labels]
    assert curves == ["v-shape", "vanilla-reversed", "vanilla", "middle", "cosine"]


def test_a_run_without_its_evaluation_is_named() -> None:
    found, view = case()
    lacking = frames(found.metrics.query("run != 'crown-1'").to_dict("records"), [])
    with pytest.raises(ArtifactError, match="run crown-1 has no validation evaluation"):
        Allocations().table(evidence(lacking, view))


def test_the_sheet_says_what_a_layer_without_an_mlp_leaves_out() -> None:
    sheet = Allocations().sheet(frame())
    text = sheet.text.set_index("Allocation")
    assert text.loc["middle-70", "Parameters − uniform"] == "−16"
    assert text.loc["crown", "Parameters − uniform"] == "0"
    assert text.loc["steep", "First, last (÷ D)"] == "1.75, 0.25"
    assert text.loc["crown", "Narrowest, widest (÷ D)"] == "0.50, 1.50"
    assert text.loc["uniform", "Loss − uniform (nats)"] == ""
    assert list(sheet.tones["Loss (nats/token)"]) == ["", "better", "worse-unclear", ""]
    assert "Toy scale" in sheet.caption
    assert r"$\div$" in formats.latex(sheet)


def test_the_csv_has_every_width_as_json() -> None:
    back = pd.read_csv(io.StringIO(formats.csv(frame())))
    assert [json.loads(text) for text in back["widths"]] == [list(sizes) for _, sizes in WIDTHS.values()]


def test_the_figure_draws_exact_widths_and_the_intervals() -> None:
    figure = Allocations().figure(evidence(*case()))
    sketch, forest = figure.axes[:2]
    assert [label.get_text() for label in sketch.get_yticklabels()] == list(WIDTHS)
    heights = [bar.get_height() for bar in sketch.patches]
    assert heights == pytest.approx([0.8 * size / 128 for _, sizes in WIDTHS.values() for size in sizes])
    crosses = [line for line in sketch.lines if line.get_marker() == "x"]
    assert [list(line.get_xdata()) for line in crosses] == [[], [], [0, 3], []]
    drawn = [series for series in forest.containers if isinstance(series, ErrorbarContainer)]
    assert [float(series[0].get_xdata()[0]) for series in drawn] == pytest.approx([-0.05, 0.02, 0.0])
    bars = [segments[0][:, 0] for series in drawn for segments in [series[2][0].get_segments()]]
    assert [high - low for low, high in bars] == pytest.approx([0, 2 * 0.127062, 2 * 1.27062], abs=1e-4)
    beside = [label.get_text() for label in forest.child_axes[0].get_yticklabels()]
    assert beside[:3] == ["3.200 nats", "−0.050 ± 0.000", "+0.020 ± 0.127"]


def test_toy_runs_are_stamped_and_others_are_not() -> None:
    for toy in (True, False):
        figure = Allocations().figure(evidence(*case(toy=toy)))
        stamp = figure._supxlabel
        assert (stamp is not None and stamp.get_text() == style.TOY_STAMP) == toy


def test_other_papers_allocations_have_no_part_in_claim_10() -> None:
    """A layer without an MLP has no norm either: that is theirs, not the paper's."""
    found, view = case()
    outcome: Outcome = rules.equal_budgets(evidence(found, view))
    assert outcome.verdict == "not run"
