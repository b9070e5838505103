"""The base of every record: a file that one stage writes and another reads."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, ValidationError

from tlm_repro.artifacts.files import read_json, write_json
from tlm_repro.artifacts.fingerprint import fingerprint
from tlm_repro.errors import ArtifactError
from tlm_repro.spec.base import Spec, shown
from tlm_repro.spec.run import RunLabels

FINGERPRINTED = re.compile(r"^(?P<name>.+)-(?P<fingerprint>[0-9a-f]{8})\.json$")
RUN_FOLDER = re.compile(r"_s\d+-[0-9a-f]{8}$")
ROUNDING = 1e-9  # relative; between values that different versions of a library compute in another order

# How a spec stands in a record: as its fingerprint hashes it.
canonical = PlainSerializer(lambda spec: spec.canonical())
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Error = Annotated[float, Field(ge=0)]  # a standard error
Loss = Annotated[float, Field(ge=0)]  # nats
Seconds = Annotated[float, Field(ge=0)]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]


class Mismatch(ValueError):
    """A value contradicts the rest of its record or its file's name. `expected` is a sentence, with its full stop."""

    def __init__(self, key: str, seen: Any, expected: str) -> None:
        super().__init__(f"{key}: {shown(seen)}. {expected}")
        self.key, self.seen, self.expected = key, seen, expected


class Record(BaseModel):
    """A file, or a part of one. Reading leaves unknown keys alone and refuses missing, ill-typed, contradictory ones.

    Give a field that you add a default: files of earlier versions are read with it. A subclass states in `check` what
    follows from its own values, and in `check_name` what follows from the file's path. Both are called for every file
    that is read or written, and not for a record that is only constructed.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, protected_namespaces=())

    def check(self) -> None:
        """Raises Mismatch where a value contradicts the others of this record."""

    def check_all(self) -> None:
        """Raises Mismatch, its key from this record on, where a value here or in a nested record contradicts others."""
        for name, value in self:
            for key, part in nested(name, value):
                try:
                    part.check_all()
                except Mismatch as error:
                    raise Mismatch(f"{key}.{error.key}", error.seen, error.expected) from None
        self.check()

    def check_name(self, path: Path) -> None:
        """Raises Mismatch where a value contradicts the path of the file."""

    @classmethod
    def variant(cls, values: Any) -> "type[Record]":
        """The class that a file with these contents is read as: this one, or one of its subclasses."""
        del values
        return cls

    @classmethod
    def from_values(cls, values: Any, path: Path) -> Self:
        """The record with these contents. Raises ArtifactError that names `path` and the key."""
        try:
            # From JSON: there, strictly typed lists still become tuples.
            record = cls.variant(values).model_validate_json(json.dumps(values), strict=True)
            record.check_all()
            record.check_name(path)
        except ValidationError as error:
            raise ArtifactError(f"{path}: {_problem(error)} {remedy(path)}") from None
        except Mismatch as error:
            raise ArtifactError(f"{path}: {error} {remedy(path)}") from None
        return record  # type: ignore[return-value]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises ArtifactError, naming the file and the key, where `path` doesn't hold a record of this class."""
        return cls.from_values(read_json(path), path)

    @classmethod
    def create(cls, values: Mapping[str, Any]) -> Self:
        """The record that a stage writes: with no key that the class doesn't have, and checked as on reading.

        Raises pydantic's ValidationError or Mismatch: either is a mistake in the program.
        """
        record = cls.variant(values).model_validate(values, extra="forbid")
        record.check_all()
        return record  # type: ignore[return-value]

    def content(self) -> dict[str, Any]:
        """Plain values as they stand in a file: the keys that were given, in the order of the class."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def write(self, path: Path) -> None:
        write_json(path, self.content())


def nested(name: str, value: Any) -> Iterator[tuple[str, "Record"]]:
    """The records in a field, with their keys."""
    if isinstance(value, Record):
        yield name, value
    elif isinstance(value, tuple):
        for place, one in enumerate(value):
            yield from nested(f"{name}.{place}", one)
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from nested(f"{name}.{key}", one)


def remedy(path: Path) -> str:
    return (
        f"Delete the file and run its stage again, or, if it came by DVC, fetch it anew with `dvc pull --force {path}`."
    )


def _problem(error: ValidationError) -> str:
    """`<key>: <what was seen>. <What is allowed.>` of the first problem."""
    first = error.errors()[0]
    keys = [str(part) for part in first["loc"]]
    where = ".".join(keys) or "the whole file"
    if first["type"] == "missing":
        return f"{where}: the key is missing. Files of this kind have it."
    message = first["msg"].removeprefix("Value error, ").rstrip(".")
    sentence = f"{message[:1].upper()}{message[1:]}."
    # A validator of a whole section says itself what it saw there.
    return f"{where}: {sentence}" if first["type"] == "value_error" else f"{where}: {shown(first['input'])}. {sentence}"


def close(seen: float | None, expected: float | None, *, within: float = ROUNDING) -> bool:
    """Whether two numbers are the same but for rounding; None is the same as None alone."""
    if seen is None or expected is None:
        return seen is expected
    return math.isclose(seen, expected, rel_tol=within, abs_tol=within)


def check_equal(key: str, seen: Any, expected: Any, because: str) -> None:
    """Raises Mismatch where `seen` isn't `expected`, but for rounding. `because` begins the sentence that says so."""
    same = close(seen, expected) if isinstance(seen, float) or isinstance(expected, float) else seen == expected
    if not same:
        raise Mismatch(key, seen, f"{because} {shown(expected)}.")


def check_increasing(key: str, values: tuple[int, ...]) -> None:
    """Raises Mismatch where a value isn't larger than the one before."""
    for place, (one, two) in enumerate(pairwise(values), start=1):
        if two <= one:
            raise Mismatch(f"{key}.{place}", two, f"It comes after {one} and must be larger.")


def check_fingerprint(path: Path, spec: Spec) -> None:
    """Raises Mismatch where the file's name ends in another fingerprint than its spec's; other names are left alone."""
    name = FINGERPRINTED.match(path.name)
    if name and name["fingerprint"] != (own := fingerprint(spec.canonical())):
        raise Mismatch("spec", own, f"The file's name has the spec's fingerprint, {name['fingerprint']}.")


class RunIdentity(Record):
    """A run's id and labels."""

    id: str
    architecture: str
    scale: str
    allocation: str
    seed: int

    def check(self) -> None:
        if self.id.rpartition("-")[0] != self.labels.title:
            raise Mismatch("id", self.id, f"Its labels make it '{self.labels.title}-<fingerprint>'.")

    @property
    def labels(self) -> RunLabels:
        return RunLabels(**self.model_dump(exclude={"id"}))
