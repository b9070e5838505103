"""Checks of the settings that come with a tokenizer or a model trained elsewhere, before a library builds from them."""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from tlm_repro.errors import ArtifactError

LARGEST_SETTINGS = 2**26  # bytes of a JSON file of settings
LAYERS = re.compile(r"(^|_)layers?$|(^|_)n(um)?_\w*blocks?$|block_count$|^depth$")
# Libraries make a module or a list entry for each of these.
COUNTS = re.compile(rf"^n_|(^|_)num_|(^|_)(heads?|experts?|groups?|labels?)$|_count$|{LAYERS.pattern}")
FEW_LAYERS = 1024  # a default that a small model leaves unused may exceed the number of its tensors
LARGEST_COUNT = 2**20
CODE_REMEDY = "Code that comes with a model is never run. Use a model that transformers itself implements"


def read_settings(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        ArtifactError: the file is too large, too deeply nested or no JSON object.
    """
    size = path.stat().st_size
    if size > LARGEST_SETTINGS:
        raise ArtifactError(f"{path} has {size:,} bytes. Settings have at most {LARGEST_SETTINGS:,}. Fetch it anew")
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{path} is not valid JSON ({error}): fetch or save it anew") from None
    if not isinstance(settings, dict):
        raise ArtifactError(f"{path} holds a {type(settings).__name__}, an object is expected: fetch or save it anew")
    return settings


def check_counts(path: Path, settings: dict[str, Any], tensors: int | None = None) -> None:
    """Raises ArtifactError if a number of layers, heads, … in `settings` can't be that of a real model.

    Args:
        path: the file of the settings, for the message.
        tensors: the number of stored tensors, if known. Each layer has at least one.
    """
    most_layers = LARGEST_COUNT if tensors is None else max(tensors, FEW_LAYERS)
    for key, value in scalars(settings):
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        name = key.rpartition(".")[2]
        is_layers = LAYERS.search(name) is not None
        limit = most_layers if is_layers else LARGEST_COUNT
        if not COUNTS.search(name) or value <= limit:
            continue
        allowed = f"With {tensors:,} tensors at most {limit:,}" if is_layers and tensors else f"At most {limit:,}"
        raise ArtifactError(f"{path}: {key}: {value:.12g}. {allowed} are possible. Fetch or save the model anew")


def scalars(settings: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """All single values in JSON with their dotted keys. Entries of a list have the list's key."""
    pending = [(key, settings)]
    while pending:
        key, value = pending.pop()
        if isinstance(value, dict):
            pending += [(f"{key}.{name}" if key else name, entry) for name, entry in value.items()]
        elif isinstance(value, list | tuple):
            pending += [(key, entry) for entry in value]
        else:
            yield key, value


def check_names(path: Path, names: Iterable[Any]) -> list[str]:
    """The names of files that the file `path` refers to.

    Raises:
        ArtifactError: one lies outside the folder of `path`, or isn't a name.
    """
    checked = []
    for name in names:
        parts = PurePosixPath(name).parts if isinstance(name, str) else ()
        if not parts or ".." in parts or parts[0] == "/" or "\0" in name:
            raise ArtifactError(
                f"{path} refers to the file {str(name)[:200]!r}. Files of a model lie in its own folder. "
                "Fetch or save the model anew"
            )
        checked.append(name)
    return checked


def tokenizer_file_names(path: Path) -> list[str]:
    """The files that a tokenizer_config.json refers to. Raises ArtifactError as `check_names`."""
    settings = read_settings(path)
    listed = settings.get("fast_tokenizer_files") or []
    single = [value for key, value in settings.items() if key.endswith("_file") and value is not None]
    return check_names(path, [*(listed if isinstance(listed, list) else [listed]), *single])


def needs_code(error: Exception) -> bool:
    """Whether transformers gave up because the files come with code that `trust_remote_code=False` doesn't run."""
    return "trust_remote_code" in str(error)
