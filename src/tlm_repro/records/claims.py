"""The claims file: a verdict on each of the paper's claims."""

from typing import Literal

from pydantic import Field

from tlm_repro.records.base import Mismatch, Positive, Record, check_equal

Verdict = Literal["reproduced", "not reproduced", "inconclusive", "not run"]


class Claim(Record):
    """A claim, judged. `outcome` is the bare verdict; `verdict` says "toy: " first where it is only about toy runs.

    `evidence` is whether the verdict bears on the paper at all.
    """

    number: Positive
    statement: str
    source: str
    paper: str
    verdict: str
    outcome: Verdict
    ours: str
    uncertainty: str
    reason: str
    toy: bool
    evidence: bool

    def check(self) -> None:
        verdict = f"toy: {self.outcome}" if self.toy else self.outcome
        check_equal("verdict", self.verdict, verdict, "By outcome and toy it is")
        if (self.toy or self.evidence) and self.outcome == "not run":
            raise Mismatch("outcome", self.outcome, "It is about toy runs or evidence, so it ran.")
        if self.toy and self.evidence:
            raise Mismatch("evidence", self.evidence, "Toy runs are no evidence for or against the paper.")


class Claims(Record):
    """`results/claims.json`, of one configuration or of the paper's own tables (`config` is "published")."""

    schema_: Literal[1] = Field(alias="schema")
    kind: Literal["claims"]
    toy: bool
    config: str
    claims: tuple[Claim, ...]

    def check(self) -> None:
        numbers = [claim.number for claim in self.claims]
        check_equal("claims", numbers, list(range(1, len(numbers) + 1)), "Claims are numbered in order:")
        for place, claim in enumerate(self.claims):
            if claim.toy and not self.toy:
                raise Mismatch(f"claims.{place}.toy", claim.toy, "The configuration isn't toy.")
