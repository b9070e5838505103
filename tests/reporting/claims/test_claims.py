"""Each claim on made-up results that show it, contradict it, leave it open or lack it; and on the published numbers."""

import json
import math

import pytest
import record_files
from exhibits import evidence, numbers

from tlm_repro.allocation.curves import CURVES
from tlm_repro.records.view import ExperimentView
from tlm_repro.reporting import results
from tlm_repro.reporting.claims import registry as claims

NOISE = (0.0, 0.001, -0.001)  # one offset a seed, shared by all cells: paired differences are exact
LOUD = ((0.1, -0.1, 0.0), (-0.1, 0.0, 0.1))  # not shared: differences drown
ARCHITECTURES = ("transformer", "gated_attention", "hope_attention", "titans")
PAIRS = [(architecture, scale) for scale in ("760m", "1.3b") for architecture in ARCHITECTURES]


def case(experiment, values, *, seeds=3, loud=False, stderr=None, toy=False, facts=None):
    """(results, view) from {(architecture, scale, label): {metric: value}}; `facts` overrides a label's parameters."""
    rows, cells, models = [], [], []
    for number, ((architecture, scale, label), metrics) in enumerate(values.items()):
        for seed in range(seeds):
            run = f"{experiment} {architecture} {scale} {label} {seed}"
            labels = {"architecture": architecture, "scale": scale, "allocation": label, "seed": seed, "run": run}
            known = numbers(label) if label.split("-")[0] in CURVES else {}
            cells.append({**labels, **known, "label": label, "width": 128, "layers": 6})
            offset = (LOUD[number % 2] if loud else NOISE)[seed]
            rows += [
                {**labels, "suite": "any", "metric": metric, "stderr": stderr, "items": 100}
                | {"value": value * math.exp(offset) if metric.endswith("_ppl") else value + offset}
                for metric, value in metrics.items()
            ]
            parameters = (facts or {}).get(label, 1000)
            models.append({"run": run, "parameters": parameters, "forward_flops": 5, "training_flops": 7})
    view = ExperimentView(experiment=experiment, toy=toy, config="test", cells=cells)
    return results.frames(rows, models), view


def verdict(number, experiment, values, **options):
    found, view = case(experiment, values, **options)
    return claims.judge(evidence(found, view))[number - 1]


def motivation(early, uniform, middle, late):
    labels = ("wider-early", "uniform", "wider-middle", "wider-late")
    losses = (early, uniform, middle, late)
    return {("transformer", "440m", label): {"val_loss": loss} for label, loss in zip(labels, losses, strict=True)}


def sweep(cosine, linear=(), sigmoid=(), starts=(1.25, 1.375, 1.5, 1.625, 1.75)):
    curves = {"cosine": cosine, "linear": linear, "sigmoid": sigmoid}
    return {
        ("transformer", "440m", f"{name}-{start}-{2 - start}"): {"val_loss": loss}
        for name, losses in curves.items()
        for start, loss in zip(starts, losses, strict=False)
    }


def pairs(metric, gains):
    """Uniform and tapered for the first pairs of the paper, tapered better by `gains`."""
    lower = metric.endswith("_ppl")
    found = {}
    for (architecture, scale), gain in zip(PAIRS, gains, strict=False):
        found[architecture, scale, "uniform"] = {metric: 20.0 if lower else 0.5}
        found[architecture, scale, "tapered"] = {metric: 20.0 - gain if lower else 0.5 + gain}
    return found


U_SHAPE = (2.72, 2.68, 2.67, 2.69, 2.74)
ABOVE = tuple(loss + 0.1 for loss in U_SHAPE)
HIGHEST = tuple(loss + 0.2 for loss in U_SHAPE)


