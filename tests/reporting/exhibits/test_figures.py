"""Figures show the numbers given, say what is toy scale, keep labels apart and are the same bytes each time."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import record_files
from exhibits import evidence, numbers
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from tlm_repro.allocation.widths import layer_widths
from tlm_repro.records.evaluation import TrainingCurve
from tlm_repro.records.novelty import Novelty
from tlm_repro.records.view import ExperimentView, Shapes
from tlm_repro.reporting import registry, style
from tlm_repro.reporting.evidence import Evidence
from tlm_repro.reporting.exhibits import allocation as figure_3
from tlm_repro.reporting.exhibits import allocations, niah
from tlm_repro.reporting.exhibits.curves import Curves
from tlm_repro.reporting.exhibits.motivation import Motivation
from tlm_repro.reporting.exhibits.novelty import LayerNovelty
from tlm_repro.reporting.exhibits.novelty_pairs import NoveltyPairs
from tlm_repro.reporting.exhibits.scaling import Scaling
from tlm_repro.reporting.exhibits.sweep import Sweep
from tlm_repro.reporting.results import frames

THIRDS = {
    "uniform": ("uniform", 4.21),
    "wider-early": ("thirds-1.5-1.0-0.5", 4.19),
    "wider-middle": ("thirds-0.75-1.5-0.75", 4.22),
    "wider-late": ("thirds-0.5-1.0-1.5", 4.30),
}
SWEEP = {
    "uniform": ("uniform", 4.2),
    "cosine-1.5-0.5": ("cosine-1.5-0.5", 4.1),
    "cosine-1.25-0.75": ("cosine-1.25-0.75", 4.15),
    "sigmoid-1.5-0.5-k8": ("sigmoid-1.5-0.5-k8", 4.3),
}


def trained(experiment: str, losses: dict[str, tuple[str, float]], *, toy: bool = True, seeds: int = 1) -> Evidence:
    """Runs with these losses; seed s adds s/100 nats."""
    cells, rows = [], []
    for (label, (allocation, loss)), seed in itertools.product(losses.items(), range(seeds)):
        labels = {"architecture": "gated_attention", "scale": "440m", "allocation": allocation, "seed": seed}
        run = {"label": label, "run": f"{allocation}-{seed}", "width": 256, "layers": 6}
        cells.append({**labels, **numbers(allocation), **run})
        measured = {"metric": "val_loss", "value": loss + seed / 100, "stderr": 0.02, "items": 9}
        rows.append({**labels, **measured, "run": f"{allocation}-{seed}", "suite": "validation"})
    view = ExperimentView.model_validate({"experiment": experiment, "toy": toy, "config": "demo", "cells": cells})
    return evidence(frames(rows, []), view)


def measured(name: str, block: Sequence[float], mlp: Sequence[float | None], run: dict | None = None) -> Novelty:
    def entries(values: Sequence[float | None]) -> list:
        return [None if value is None else {"mean": value, "stderr": 0.01} for value in values]

    return record_files.novelty(
        {
            "schema": 1,
            "kind": "novelty",
            "model": {"name": name, "run": run, "layers": len(block), "parameters": 1},
            "tokens": 64,
            "block": entries(block),
            "mlp": entries(mlp),
            "correlation": {"block": {"r": 0.25, "layers": 2}, "mlp": {"r": None, "layers": 2}},
        }
    )


def run_labels(seed: int, allocation: str = "uniform") -> dict:
    return {"id": str(seed), "architecture": "transformer", "scale": "tiny", "allocation": allocation, "seed": seed}


PRETRAINED = measured("GPT-2", [0.1, 0.2, 0.3, 0.4], [0.0, 0.1, -0.1, 0.2])
RUNS = [
    measured("run-0", [0.1, 0.2, 0.3, 0.4], [0.0, None, 0.1, 0.2], run_labels(0)),
    measured("run-1", [0.3, 0.2, 0.5, 0.4], [0.0, None, 0.3, 0.2], run_labels(1)),
    measured("run-2", [0.0, 0.0, 0.1, 0.1], [0.0, 0.0, 0.0, 0.0], run_labels(0, "cosine-1.5-0.5")),
]
TAPERED = measured("run-3", [0.1, 0.2, 0.3, 0.4], [0.0, 0.1, 0.1, 0.2], run_labels(1, "cosine-1.5-0.5"))
DRAWN = {
    "motivation": lambda: Motivation().figure(trained("motivation", THIRDS)),
    "motivation of three seeds": lambda: Motivation().figure(trained("motivation", THIRDS, seeds=3)),
    "sweep": lambda: Sweep().figure(trained("sweep", SWEEP)),
    "allocation": lambda: widths(24, 3840, {"thirds-1.5-1.0-0.5": [5760] * 8 + [3840] * 8 + [1920] * 8}),
    "allocation of few layers": lambda: widths(6, 256),
    "allocations": lambda: allocations.draw(side_by_side()),
    "novelty-pairs": lambda: NoveltyPairs().figure(read([*RUNS, TAPERED], toy=True)),
    "curves": lambda: Curves().figure(with_curves()),
    "scaling": lambda: Scaling().figure(swept()),
    "novelty": lambda: LayerNovelty().figure(read([PRETRAINED, *RUNS], toy=True)),
    "niah-{architecture}-{scale}": lambda: niah.draw(needles([4096, 8192, 16384], 40), training=4096, toy=True),
    "heat maps of many lengths": lambda: niah.draw(needles([2**n for n in range(9, 17)], 5), training=1, toy=True),
    "heat map of one length": lambda: niah.draw(needles([512], 2), training=128, toy=True),
}


def test_every_figure_is_tried() -> None:
    assert {exhibit.name for exhibit in registry.builtin() if exhibit.has_figure} <= set(DRAWN)


def read(novelty: Sequence[Novelty], *, toy: bool) -> Evidence:
    return Evidence(frames([], []), {}, novelty, toy=toy)


def widths(layers: int, width: int, trained: dict[str, list[int]] | None = None) -> Figure:
    curves = {name: numbers(name)["curve"] for name in trained or {}}
    return figure_3.draw(Shapes(layers=layers, width=width, widths=trained or {}, curves=curves))


def needles(lengths: Sequence[int], depths: int) -> pd.DataFrame:
    """Needles by depth of a uniform and a tapered model; one depth of the longest texts has none."""
    places = itertools.product(("uniform", "tapered"), ("single_1", "single_3", "multiquery"), lengths, range(depths))
    return pd.DataFrame(
        {"architecture": "gated_attention", "scale": "1.3b", "label": label, "task": task, "length": length}
        | {"depth": place / (depths - 1), "seeds": 3, "found": place, "needed": 500}
        for label, task, length, place in places
        if (length, place) != (lengths[-1], 0)
    )


def side_by_side() -> pd.DataFrame:
    """Eleven allocations of 24 layers, as `allocations.table` gives them, as far as the figure reads it."""
    names = ("uniform", "cosine", "vanilla-reversed", "v-shape", "middle", "crown", "framed", "delight", "openelm")
    return pd.DataFrame(
        {"label": name, "architecture": "transformer", "scale": "440m", "seeds": 1, "basis": "evaluation", "toy": True}
        | {"val_loss": 2.8, "width": 3712, "widths": layer_widths(name, 24, 3712)}
        | {"difference": place / 50 - 0.06 if place else math.nan, "difference_interval": 0.05}
        for place, name in enumerate(names)
    )


def with_curves() -> Evidence:
    """Five pairs of two runs with training curves of a paper-sized run."""
    cells, models, found = [], [], {}
    for scale, label in itertools.product(("1.3b", "760m", "440m", "340m", "170m"), ("uniform", "tapered")):
        run = f"{scale} {label}"
        labels = {"architecture": "gated_attention", "scale": scale, "seed": 0, "run": run, "width": 64, "layers": 4}
        cells.append({**labels, "label": label, "allocation": "uniform"})
        models.append({"run": run, "parameters": 9, "training_flops": 8e20, "tokens": 100_000_000_000})
        tokens = [1_000_000_000 * (place + 1) for place in range(100)]
        losses = [2 + 8 / (place + 1) for place in range(100)]
        curve = {"step": tokens, "tokens": tokens, "loss": losses, "validation": {"tokens": [], "loss": []}}
        found[run] = TrainingCurve.model_validate(curve)
    view = ExperimentView.model_validate({"experiment": "main", "toy": True, "config": "demo", "cells": cells})
    return evidence(replace(frames([], models), curves=found), view)


def swept() -> Evidence:
    """Two schedules at five ratios, and pairs of the paper's two sizes."""
    rows, models, cells = [], [], {"sweep": [], "main": []}
    sweeps = [
        f"{name}-{start}-{2 - start}" for name in ("cosine", "linear") for start in (1.25, 1.375, 1.5, 1.625, 1.75)
    ]
    wanted = [("sweep", "440m", "transformer", label) for label in ("uniform", *sweeps)]
    pairs = itertools.product(("760m", "1.3b"), ("transformer", "titans"), ("uniform", "cosine-1.5-0.5"))
    for place, (name, scale, arch, label) in enumerate([*wanted, *(("main", *pair) for pair in pairs)]):
        labels = {"architecture": arch, "scale": scale, "allocation": label, "seed": 0, "run": f"{name} {place}"}
        cells[name].append({**labels, **numbers(label), "label": label, "width": 64, "layers": 4})
        measured = {"metric": "val_loss", "value": 2.8 - 0.01 * (place % 6), "stderr": 0.002, "items": 9}
        rows.append({**labels, **measured, "suite": "validation"})
        models.append({"run": f"{name} {place}", "parameters": 763_000_000 if scale == "760m" else 1_297_000_000})
    views = [
        ExperimentView.model_validate({"experiment": name, "toy": True, "config": "demo", "cells": found})
        for name, found in cells.items()
    ]
    return evidence(frames(rows, models), *views)


