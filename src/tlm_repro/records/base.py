"""The base of every record: a file that one stage writes and another reads."""

from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from tlm_repro.artifacts.files import read_json
from tlm_repro.errors import ArtifactError


class Record(BaseModel):
    """Record of a file we read: unknown keys are left alone, missing or ill-typed ones refused."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, protected_namespaces=())

    @classmethod
    def variant(cls, values: Any) -> "type[Record]":
        """The class that a file with these contents is read as: this one, or one of its subclasses."""
        del values
        return cls

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises ArtifactError, naming the file and the key, when `path` doesn't hold what this class describes."""
        values = read_json(path)
        try:
            return cls.variant(values).model_validate(values)  # type: ignore[return-value]
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the whole file"
            kind = cls.__name__.lower()
            raise ArtifactError(
                f"{path} is not a usable {kind} file: {where}: {first['msg']} (seen: {first['input']!r:.80}); "
                "delete it and run its stage again"
            ) from None