@pytest.mark.parametrize(
    ("number", "experiment", "values", "options", "expected"),
    [
        (1, "motivation", motivation(2.77, 2.79, 2.81, 2.85), {}, "reproduced"),
        (1, "motivation", motivation(2.80, 2.79, 2.81, 2.85), {}, "not reproduced"),
        (1, "motivation", motivation(2.77, 2.79, 2.81, 2.85), {"loud": True}, "inconclusive"),
        (2, "sweep", sweep(U_SHAPE, ABOVE, HIGHEST), {}, "reproduced"),
        (2, "sweep", sweep(U_SHAPE, HIGHEST, ABOVE), {}, "not reproduced"),
        (2, "sweep", sweep(U_SHAPE, ABOVE, HIGHEST), {"loud": True}, "inconclusive"),
        (3, "sweep", sweep(U_SHAPE, ABOVE), {}, "reproduced"),
        (3, "sweep", sweep(U_SHAPE, U_SHAPE), {}, "not reproduced"),
        (3, "sweep", sweep(U_SHAPE, ABOVE), {"loud": True}, "inconclusive"),
        (4, "sweep", sweep(U_SHAPE), {}, "reproduced"),
        (4, "sweep", sweep((2.72, 2.66, 2.67, 2.69, 2.74)), {}, "not reproduced"),
        (4, "sweep", sweep(U_SHAPE), {"loud": True}, "inconclusive"),
        (5, "main", pairs("avg", [0.01] * 8), {}, "reproduced"),
        (5, "main", pairs("avg", [0.01] * 7 + [-0.01]), {}, "not reproduced"),
        (5, "main", pairs("avg", [0.01] * 8), {"loud": True}, "inconclusive"),
        (6, "main", pairs("lambada_ppl", [1.0] * 8), {}, "reproduced"),
        (6, "main", pairs("lambada_ppl", [1.0] * 7 + [-1.0]), {}, "not reproduced"),
        (6, "main", pairs("lambada_ppl", [0.1] * 8), {"loud": True}, "inconclusive"),
        (7, "main", pairs("wikitext_ppl", [1.0] * 6 + [-1.0, 1.0]), {}, "reproduced"),
        (7, "main", pairs("wikitext_ppl", [1.0] * 6 + [-1.0, -1.0]), {}, "not reproduced"),
        (7, "main", pairs("wikitext_ppl", [1.0] * 3 + [-1.0]), {}, "not reproduced"),
        (7, "main", pairs("wikitext_ppl", [0.1] * 8), {"loud": True}, "inconclusive"),
    ],
)
def test_verdict_of_claims_1_to_7(number, experiment, values, options, expected):
    claim = verdict(number, experiment, values, **options)
    assert claim.outcome == expected, claim.reason
    assert claim.evidence


NUMBERS = [entry.number for entry in claims.ENTRIES]


@pytest.mark.parametrize("number", NUMBERS)
def test_nothing_measured_is_not_run(number):
    claim = claims.judge(evidence(results.frames([], [])))[number - 1]
    assert (claim.verdict, claim.evidence) == ("not run", False)
    assert claim.reason.endswith(".")


@pytest.mark.parametrize(
    ("number", "experiment", "values"),
    [
        (1, "motivation", {key: value for key, value in motivation(1, 2, 3, 4).items() if key[2] != "wider-late"}),
        (2, "sweep", sweep(U_SHAPE, ABOVE)),
        (3, "sweep", sweep(U_SHAPE)),
        (4, "sweep", sweep(U_SHAPE[:3])),
        (5, "main", {key: value for key, value in pairs("avg", [0.1]).items() if key[2] == "uniform"}),
    ],
)
def test_half_of_what_a_claim_needs_is_not_run(number, experiment, values):
    assert verdict(number, experiment, values).outcome == "not run"


def test_fewer_pairs_are_counted():
    claim = verdict(6, "main", pairs("lambada_ppl", [1.0] * 3))
    assert claim.outcome == "reproduced"
    assert claim.ours.startswith("3 of 3 pairs")
    assert "3 of the paper's 8 pairs were run" in claim.reason


def test_missing_ratios_are_named():
    claim = verdict(4, "sweep", sweep((2.72, 2.67, 2.74), starts=(1.25, 1.5, 1.75)))
    assert claim.outcome == "reproduced"
    assert "1.375, 1.625" in claim.reason