def texts(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(match=lambda artist: hasattr(artist, "get_text")))


def points(axes: Axes) -> list[tuple[str, list[float], list[float], list[float]]]:
    """(label, x, y, half length of the error bar) of every series with error bars."""
    found = []
    for series in axes.containers:
        if isinstance(series, ErrorbarContainer):
            bars = [segment[1][1] - segment[0][1] for segment in series[2][0].get_segments()] if series[2] else []
            data = series[0]
            x, y = list(data.get_xdata()), list(data.get_ydata())
            found.append((series.get_label(), x, y, [bar / 2 for bar in bars]))
    return found


def test_motivation_shows_ours_and_the_papers_losses() -> None:
    figure = Motivation().figure(trained("motivation", THIRDS))
    sketch, _, ours, paper = figure.axes[:4]
    assert [y for _, _, (y,), _ in points(ours)] == pytest.approx([4.21, 4.19, 4.22, 4.30])
    assert [error for *_, (error,) in points(ours)] == pytest.approx([0.02] * 4)
    printed = [16.28, 15.96, 16.61, 17.29]
    assert [y for _, _, (y,), _ in points(paper)] == pytest.approx([round(math.log(value), 2) for value in printed])
    heights = [bar.get_height() for bar in sketch.patches]
    assert heights == pytest.approx([1, 1, 1, 1.5, 1, 0.5, 0.75, 1.5, 0.75, 0.5, 1, 1.5])
    assert "Ours, 440m Gated Attention\n(1 seed, error over tokens)" in texts(figure)


