"""The base of every spec: plain values, canonical JSON, fingerprints that survive additions.

A fingerprint hashes all that a spec holds, so a key belongs in a `Spec` if, and only if, it can change the result. A
key that is added later gets a default that means "as before", and `canonical` leaves it out at that value: ids made
earlier stay as they were.

A key that both the configuration and a spec have is declared once, in a `Section` that the spec inherits from and that
the configuration uses as it is.
"""

import re
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)
from pydantic_core import PydanticCustomError

from tlm_repro.artifacts.fingerprint import canonical_json
from tlm_repro.errors import ConfigError

SHOWN_CHARACTERS = 200  # of a value in a message
Scalar = bool | int | float | str
Option = Scalar | tuple[Scalar, ...]


def slug(text: str) -> str:
    """`text` as a part of a file name: lower case, letters, digits, dots and hyphens."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def shown(value: Any) -> str:
    """`value` as messages quote it."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def added_later(default: Any, **constraints: Any) -> Any:
    """A field that the first release didn't have: `canonical` leaves it out while it holds `default`."""
    return Field(default=default, json_schema_extra={"added_later": True}, **constraints)


def _refuse_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a number is expected, not true or false")
    return value


def _integer_of_text(value: Any) -> Any:
    """`snakemake --config seeds=[0,1]` passes the entries of a list as text."""
    return int(value) if isinstance(value, str) else value


Integer = Annotated[int, BeforeValidator(_integer_of_text), Field(strict=True)]
Number = Annotated[float, BeforeValidator(_refuse_boolean), Field(allow_inf_nan=False)]  # YAML reads 4e-4 as text


def refusal(key: str, value: Any, reason: str) -> ValidationError:
    """What a validator of a section raises about one of its keys."""
    problem = PydanticCustomError("refused", "{reason}", {"reason": reason})
    return ValidationError.from_exception_data(key, [{"type": problem, "loc": (key,), "input": value}])


class Section(BaseModel):
    """A group of typed keys. An unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def from_json(cls, text: str, source: str = "--spec") -> Self:
        """Raises ConfigError naming `source`, the key and the value that don't fit."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise _misfit(source, error) from None

    @classmethod
    def from_values(cls, values: Any, source: str) -> Self:
        """The same from plain values."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise _misfit(source, error) from None

    def keys_of(self, section: "type[Section]") -> dict[str, Any]:
        """The values of the keys that `section`, from which this one inherits, declares."""
        return {name: getattr(self, name) for name in section.model_fields}

    def to_json(self) -> str:
        """As it is put on a command line."""
        return canonical_json(self.model_dump(mode="json"))


class Spec(Section):
    """A section that is hashed."""

    @model_serializer(mode="wrap")
    def _hashed(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = handler(self)
        for name, field in type(self).model_fields.items():
            extra = field.json_schema_extra
            if isinstance(extra, dict) and extra.get("added_later") and getattr(self, name) == field.default:
                del values[name]
        return self.as_first_released(values)

    def as_first_released(self, values: dict[str, Any]) -> dict[str, Any]:
        """The serialised values under the keys that ids have hashed since the first release."""
        return values

    def canonical(self) -> dict[str, Any]:
        """Plain values, as they are hashed."""
        return self.model_dump(mode="json")


def _misfit(source: str, error: ValidationError) -> ConfigError:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"]) or "the whole text"
    message = first["msg"].removeprefix("Value error, ")
    return ConfigError(f"{source}: {key}: {message} (seen: {shown(first['input'])})")
