"""Partial results of an evaluation that failed, so that the next attempt computes only the rest.

A part is stored under a key that holds everything its numbers depend on, the model's identity included. An unreadable
part counts as missing.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tlm_repro.artifacts.files import read_json, write_json
from tlm_repro.artifacts.fingerprint import fingerprint
from tlm_repro.artifacts.manifest import versions
from tlm_repro.errors import ArtifactError


def partial_folder(out: Path) -> Path:
    """The hidden folder for the partial results of the evaluation file `out`."""
    return out.parent / f".{out.name}.partial"


@dataclass(frozen=True)
class PartialResults:
    """Parts in `folder`; None: nothing is stored. Every key includes `identity` and the libraries' versions."""

    folder: Path | None
    identity: dict[str, Any]

    def get(self, name: str, key: dict[str, Any]) -> Any | None:
        """The value of a part, or None if there is none for this key."""
        if self.folder is None:
            return None
        full_key = self._full_key(key)
        try:
            part = read_json(part_file(self.folder, name, full_key))
        except ArtifactError:
            return None
        return part["value"] if isinstance(part, dict) and part.get("key") == full_key else None

    def put(self, name: str, key: dict[str, Any], value: Any) -> None:
        """Stores a JSON value, atomically."""
        if self.folder is not None:
            full_key = self._full_key(key)
            write_json(part_file(self.folder, name, full_key), {"key": full_key, "value": value})

    def _full_key(self, key: dict[str, Any]) -> dict[str, Any]:
        return {**key, "identity": self.identity, "versions": versions()}


NO_PARTIAL_RESULTS = PartialResults(folder=None, identity={})


def part_file(folder: Path, name: str, key: dict[str, Any]) -> Path:
    return folder / f"{name}-{fingerprint(key)}.json"


def remove_partial_results(folder: Path) -> None:
    """Removes the partial results, once the evaluation file is written."""
    shutil.rmtree(folder, ignore_errors=True)
