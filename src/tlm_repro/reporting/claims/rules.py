"""How each claim of the paper is decided: pure functions of what was measured, each ending in `verdicts.outcome`."""

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median

from tlm_repro.records.novelty import Novelty
from tlm_repro.records.view import Cells
from tlm_repro.reporting.claims.verdicts import Comparison, Outcome, compare, not_run, outcome
from tlm_repro.reporting.evidence import Evidence
from tlm_repro.reporting.profiles import correlations
from tlm_repro.reporting.results import Results
from tlm_repro.reporting.tapers import CURVE_NAMES, Tapers, plain_tapers
from tlm_repro.spec.metrics import NEEDLES
from tlm_repro.statistics.estimates import difference, mean, natural_unit, normal_interval, table_value
from tlm_repro.statistics.intervals import COVERAGE

RATIOS = (1.25, 1.375, 1.5, 1.625, 1.75)  # of the first layer, Table 1
BEST_RATIO = 1.5
BEST = f"{BEST_RATIO}/{2 - BEST_RATIO}"
PAIRS = 8  # Table 2: four architectures at two scales
WIKITEXT_EXCEPTION = ("hope_attention", "1.3b")  # Table 2's one regression in WikiText perplexity
GPT2_SIZES = 4
PAPER_EXPERIMENTS = ("motivation", "sweep", "main")


def ladder(results: Results, names: Sequence[str], cells: Mapping[str, Cells]) -> list[Comparison]:
    """Compares neighbours in validation loss, `names` in claimed order, best first; empty when any is missing."""
    if any(name not in cells for name in names):
        return []
    comparisons = [
        compare(results, "val_loss", f"{worse} − {better}", cells[better], cells[worse])
        for better, worse in pairwise(names)
    ]
    return [] if None in comparisons else [comparison for comparison in comparisons if comparison is not None]


def perplexity(results: Results, cells: Cells) -> str:
    return f"{table_value('val_ppl', mean('val_loss', results.seeds(cells, 'val_loss')))[0]:.2f}"


def thirds(evidence: Evidence) -> Outcome:
    """Claim 1 (Figure 2): wider-early < uniform < wider-middle < wider-late in validation loss."""
    view = evidence.views.get("motivation")
    if view is None:
        return not_run("The experiment 'motivation' isn't in this configuration.")
    order = ("wider-early", "uniform", "wider-middle", "wider-late")
    comparisons, values = [], []
    for cells in view.groups().values():
        steps = ladder(evidence.results, order, cells)
        comparisons += steps
        if steps:
            values.append(", ".join(f"{name} {perplexity(evidence.results, cells[name])}" for name in order))
    if not comparisons:
        return not_run("The four allocations of Figure 2 aren't all evaluated.")
    return outcome(comparisons, "; ".join(values))


def sweeps(evidence: Evidence) -> list[Tapers]:
    """(curve, ratio) → evaluated cells, for each architecture and scale of the sweep."""
    return list(plain_tapers(evidence.results, evidence.views.get("sweep")).values())


def ratio_coverage(ratios: Collection[float]) -> str:
    """Says so when not all of the paper's width ratios were run."""
    missing = [str(ratio) for ratio in RATIOS if ratio not in ratios]
    return f"Width ratios that the paper has and this configuration doesn't: {', '.join(missing)}" if missing else ""


def order_of_curves(evidence: Evidence) -> Outcome:
    """Claim 2 (Table 1): cosine < linear < sigmoid in validation loss at every width ratio."""
    comparisons, ratios = [], set[float]()
    for cells in sweeps(evidence):
        for start in sorted({ratio for _, ratio in cells}):
            at_ratio = {f"{name} {start}": cells[name, start] for name in CURVE_NAMES if (name, start) in cells}
            steps = ladder(evidence.results, [f"{name} {start}" for name in CURVE_NAMES], at_ratio)
            comparisons += steps
            ratios |= {start} if steps else set()
    if not comparisons:
        return not_run("No width ratio of the sweep has all three curves evaluated.")
    agreeing = sum(comparison.effect.mean > 0 for comparison in comparisons)
    value = f"{agreeing} of {len(comparisons)} neighbours in the claimed order"
    return outcome(comparisons, value, ratio_coverage(ratios))


def worst_against_best(evidence: Evidence) -> Outcome:
    """Claim 3 (Table 1): the worst cosine has a lower validation loss than the best linear."""
    comparisons, values, ratios = [], [], set[float]()
    for cells in sweeps(evidence):
        measured = {key: evidence.results.seeds(chosen, "val_loss") for key, chosen in cells.items()}
        losses = {key: mean("val_loss", seeds).mean for key, seeds in measured.items()}
        cosine, linear = ([key for key in losses if key[0] == name] for name in ("cosine", "linear"))
        if not cosine or not linear:
            continue
        worst, best = max(cosine, key=lambda key: losses[key]), min(linear, key=lambda key: losses[key])
        name = f"linear {best[1]} − cosine {worst[1]}"
        comparison = compare(evidence.results, "val_loss", name, cells[worst], cells[best])
        if comparison:
            comparisons.append(comparison)
            ratios |= {start for _, start in (*cosine, *linear)}
            values.append(
                f"cosine's worst {perplexity(evidence.results, cells[worst])} (at {worst[1]}), "
                f"linear's best {perplexity(evidence.results, cells[best])} (at {best[1]})"
            )
    if not comparisons:
        return not_run("The sweep has no cosine and linear allocation that are both evaluated.")
    return outcome(comparisons, "; ".join(values), ratio_coverage(ratios))


