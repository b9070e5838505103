"""Types of keys that only the configuration has."""

from typing import Annotated

from pydantic import Field

from tlm_repro.spec.base import Integer

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
Seeds = Annotated[tuple[Annotated[Integer, Field(ge=0, lt=2**31)], ...], Field(min_length=1)]