def test_variants_of_a_schedule_are_no_part_of_the_claims():
    values = sweep(U_SHAPE, ABOVE, HIGHEST) | {("transformer", "440m", "sigmoid-1.5-0.5-k2"): {"val_loss": 0.1}}
    assert verdict(2, "sweep", values).outcome == "reproduced"


@pytest.mark.parametrize(
    ("stderr", "expected"), [(0.003, "reproduced"), (0.02, "inconclusive"), (None, "inconclusive")]
)
def test_one_seed_rests_on_one_run(stderr, expected):
    claim = verdict(1, "motivation", motivation(2.77, 2.79, 2.81, 2.85), seeds=1, stderr=stderr)
    assert claim.outcome == expected
    assert "rests on one run" in claim.reason


def test_toy_results_are_stamped_and_no_evidence():
    claim = verdict(1, "motivation", motivation(2.77, 2.79, 2.81, 2.85), toy=True)
    assert (claim.verdict, claim.toy, claim.evidence) == ("toy: reproduced", True, False)
    assert claims.TOY_SENTENCE in claim.reason


def needles(low_gain, high_gain):
    cells = {("transformer", "760m", "uniform"): {}, ("transformer", "760m", "tapered"): {}}
    for length, score, gain in ((4096, 0.5, high_gain), (8192, 0.45, high_gain), (16384, 0.2, low_gain)):
        cells["transformer", "760m", "uniform"][f"niah_single_2_{length}"] = score
        cells["transformer", "760m", "tapered"][f"niah_single_2_{length}"] = score + gain
    return cells


@pytest.mark.parametrize(
    ("gains", "options", "expected"),
    [
        ((0.2, 0.01), {"seeds": 1}, "reproduced"),
        ((0.2, -0.3), {"seeds": 1}, "not reproduced"),
        ((0.0, 0.3), {"seeds": 1}, "not reproduced"),
        ((0.05, 0.01), {"seeds": 1}, "inconclusive"),
        ((0.2, 0.01), {"seeds": 3}, "reproduced"),
        ((0.2, -0.3), {"seeds": 3}, "not reproduced"),
        ((0.2, 0.01), {"seeds": 3, "loud": True}, "inconclusive"),
    ],
)
def test_needle_claim(gains, options, expected):
    assert verdict(8, "main", needles(*gains), **options).outcome == expected


def test_one_loss_among_many_cells_may_be_chance():
    """A loss of 15 points of 100 samples is clear by itself, and isn't by intervals that hold for 40 cells at once."""
    cells = {("transformer", "760m", label): {} for label in ("uniform", "tapered")}
    for length in range(40):
        low = length % 2
        uniform = 0.2 if low else 0.5
        cells["transformer", "760m", "uniform"][f"niah_single_1_{length}"] = uniform
        cells["transformer", "760m", "tapered"][f"niah_single_1_{length}"] = uniform + (0.2 if low else 0.0)
    assert verdict(8, "main", cells, seeds=1).outcome == "reproduced"
    cells["transformer", "760m", "tapered"]["niah_single_1_0"] = 0.35
    claim = verdict(8, "main", cells, seeds=1)
    assert (claim.outcome, "0 of 40 cells get clearly worse" in claim.reason) == ("reproduced", True)
    cells["transformer", "760m", "tapered"]["niah_single_1_0"] = 0.1
    claim = verdict(8, "main", cells, seeds=1)
    assert (claim.outcome, "1 of 40 cells get clearly worse" in claim.reason) == ("not reproduced", True)


