"""The heat maps' cells hold the needles that were counted; grey, marks and bins are what they say."""

import math

import numpy as np
import pandas as pd

from tlm_repro.reporting import style
from tlm_repro.reporting.exhibits import niah

LABELS = ("uniform", "tapered")


def table(found, *, seeds=1, scale="760m"):
    """Rows of `niah.by_depth` from {(label, task, length): {depth: (found, needed)}}."""
    return pd.DataFrame(
        {"architecture": "transformer", "scale": scale, "label": label, "task": task, "length": length}
        | {"depth": depth, "seeds": seeds, "found": hits, "needed": needed}
        for (label, task, length), places in found.items()
        for depth, (hits, needed) in places.items()
    )


def meshes(figure):
    """Title → the values of that panel's cells, rows from the top, NaN where the cell is grey."""
    found = {}
    for axes in figure.axes:
        if axes.get_title():
            values = axes.collections[0].get_array()
            found[axes.get_title()] = np.ma.filled(np.ma.masked_invalid(values), np.nan)
            assert axes.yaxis_inverted()
            assert axes.collections[0].get_clim() == (0.0, 1.0)
    return found


def notes(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def ticks(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


SMALL = {
    ("uniform", "single_1", 4096): {0.0: (1, 4), 1.0: (4, 4)},
    ("uniform", "single_1", 8192): {0.0: (0, 4), 1.0: (2, 4)},
    ("tapered", "single_1", 4096): {0.0: (3, 4), 1.0: (4, 4)},
    ("tapered", "single_1", 8192): {1.0: (1, 2)},
    ("uniform", "multiquery", 8192): {0.0: (5, 16), 1.0: (0, 16)},
    ("tapered", "multiquery", 8192): {0.0: (8, 16), 1.0: (16, 16)},
}


def test_cells_are_the_shares_found():
    figure = niah.draw(table(SMALL), training=4096.0, toy=False)
    found = meshes(figure)
    assert list(found) == ["S-NIAH-1, uniform", "MQ-NIAH, uniform", "S-NIAH-1, tapered", "MQ-NIAH, tapered"]
    assert found["S-NIAH-1, uniform"].tolist() == [[0.25, 0.0], [1.0, 0.5]]
    assert found["S-NIAH-1, tapered"][:, 0].tolist() == [0.75, 1.0]
    assert math.isnan(found["S-NIAH-1, tapered"][0, 1])
    assert found["S-NIAH-1, tapered"][1, 1] == 0.5
    assert np.isnan(found["MQ-NIAH, uniform"][:, 0]).all()
    assert found["MQ-NIAH, tapered"][:, 1].tolist() == [0.5, 1.0]


def test_counts_stand_in_the_cells_and_grey_and_marks_are_explained():
    figure = niah.draw(table(SMALL), training=4096.0, toy=False, conditions=["RoPE scaling: yarn."])
    first = figure.axes[0]
    assert [text.get_text() for text in first.texts] == ["1/4", "0/4", "4/4", "2/4"]
    assert ticks(first.yaxis) == ["0 %", "100 %"]
    assert ticks(figure.axes[2].xaxis) == ["4K", "8K †"]
    mark = "† longer than the training length of 4,096 tokens"
    assert notes(figure) == ["no needle in this cell", mark, "RoPE scaling: yarn."]
    whole = {key: places for key, places in SMALL.items() if key[0] == "uniform" and key[1] == "single_1"}
    assert notes(niah.draw(table(whole), training=math.nan, toy=False)) == []


def test_many_depths_come_in_bins_of_a_tenth():
    depths = {place / 39: (place % 2, 1) for place in range(40)}
    figure = niah.draw(table({("uniform", "single_1", 4096): depths}), training=4096.0, toy=False)
    first = figure.axes[0]
    assert ticks(first.yaxis)[0] == "0–10 %"
    assert ticks(first.yaxis)[-1] == "90–100 %"
    assert [text.get_text() for text in first.texts] == ["2/4"] * 10
    edges = {0.0: (1, 1), 0.1: (0, 1), 0.95: (1, 1), 1.0: (0, 1)} | {0.3 + place / 100: (0, 1) for place in range(9)}
    figure = niah.draw(table({("uniform", "single_1", 4096): edges}), training=4096.0, toy=False)
    assert meshes(figure)["S-NIAH-1, uniform"][[0, 1, 9], 0].tolist() == [1.0, 0.0, 0.5]


def test_seeds_and_toy_scale_are_told():
    figure = niah.draw(table(SMALL, seeds=3, scale="760m-toy"), training=128.0, toy=True)
    assert figure.get_suptitle() == "Transformer 760m-toy: needles found, by depth and length, 3 seeds added up"
    assert figure.get_supxlabel() == style.TOY_STAMP


def test_equal_needles_give_equal_bytes(tmp_path):
    first, second = (
        style.save(niah.draw(table(SMALL), training=4096.0, toy=False), tmp_path / name / "map")
        for name in ("one", "two")
    )
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