def u_shape(evidence: Evidence) -> Outcome:
    """Claim 4 (Table 1): with cosine the loss falls as the ratio grows to the best one, then rises."""
    comparisons, values, ratios = [], [], set[float]()
    for cells in sweeps(evidence):
        starts = sorted(start for name, start in cells if name == "cosine")
        if BEST_RATIO not in starts or starts[0] >= BEST_RATIO or starts[-1] <= BEST_RATIO:
            continue
        for low, high in pairwise(starts):
            better, worse = (high, low) if high <= BEST_RATIO else (low, high)
            pair = cells["cosine", better], cells["cosine", worse]
            comparison = compare(evidence.results, "val_loss", f"cosine {worse} − cosine {better}", *pair)
            if comparison:
                comparisons.append(comparison)
        ratios |= set(starts)
        values.append(
            ", ".join(f"{perplexity(evidence.results, cells['cosine', start])} at {start}" for start in starts)
        )
    if not comparisons:
        return not_run(f"Cosine isn't evaluated at {BEST} and at a ratio on each side of it.")
    return outcome(comparisons, "; ".join(values), ratio_coverage(ratios))


def main_pairs(evidence: Evidence, metric: str, coverage: float = COVERAGE) -> dict[tuple[str, str], Comparison]:
    """(architecture, scale) → tapered against uniform, positive when tapered is better; `coverage` of the intervals."""
    view = evidence.views.get("main")
    compared: dict[tuple[str, str], Comparison] = {}
    for (architecture, scale), labels in (view.groups() if view else {}).items():
        if "uniform" not in labels or "tapered" not in labels:
            continue
        uniform, tapered = (evidence.results.seeds(labels[name], metric) for name in ("uniform", "tapered"))
        unit = natural_unit(metric)
        better, worse = (tapered, uniform) if unit == "points" else (uniform, tapered)
        effect = difference(metric, better, worse, coverage)
        if effect is not None:
            compared[architecture, scale] = Comparison(f"{architecture} {scale}", effect, unit)
    return compared


def pairs(evidence: Evidence, metric: str, title: str, exception: tuple[str, str] | None = None) -> Outcome:
    """Claims 5 to 7 (Table 2): tapered is better than uniform in every pair, but for the paper's one exception."""
    compared = main_pairs(evidence, metric)
    if not compared:
        return not_run(f"No pair of experiment 'main' has {title} for both its uniform and its tapered run.")
    comparisons = list(compared.values())
    allowed = int(exception is not None and (len(compared) >= PAIRS or exception in compared))
    better = sum(comparison.effect.mean > 0 for comparison in comparisons)
    effect = fmean(comparison.effect.mean for comparison in comparisons)
    value = f"{better} of {len(compared)} pairs improve, mean gain {effect:+.3f} {comparisons[0].unit}"
    return outcome(
        comparisons, value, f"{len(compared)} of the paper's {PAIRS} pairs were run" * (len(compared) < PAIRS), allowed
    )


def average_accuracy(evidence: Evidence) -> Outcome:
    """Claim 5."""
    return pairs(evidence, "avg", "the average of the eight accuracies")


def lambada(evidence: Evidence) -> Outcome:
    """Claim 6."""
    return pairs(evidence, "lambada_ppl", "LAMBADA perplexity")


def wikitext(evidence: Evidence) -> Outcome:
    """Claim 7."""
    return pairs(evidence, "wikitext_ppl", "WikiText perplexity", WIKITEXT_EXCEPTION)


def needle_cells(evidence: Evidence, coverage: float = COVERAGE) -> list[tuple[float, Comparison]]:
    """(mean score of the pair in percent, tapered − uniform in points) of each needle metric and pair."""
    groups = evidence.views["main"].groups() if "main" in evidence.views else {}
    compared: list[tuple[float, Comparison]] = []
    for metric in sorted({name for name in evidence.results.metrics["metric"] if name.startswith(NEEDLES)}):
        for key, comparison in main_pairs(evidence, metric, coverage).items():
            both = [mean(metric, evidence.results.seeds(groups[key][name], metric)) for name in ("uniform", "tapered")]
            named = Comparison(f"{comparison.name} {metric}", comparison.effect, comparison.unit)
            compared.append((round(fmean(score.mean for score in both), 6), named))
    return compared


