"""Finished parts of an evaluation that failed later, so that the next attempt does only the rest.

A part is found again only under the same key: whatever can change its numbers belongs into the key, the model's
identity first. An unreadable part counts as absent.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tlm_repro.artifacts.files import read_json, write_json
from tlm_repro.artifacts.fingerprint import fingerprint
from tlm_repro.artifacts.manifest import versions
from tlm_repro.errors import ArtifactError


def beside(out: Path) -> Path:
    """The hidden folder of the parts of the evaluation file `out`."""
    return out.parent / f".{out.name}.partial"


@dataclass(frozen=True)
class Kept:
    """Parts in `folder` (None: nothing is kept) whose keys hold `identity` and the versions of the libraries."""

    folder: Path | None
    identity: dict[str, Any]

    def get(self, name: str, key: dict[str, Any]) -> Any | None:
        """The part's value, or None where it isn't there for this key."""
        if self.folder is None:
            return None
        whole = self._whole(key)
        try:
            part = read_json(part_file(self.folder, name, whole))
        except ArtifactError:
            return None
        return part["value"] if isinstance(part, dict) and part.get("key") == whole else None

    def put(self, name: str, key: dict[str, Any], value: Any) -> None:
        """Keeps a JSON value, atomically."""
        if self.folder is not None:
            whole = self._whole(key)
            write_json(part_file(self.folder, name, whole), {"key": whole, "value": value})

    def _whole(self, key: dict[str, Any]) -> dict[str, Any]:
        return {**key, "identity": self.identity, "versions": versions()}


NOTHING_KEPT = Kept(folder=None, identity={})


def part_file(folder: Path, name: str, key: dict[str, Any]) -> Path:
    return folder / f"{name}-{fingerprint(key)}.json"


def forget(folder: Path) -> None:
    """Removes the parts: the whole is written."""
    shutil.rmtree(folder, ignore_errors=True)
