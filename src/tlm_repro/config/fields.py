"""What the sections of the configuration are made of."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _no_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a number is expected, not true or false")
    return value


def _whole_number(value: Any) -> Any:
    """Text is taken for the number in it: `snakemake --config seeds=[0,1]` gives the entries of a list as text."""
    if isinstance(value, str):
        return int(value)
    return value


Integer = Annotated[int, BeforeValidator(_whole_number), Field(strict=True)]
Number = Annotated[float, BeforeValidator(_no_boolean), Field(allow_inf_nan=False)]  # YAML reads 4e-4 as text
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
Seeds = Annotated[tuple[Annotated[Integer, Field(ge=0, lt=2**31)], ...], Field(min_length=1)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
