"""Tapered beside uniform, and correlations with depth: values by hand, from files with and without what came later."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import record_files
from scipy import stats

from tlm_repro.artifacts.files import write_json
from tlm_repro.novelty.late_layers import late_layers
from tlm_repro.records.novelty import Novelty
from tlm_repro.reporting import commands, formats, profiles, registry
from tlm_repro.reporting.evidence import Evidence
from tlm_repro.reporting.exhibits.novelty import LayerNovelty
from tlm_repro.reporting.exhibits.novelty_pairs import NoveltyPairs
from tlm_repro.reporting.results import frames


def measured(
    mlp: Sequence[float | None],
    *,
    allocation: str | None = None,
    seed: int = 0,
    norms: Sequence[float | None] | None = None,
    intervals: dict | None = None,
) -> dict:
    """A novelty file; `allocation` None: a pretrained model's. ρ_block is ρ_MLP + 0.1, every error 0.01."""
    labels = {"architecture": "transformer", "scale": "tiny", "allocation": allocation, "seed": seed}

    def entries(values: Sequence[float | None], more: float = 0) -> list:
        return [None if value is None else {"mean": value + more, "stderr": 0.01} for value in values]

    content = {
        "schema": 1,
        "kind": "novelty",
        "model": {"name": "a model", "layers": len(mlp), "parameters": 1},
        "tokens": 64,
        "mlp": entries(mlp),
        "block": entries([value or 0.0 for value in mlp], 0.1),
        "correlation": {"block": {"r": 0.5, "layers": 4}, "mlp": {"r": 0.6, "layers": 4}},
    }
    content["model"]["run"] = None if allocation is None else {"id": f"{allocation}-{seed}", **labels}
    if norms is not None:
        content["norm_ratio"] = entries(norms)
    return content | ({} if intervals is None else {"intervals": intervals})


def found(*args, **kwargs) -> Novelty:
    return record_files.novelty(measured(*args, **kwargs))


def read(novelty: Sequence[Novelty], *, toy: bool) -> Evidence:
    return Evidence(frames([], []), {}, novelty, toy=toy)


UNIFORM = [0.0, 0.1, 0.2, 0.3, 0.4, 0.9]
TAPERED = [0.0, 0.1, 0.1, 0.2, 0.1, 0.9]
SEEDS = [
    *(found(UNIFORM, allocation="uniform", seed=seed, norms=[0.5] * 6) for seed in range(3)),
    *(
        found([*TAPERED[:4], 0.1 + shift, 0.9], allocation="cosine-1.5-0.5", seed=seed, norms=[0.25] * 6)
        for seed, shift in enumerate((0.0, 0.1, -0.1))
    ),
]
INTERVALS = {"block": [0.3, 0.6], "mlp": [0.2, 0.9], "difference": [-0.1, 0.4]}


@pytest.mark.parametrize(("layers", "expected"), [(24, range(16, 23)), (6, range(4, 5)), (12, range(8, 11)), (3, [])])
def test_late_layers_are_the_last_third_without_the_very_last(layers: int, expected: Sequence[int]) -> None:
    assert list(late_layers(layers)) == list(expected)


def test_the_late_mean_leaves_out_layers_without_an_mlp() -> None:
    item = found([0.1] * 8 + [0.2, None, 0.5, 0.9])
    assert profiles.late(item, "mlp") == pytest.approx((0.35, 0.01))
    assert profiles.late(item, "block") == pytest.approx(((0.3 + 0.1 + 0.6) / 3, 0.01))
    assert profiles.late(item, "norm_ratio") is None


def test_intervals_in_the_file_come_first_and_older_files_have_those_of_independent_tokens() -> None:
    block, mlp, difference = profiles.correlations(found(UNIFORM, intervals=INTERVALS))
    assert [estimate.interval for estimate in (block, mlp, difference)] == [(0.3, 0.6), (0.2, 0.9), (-0.1, 0.4)]
    assert (block.mean, difference.mean) == (0.5, pytest.approx(0.1))
    assert (block.sign, mlp.sign, difference.sign) == (1, 1, 0)
    assert block.stderr == pytest.approx(0.15 / stats.norm.ppf(0.975))
    older = profiles.correlations(found(UNIFORM))
    assert older[1] == profiles.profile_correlation(found(UNIFORM).mlp, 0.6)
    missing = profiles.correlations(found(UNIFORM, intervals={**INTERVALS, "mlp": None}))
    assert missing[1] == older[1]