def novelty(name, block_slope, mlp_slope, stderr=0.001, run=None):
    depth = range(12)
    wiggle = [0.02 * (-1) ** layer for layer in depth]
    profiles = {"block": [block_slope * layer + wiggle[layer] for layer in depth]}
    profiles["mlp"] = [mlp_slope * layer + wiggle[layer] for layer in depth]
    inner = list(depth)[1:-1]
    correlation = {}
    for key, values in profiles.items():
        mean_x, mean_y = sum(inner) / 10, sum(values[layer] for layer in inner) / 10
        cov = sum((layer - mean_x) * (values[layer] - mean_y) for layer in inner)
        spread = math.sqrt(
            sum((layer - mean_x) ** 2 for layer in inner) * sum((values[layer] - mean_y) ** 2 for layer in inner)
        )
        correlation[key] = {"r": cov / spread, "layers": 10}
    return record_files.novelty(
        {
            "schema": 1,
            "kind": "novelty",
            "model": {"name": name, "run": run, "layers": 12, "parameters": 1},
            "tokens": 2048,
            "correlation": correlation,
            **{key: [{"mean": value, "stderr": stderr} for value in values] for key, values in profiles.items()},
        }
    )


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (novelty("gpt2", 0.003, 0.01), "reproduced"),
        (novelty("gpt2", 0.01, 0.003), "not reproduced"),
        (novelty("gpt2", -0.003, 0.01), "not reproduced"),
        (novelty("gpt2", 0.003, 0.0032, stderr=0.01), "inconclusive"),
    ],
)
def test_novelty_claim(found, expected):
    claim = claims.judge(evidence(results.frames([], []), novelty=[found]))[8]
    assert claim.outcome == expected, claim.reason
    assert claim.evidence


def test_novelty_is_judged_on_the_paper_s_models_alone_and_then_even_in_a_toy_configuration():
    run = {"id": "r", "architecture": "transformer", "scale": "toy", "allocation": "uniform", "seed": 0}
    found, view = case("main", pairs("avg", [0.1]), toy=True)
    assert claims.judge(evidence(found, view, novelty=[novelty("ours", 0.003, 0.01, run=run)]))[8].outcome == "not run"
    other = novelty("SmolLM2-135M", 0.01, 0.003)
    claim = claims.judge(evidence(found, view, novelty=[other]))[8]
    assert (claim.verdict, claim.evidence) == ("not run", False)
    assert claim.ours.startswith("SmolLM2-135M: r_MLP ")
    claim = claims.judge(evidence(found, view, novelty=[novelty("GPT-2 124M", 0.003, 0.01), other]))[8]
    assert (claim.verdict, claim.evidence) == ("reproduced", True)
    assert "1 of the paper's 4 GPT-2 sizes, 1 of other families" in claim.reason


def test_equal_budgets_are_exact():
    values = pairs("avg", [0.01] * 2)
    assert verdict(10, "main", values).ours == "6 of 6 pairs equal"  # two pairs, three seeds
    claim = verdict(10, "main", values, facts={"tapered": 1001})
    assert claim.outcome == "not reproduced"
    assert "parameters 1,001, uniform 1,000" in claim.reason


def test_published_tables_reproduce_themselves():
    found = claims.published()
    assert [claim.number for claim in found] == NUMBERS
    assert [claim.verdict for claim in found[:10]] == ["reproduced"] * 7 + ["not run"] * 3
    assert "hope_attention 1.3b" in found[6].reason
    assert found[6].ours.startswith("7 of 8 pairs")
    assert not any(claim.evidence for claim in found)
    assert found[0].ours == "wider-early 15.96, uniform 16.28, wider-middle 16.61, wider-late 17.29"


def test_claims_are_written_as_json_and_markdown(tmp_path):
    found, view = case("motivation", motivation(2.77, 2.79, 2.81, 2.85), toy=True)
    paths = claims.write(claims.judge(evidence(found, view)), tmp_path, config="demo", toy=True)
    content = json.loads(paths[0].read_text())
    assert (content["schema"], content["toy"], content["config"]) == (1, True, "demo")
    assert [claim["number"] for claim in content["claims"]] == NUMBERS
    assert content["claims"][0]["verdict"] == "toy: reproduced"
    assert content["claims"][0]["evidence"] is False
    text = paths[1].read_text()
    assert "**toy: reproduced**" in text
    assert claims.TOY_SENTENCE in text
