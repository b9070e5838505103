"""The base of every spec: plain values, canonical JSON, fingerprints that survive additions.

What a spec holds is what its fingerprint hashes, so a key belongs here if, and only if, it can change the result. A key
that is added later gets a default that means "as before", and `canonical` leaves it out at that value: ids made earlier
stay as they were.
"""

import re
from typing import Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from tlm_repro.artifacts.fingerprint import canonical_json
from tlm_repro.errors import ConfigError

Scalar = bool | int | float | str


Option = Scalar | tuple[Scalar, ...]


def slug(text: str) -> str:
    """`text` as a part of a file name: lower case, letters, digits, dots and hyphens."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def added_later(default: Any) -> Any:
    """A field that the first release didn't have: `canonical` leaves it out while it holds `default`."""
    return Field(default=default, json_schema_extra={"added_later": True})


class Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_serializer(mode="wrap")
    def _without_neutral_additions(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = handler(self)
        for name, field in type(self).model_fields.items():
            extra = field.json_schema_extra
            if isinstance(extra, dict) and extra.get("added_later") and getattr(self, name) == field.default:
                del values[name]
        return values

    def canonical(self) -> dict[str, Any]:
        """Plain values, as they are hashed and put on a command line."""
        return self.model_dump(mode="json")

    def to_json(self) -> str:
        return canonical_json(self.canonical())

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Raises ConfigError naming the key and the value that don't fit."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise _misfit("--spec", error) from None

    @classmethod
    def from_values(cls, values: Any, source: str) -> Self:
        """The same from plain values; `source` says in the message where they stand."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise _misfit(source, error) from None


def _misfit(source: str, error: ValidationError) -> ConfigError:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "the whole text"
    return ConfigError(f"{source}: {where}: {first['msg']} (seen: {first['input']!r})")
