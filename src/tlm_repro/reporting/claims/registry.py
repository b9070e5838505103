"""The paper's ten claims, each with a verdict from the rule that decides it.

A claim is one entry of `ENTRIES` and one function of `rules`: evidence → outcome.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tlm_repro.artifacts.files import write_text
from tlm_repro.records.claims import Claim, Claims
from tlm_repro.reporting import published as sources
from tlm_repro.reporting.claims import rules
from tlm_repro.reporting.claims.verdicts import Outcome
from tlm_repro.reporting.evidence import Evidence
from tlm_repro.reporting.markdown import cell
from tlm_repro.reporting.published import NOT_PUBLISHED

TOY_SENTENCE = "Toy scale: this verdict is about the toy runs alone and is no evidence for or against the paper."
PUBLISHED_SENTENCE = "The paper's own numbers put through the same rule: a check of the rule, not a reproduction."


@dataclass(frozen=True)
class Entry:
    """A claim as the paper makes it. `paper` is given where its value can't be computed from the published tables."""

    number: int
    statement: str
    source: str
    rule: Callable[[Evidence], Outcome]
    paper: str | None = None
    experiments: tuple[str, ...] = ("main",)  # where its evidence comes from; none: pretrained models from outside


ENTRIES = (
    Entry(
        1,
        "Moving width to the early third of the layers lowers validation perplexity, moving it to the middle or the "
        "late third raises it: wider-early < uniform < wider-middle < wider-late.",
        "Figure 2",
        rules.thirds,
        experiments=("motivation",),
    ),
    Entry(
        2,
        "At every width ratio cosine has a lower validation perplexity than linear, and linear than sigmoid.",
        "Table 1",
        rules.order_of_curves,
        experiments=("sweep",),
    ),
    Entry(
        3,
        "The worst cosine allocation has a lower validation perplexity than the best linear one.",
        "Table 1",
        rules.worst_against_best,
        experiments=("sweep",),
    ),
    Entry(
        4,
        f"Validation perplexity of cosine is U-shaped in the width ratio, with its minimum at {rules.BEST}.",
        "Table 1",
        rules.u_shape,
        experiments=("sweep",),
    ),
    Entry(5, "Tapered has a higher average accuracy than uniform in 8 of 8 pairs.", "Table 2", rules.average_accuracy),
    Entry(6, "Tapered has a lower LAMBADA perplexity than uniform in 8 of 8 pairs.", "Table 2", rules.lambada),
    Entry(
        7,
        "Tapered has a lower WikiText perplexity than uniform in 7 of 8 pairs (all but Hope-attention at 1.3B).",
        "Table 2",
        rules.wikitext,
    ),
    Entry(
        8,
        "On needle-in-a-haystack retrieval tapered matches or improves on uniform, most where scores are low.",
        "Appendix A",
        rules.needle,
        paper=NOT_PUBLISHED,
    ),
    Entry(
        9,
        "In pretrained models, ρ_MLP and ρ_block correlate positively with depth, ρ_MLP more tightly.",
        "Section 4, Figure 4",
        rules.novelty,
        paper=f"r_MLP 0.49 to 0.71, r_block 0.27 to 0.71 over GPT-2 124M to 1.5B; single models {NOT_PUBLISHED}",
        experiments=(),
    ),
    Entry(
        10,
        "Within every pair, parameters and FLOPs are equal.",
        "Section 1, Equation 7",
        rules.equal_budgets,
        paper="equal by construction",
        experiments=rules.PAPER_EXPERIMENTS,
    ),
)


def judge(evidence: Evidence) -> list[Claim]:
    """The ten claims in order. What isn't measured gives "not run" and raises no error."""
    return [judged(entry, evidence) for entry in ENTRIES]


def judged(entry: Entry, evidence: Evidence) -> Claim:
    outcome = entry.rule(evidence)
    used = [evidence.views[name] for name in entry.experiments if name in evidence.views]
    ran = outcome.verdict != "not run"
    toy = ran and any(view.toy for view in used)
    return Claim(
        number=entry.number,
        statement=entry.statement,
        source=entry.source,
        paper=entry.paper or paper_values()[entry.number],
        verdict=f"toy: {outcome.verdict}" if toy else outcome.verdict,
        outcome=outcome.verdict,
        ours=outcome.value,
        uncertainty=outcome.uncertainty,
        reason=f"{outcome.reason} {TOY_SENTENCE}" if toy else outcome.reason,
        toy=toy,
        evidence=ran and not toy,
    )


def published_outcomes() -> dict[int, Outcome]:
    results, views = sources.published()
    evidence = Evidence(results, {view.experiment: view for view in views})
    return {entry.number: entry.rule(evidence) for entry in ENTRIES}


@cache
def paper_values() -> dict[int, str]:
    """Claim number → the paper's value, computed from its tables by the claim's own rule."""
    return {number: outcome.value for number, outcome in published_outcomes().items()}


def published() -> list[Claim]:
    """The paper's tables judged by the same rules. Claims 8, 9 and 10 are "not run": their numbers aren't there."""
    claims = []
    for entry, outcome in zip(ENTRIES, published_outcomes().values(), strict=True):
        ran = outcome.verdict != "not run"
        claims.append(
            Claim(
                number=entry.number,
                statement=entry.statement,
                source=entry.source,
                paper=entry.paper or outcome.value,
                verdict=outcome.verdict,
                outcome=outcome.verdict,
                ours=outcome.value,
                uncertainty=outcome.uncertainty,
                reason=f"{outcome.reason} {PUBLISHED_SENTENCE}"
                if ran
                else f"The numbers behind it are {NOT_PUBLISHED}.",
                toy=False,
                evidence=False,
            )
        )
    return claims


def document(claims: Sequence[Claim], *, config: str, toy: bool) -> Claims:
    """The record of `claims.json`."""
    return Claims.create({"schema": 1, "kind": "claims", "toy": toy, "config": config, "claims": claims})


def markdown(claims: Sequence[Claim], *, config: str, toy: bool) -> str:
    """The contents of `claims.md`: a summary table, then each claim in full."""
    lines = [f"# Claims, configuration `{config}`", ""]
    if toy:
        lines += [f"> {TOY_SENTENCE}", ""]
    lines += ["| # | claim | source | verdict |", "|--:|:--|:--|:--|"]
    lines += [
        f"| {claim.number} | {cell(claim.statement)} | {cell(claim.source)} | **{claim.verdict}** |" for claim in claims
    ]
    for claim in claims:
        lines += [
            "",
            f"## {claim.number}. {claim.verdict}",
            "",
            claim.statement,
            "",
            f"- paper ({claim.source}): {claim.paper}",
            f"- ours: {claim.ours}",
            f"- uncertainty: {claim.uncertainty}",
            f"- why: {claim.reason}",
            f"- evidence for or against the paper: {'yes' if claim.evidence else 'no'}",
        ]
    return "\n".join(lines) + "\n"


def write(claims: Sequence[Claim], folder: Path, *, config: str, toy: bool) -> list[Path]:
    """Writes `claims.json` and `claims.md` into `folder`, atomically, and returns their paths."""
    paths = [folder / "claims.json", folder / "claims.md"]
    document(claims, config=config, toy=toy).write(paths[0])
    write_text(paths[1], markdown(claims, config=config, toy=toy))
    return paths