def needle(evidence: Evidence) -> Outcome:
    """Claim 8 (Appendix A): no needle cell gets clearly worse, and gains are larger where scores are low.

    A cell is a metric `niah_<task>_<length>` of one pair. It gets clearly worse where an interval that holds for all
    cells at once (Bonferroni) lies below zero: of 96 cells at 95 % each, two or three would by chance alone. "Low" is
    below the median of the different mean scores of the pairs (Oldham 1962): by the uniform score alone, its noise
    would pass for gain.
    """
    compared = needle_cells(evidence)
    if not compared:
        return not_run("No pair has needle-in-a-haystack scores for both its uniform and its tapered run.")
    together = needle_cells(evidence, 1 - (1 - COVERAGE) / len(compared))
    against = [comparison for _, comparison in together if comparison.effect.sign < 0]
    coverage = f"{len(against)} of {len(compared)} cells get clearly worse, judged together"
    middle = median({score for score, _ in compared})
    low = [comparison for score, comparison in compared if score < middle]
    high = [comparison for score, comparison in compared if score >= middle]
    if not low and not against:
        reason = "No cell gets clearly worse, but all pairs score alike, so that none of them is low beside others."
        return Outcome("inconclusive", f"{middle:.1f} % in all {len(compared)} cells", "—", reason)
    if not low:
        return outcome(against, f"{middle:.1f} % in all {len(compared)} cells", coverage)
    gains = [fmean(comparison.effect.mean for comparison in half) for half in (low, high)]
    stderr = math.hypot(*(math.hypot(*(c.effect.stderr for c in half)) / len(half) for half in (low, high)))
    first = compared[0][1].effect
    contrast = normal_interval(gains[0] - gains[1], stderr, first.seeds, first.basis)
    value = f"mean gain {gains[0]:+.1f} points in the {len(low)} low cells, {gains[1]:+.1f} in the {len(high)} others"
    comparisons = [*against, Comparison("gain in low cells − gain in others", contrast, "points")]
    return outcome(comparisons, value, coverage)


def novelty(evidence: Evidence) -> Outcome:
    """Claim 9 (Figure 4): in each GPT-2 size ρ_block and ρ_MLP grow with depth, ρ_MLP more tightly.

    Other pretrained models are reported but don't affect the verdict: the claim isn't about them.
    """
    comparisons, values = [], []
    external = [measured for measured in evidence.novelty if measured.model.run is None]
    for measured in external:
        block, mlp, tighter = correlations(measured)
        if block is None or mlp is None or tighter is None:
            continue
        if is_gpt2(measured):
            for title, effect in (("r_block", block), ("r_MLP", mlp), ("r_MLP − r_block", tighter)):
                comparisons.append(Comparison(f"{measured.model.name} {title}", effect, "(r)"))
        strengths = f"r_MLP {mlp.mean:.2f}, r_block {block.mean:.2f}"
        values.append(f"{measured.model.name}: {strengths} ({measured.tokens:,} tokens)")
    if not comparisons:
        reason = "None of the paper's models (GPT-2) was measured; other models and runs of ours don't count here."
        return Outcome("not run", "; ".join(values) or "—", "—", reason)
    gpt2 = sum(map(is_gpt2, external))
    coverage = (
        f"Models measured: {gpt2} of the paper's {GPT2_SIZES} GPT-2 sizes, {len(external) - gpt2} of other families"
    )
    return outcome(comparisons, "; ".join(values), coverage)


def is_gpt2(measured: Novelty) -> bool:
    return "gpt2" in measured.model.name.lower().replace("-", "")


def equal_budgets(evidence: Evidence) -> Outcome:
    """Claim 10: every allocation of the paper has exactly the parameters and FLOPs of its uniform twin."""
    facts = evidence.results.models.to_dict(orient="index")
    pairs, different = 0, []
    for view in (evidence.views[name] for name in PAPER_EXPERIMENTS if name in evidence.views):
        for (architecture, scale), labels in view.groups().items():
            evaluated = [
                (label, cell.run) for label, cells in labels.items() for cell in cells.values() if cell.run in facts
            ]
            uniform = [run for label, run in evaluated if label == "uniform"]
            if not uniform:
                continue
            for label, run in evaluated:
                pairs += label != "uniform"
                for fact in ("parameters", "forward_flops", "training_flops"):
                    ours, twin = facts[run][fact], facts[uniform[0]][fact]
                    if ours != twin:
                        different.append(
                            f"{view.experiment} {architecture} {scale} {label}: {fact} {ours:,}, uniform {twin:,}"
                        )
    if not pairs:
        return not_run("No run was evaluated beside its uniform twin.")
    if different:
        reason = f"{len(different)} facts differ: {'; '.join(different[:3])}."
        return Outcome("not reproduced", f"{len(different)} differences in {pairs} pairs", "none: exact counts", reason)
    reason = f"Parameters, forward FLOPs and training FLOPs are equal to the last unit in all {pairs} pairs."
    return Outcome("reproduced", f"{pairs} of {pairs} pairs equal", "none: exact counts", reason)