def test_the_table_by_hand() -> None:
    rows = NoveltyPairs().table(read(SEEDS, toy=True)).set_index("quantity")
    mlp = rows.loc["mlp"]
    assert (mlp["uniform"], mlp["tapered"], mlp["difference"]) == pytest.approx((0.4, 0.1, -0.3))
    assert mlp["difference_se"] == pytest.approx(0.1 / math.sqrt(3))
    assert mlp["difference_interval"] == pytest.approx(4.302653 * 0.1 / math.sqrt(3))  # t(0.975, 2)
    assert (mlp["seeds"], mlp["basis"], mlp["layers"], bool(mlp["toy"])) == (3, "seeds", "4", True)
    assert rows.loc["norm_ratio", "difference"] == pytest.approx(-0.25)
    one = NoveltyPairs().table(read([SEEDS[0], SEEDS[3]], toy=False)).set_index("quantity").loc["block"]
    assert (one["difference"], one["seeds"]) == (pytest.approx(-0.3), 1)
    assert one["difference_interval"] == pytest.approx(1.959964 * math.hypot(0.01, 0.01))


def test_only_runs_that_have_a_uniform_twin_are_compared() -> None:
    alone = [found(UNIFORM), found(TAPERED, allocation="cosine-1.5-0.5")]
    assert NoveltyPairs().table(read(alone, toy=True)).empty
    older = NoveltyPairs().table(read([found(UNIFORM, allocation="uniform"), alone[1]], toy=True))
    assert list(older["quantity"]) == ["mlp", "block"]


def test_the_sheet_has_differences_with_their_intervals() -> None:
    text = NoveltyPairs().sheet(NoveltyPairs().table(read(SEEDS, toy=True))).text
    assert text.loc[0, "Tapered − uniform"] == "−0.300 ± 0.248"
    assert list(text["Quantity"]) == ["ρ MLP", "ρ block", "‖MLP‖/‖h‖"]
    assert formats.latex(NoveltyPairs().sheet(NoveltyPairs().table(read(SEEDS, toy=True)))).isascii()


def test_figure_4_s_table_has_intervals_and_late_layers() -> None:
    frame = LayerNovelty().table(read([found(UNIFORM, norms=[0.5] * 6, intervals=INTERVALS), found(UNIFORM)], toy=True))
    new, old = (row for _, row in frame.iterrows())
    assert (new["r_mlp_low"], new["r_mlp_high"]) == (0.2, 0.9)
    assert (new["late_mlp"], new["late_norm_ratio"]) == pytest.approx((0.4, 0.5))
    assert math.isnan(old["late_norm_ratio"])
    text = LayerNovelty().sheet(frame).text
    assert text.loc[0, "r MLP"] == "0.600 [0.200, 0.900]"
    assert list(text["Late ‖MLP‖/‖h‖"]) == ["0.500 ± 0.010", "not in the file"]


def test_the_figure_draws_seed_means_and_shades_what_is_compared() -> None:
    panels = NoveltyPairs().figure(read(SEEDS, toy=True)).axes
    lines = {line.get_label(): list(line.get_ydata()) for line in panels[0].lines if len(line.get_xdata()) == 6}
    assert lines["uniform"] == pytest.approx(UNIFORM)
    assert lines["cosine-1.5-0.5"] == pytest.approx(TAPERED)
    assert panels[0].get_title() == "late layers: −0.300 ± 0.248"
    assert panels[2].get_yscale() == "log"
    spans = [patch for patch in panels[0].patches if patch.get_width() == pytest.approx(1)]
    assert [patch.get_x() for patch in spans] == pytest.approx([3.5])


def test_figure_4_has_a_third_panel_only_where_norms_were_measured() -> None:
    assert len(LayerNovelty().figure(read([found(UNIFORM)], toy=True)).axes) == 2
    third = LayerNovelty().figure(read([found(UNIFORM, norms=[0.5] * 6)], toy=True)).axes[2]
    assert list(third.lines[0].get_ydata()) == [0.5] * 6
    assert np.isclose(third.lines[0].get_xdata()[-1], 1)


def test_a_table_of_pairs_without_pairs_says_so(tmp_path: Path) -> None:
    write_json(tmp_path / "one.json", record_files.novelty_content({"name": "a model", "run": None}, UNIFORM, UNIFORM))
    view = {"kind": "view", "config": "test", "toy": True, "experiments": [], "files": [str(tmp_path / "one.json")]}
    view["exhibits"] = [registry.describe(NoveltyPairs(), {}).model_dump()]
    write_json(tmp_path / "view.json", view)
    commands.table(view=tmp_path / "view.json", out=tmp_path / "novelty-pairs.csv")
    assert "no run was measured beside a uniform one" in (tmp_path / "novelty-pairs.md").read_text()
    assert (tmp_path / "novelty-pairs.csv").read_text().startswith("architecture,scale,allocation,quantity")
