"""The record of a job that shares the tokenising of a data set."""

from typing import Annotated

from pydantic import Field

from tlm_repro.records.base import Positive, Record, check_equal

Index = Annotated[int, Field(ge=0)]


class TokenisationJob(Record):
    """`results/data/<data set>/parts/job-<job>-of-<jobs>.json`: the parts that the job made.

    Job j of J is given the parts j, j + J, …. `beyond` are those that it left out as beyond the token budgets.
    """

    job: Index
    jobs: Positive
    parts: tuple[Index, ...]
    beyond: tuple[Index, ...]

    def check(self) -> None:
        for key in ("parts", "beyond"):
            for place, part in enumerate(getattr(self, key)):
                because = f"part {part} belongs to job {part % self.jobs} of {self.jobs}"
                check_equal(f"{key}.{place}", self.job, part % self.jobs, because)