def test_motivation_over_seeds_has_their_mean_and_standard_error() -> None:
    ours = Motivation().figure(trained("motivation", THIRDS, seeds=3)).axes[2]
    _, _, (first,), (error,) = points(ours)[0]
    assert first == pytest.approx(4.21 + 0.01)
    assert error == pytest.approx(np.std([0.00, 0.01, 0.02], ddof=1) / math.sqrt(3))


def test_the_right_axis_reads_losses_as_perplexities() -> None:
    figure = Motivation().figure(trained("motivation", THIRDS))
    figure.canvas.draw()
    ours = figure.axes[2]
    low, high = ours.child_axes[0].get_ylim()
    assert (math.log(low), math.log(high)) == pytest.approx(ours.get_ylim())


def test_sweep_has_a_line_for_each_schedule_and_a_level_for_uniform() -> None:
    ours, paper = Sweep().figure(trained("sweep", SWEEP)).axes[:2]
    series = {label: (x, y) for label, x, y, _ in points(ours)}
    assert series["cosine"][1] == pytest.approx([4.15, 4.1])
    assert series["cosine"][0] == pytest.approx([1.25, 1.5], abs=0.02)
    assert series["sigmoid k8"][1] == pytest.approx([4.3])
    level = next(line for line in ours.lines if line.get_label() == "uniform")
    assert list(level.get_ydata()) == pytest.approx([4.2, 4.2])
    printed = {label: y for label, _, y, _ in points(paper)}
    cosines = [15.18, 14.59, 14.44, 14.59, 15.49]  # Table 1
    assert printed["cosine"] == pytest.approx(np.log(cosines), abs=0.005)
    assert list(printed) == ["cosine", "linear", "sigmoid"]


def test_allocation_lines_keep_the_budget_and_the_runs_widths() -> None:
    run = [400, 368, 336, 304, 272, 240]
    figure = widths(6, 256, {"cosine-1.5-0.5": run, "crown": [128, 256, 384, 384, 256, 128]})
    schedules, ratios, others = figure.axes[:3]
    lines = {line.get_label(): list(line.get_ydata()) for line in schedules.lines}
    assert lines["cosine"] == run
    assert sum(lines["linear"]) == sum(lines["sigmoid"]) == sum(lines["uniform"]) == 6 * 256
    assert [line.get_ydata()[0] for line in ratios.lines][1:3] == [320, 352]  # 1.25 and 1.375 times 256
    assert [line.get_label() for line in others.lines] == ["uniform", "crown"]
    for axes in figure.axes[:3]:
        assert axes.get_ylim()[1] > max(max(line.get_ydata()) for line in axes.lines)


def test_novelty_keeps_pretrained_models_and_runs_apart() -> None:
    figure = LayerNovelty().figure(read([PRETRAINED, *RUNS], toy=True))
    pretrained_mlp, pretrained_block, run_mlp, run_block = figure.axes
    whole = {axes: [line for line in axes.lines if line.get_alpha() == 0.3] for axes in figure.axes}
    assert list(whole[pretrained_mlp][0].get_ydata()) == [0.0, 0.1, -0.1, 0.2]
    assert list(whole[pretrained_block][0].get_xdata()) == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert len(whole[run_block]) == 2  # two allocations; seeds are averaged
    assert list(whole[run_block][0].get_ydata()) == pytest.approx([0.2, 0.2, 0.4, 0.4])
    assert np.isnan(whole[run_mlp][0].get_ydata()[1])
    text = texts(figure)
    assert "GPT-2\nr($\\rho_{\\mathrm{MLP}}$) = undefined, r($\\rho_{\\mathrm{block}}$) = +0.25" in text
    assert "Transformer tiny, uniform (2 seeds)" in text


def test_only_toy_results_are_stamped() -> None:
    for toy in (True, False):
        stamped = [
            Motivation().figure(trained("motivation", THIRDS, toy=toy)),
            Sweep().figure(trained("sweep", SWEEP, toy=toy)),
            LayerNovelty().figure(read([PRETRAINED, *RUNS], toy=toy)),
        ]
        assert [style.TOY_STAMP in texts(figure) for figure in stamped] == [toy] * 3
    assert style.TOY_STAMP not in texts(LayerNovelty().figure(read([PRETRAINED], toy=True)))


@pytest.mark.parametrize("name", DRAWN)
def test_no_label_overlaps_another(name: str) -> None:
    figure = DRAWN[name]()
    with style.theme():
        figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    labels = []
    for axes in [*figure.axes, *itertools.chain(*(parent.child_axes for parent in figure.axes))]:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
            labels += [label for tick in ticks for label in (tick.label1, tick.label2)]
            labels.append(axis.label)
        labels += [axes.title, *axes.texts, *(axes.get_legend().get_texts() if axes.get_legend() else [])]
    labels += [text for legend in figure.legends for text in legend.get_texts()]
    drawn = [label for label in labels if label.get_visible() and label.get_text()]
    boxes = [(label.get_text(), label.get_window_extent(renderer)) for label in drawn]
    page = figure.bbox
    for text, box in boxes:
        assert page.contains(*box.min), f"{text!r} is cut off"
        assert page.contains(*box.max), f"{text!r} is cut off"
    for (first, box), (second, other) in itertools.combinations(boxes, 2):
        assert not box.overlaps(other), f"{first!r} overlaps {second!r}"


def test_equal_data_give_equal_bytes(tmp_path: Path) -> None:
    first, second = (style.save(DRAWN["sweep"](), tmp_path / folder / "1.3b") for folder in ("a", "b"))
    assert [path.name for path in first] == ["1.3b.png", "1.3b.pdf", "1.3b.svg"]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    heads = [path.read_bytes()[:5] for path in first[:2]]
    assert heads == [b"\x89PNG\r", b"%PDF-"]
    assert ElementTree.parse(first[2]).getroot().tag.endswith("svg")
    assert sorted((tmp_path / "a").iterdir()) == sorted(first)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = widths(6, 256)
    (tmp_path / "allocation.png").write_text("old")
    monkeypatch.setattr(figure, "savefig", lambda *_, **__: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        style.save(figure, tmp_path / "allocation")
    assert [path.name for path in tmp_path.iterdir()] == ["allocation.png"]
    assert (tmp_path / "allocation.png").read_text() == "old"


def test_drawing_changes_no_global_setting() -> None:
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    widths(6, 256)
    assert dict(mpl.rcParams) == before
