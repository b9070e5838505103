"""The workflow's products on disk: which are finished, and whether they are intact. Reads only and doesn't need DVC."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tlm_repro.artifacts.checksums import Identity, identity
from tlm_repro.errors import ArtifactError, ConfigError
from tlm_repro.records.base import FINGERPRINTED
from tlm_repro.records.evaluation import Evaluation
from tlm_repro.records.manifests import DataManifest, Manifest, ModelManifest, SamplesManifest
from tlm_repro.records.novelty import Novelty
from tlm_repro.study.grid import Grid

Stage = Literal["data", "pretrain", "evaluate", "novelty", "needles"]
TREES: dict[Stage, str] = {
    "data": "data",
    "pretrain": "models",
    "evaluate": "evaluations",
    "novelty": "novelty",
    "needles": "needles",
}
MANIFESTS: dict[Stage, type[Manifest]] = {"data": DataManifest, "pretrain": ModelManifest, "needles": SamplesManifest}
MANIFEST = "manifest.json"
PARTS = "parts"  # of a data set made by several jobs; its shards hold the same tokens


@dataclass(frozen=True)
class Product:
    """A finished product. `path` is its folder or its only file; `files` are all its files when they were checked."""

    stage: Stage
    path: Path
    files: dict[Path, Identity]

    def changed(self) -> bool:
        """Whether a file changed since it was checked."""
        return any(not path.is_file() or identity(path) != checked for path, checked in self.files.items())


@dataclass
class Survey:
    """A stage's products in a folder of results. `damaged` are messages that say what is wrong and what to do."""

    finished: list[Product] = field(default_factory=list)
    unfinished: list[Path] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)


def select_stages(names: list[str]) -> list[Stage]:
    """The stages of these names, or all for an empty list. Raises ConfigError for an unknown name."""
    for name in names:
        if name not in TREES:
            raise ConfigError(f"unknown stage '{name}': choose one of {', '.join(TREES)}")
    return [stage for stage in TREES if stage in names or not names]


def needed(grid: Grid, stage: Stage) -> list[str]:
    """Paths, below the folder of results, of all products of a stage that a configuration needs."""
    tree = TREES[stage]
    names: dict[Stage, list[str]] = {
        "data": [grid.data.name],
        "pretrain": list(grid.runs),
        "needles": list(grid.samples),
        "novelty": [f"{name}.json" for name in grid.novelty],
        "evaluate": [f"{run}/{name}.json" for run, suites in grid.suites.items() for name in suites],
    }
    return [f"{tree}/{name}" for name in names[stage]]


def survey(stage: Stage, results: Path) -> Survey:
    """All products of a stage under `results`. Files are checked against manifests by size and (cached) sha256."""
    result = Survey()
    for path in _candidates(stage, results / TREES[stage]):
        try:
            product = _folder_product(stage, path) if stage in MANIFESTS else _file_product(stage, path)
        except ArtifactError as error:
            result.damaged.append(str(error))
            continue
        if product is None:
            result.unfinished.append(path)
        else:
            result.finished.append(product)
    return result


def _visible(folder: Path) -> list[Path]:
    """A folder's content without hidden files, which are locks or temporary."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith(".")) if folder.is_dir() else []


def _candidates(stage: Stage, tree: Path) -> Iterator[Path]:
    for path in _visible(tree):
        if stage == "evaluate" and path.is_dir():
            yield from _visible(path)
        else:
            yield path


def _folder_product(stage: Stage, folder: Path) -> Product | None:
    """The product in a folder, or None if it has no manifest yet."""
    path = folder / MANIFEST
    if not path.is_file():
        return None
    files = {file: identity(file) for file in sorted(_files_below(folder))}
    manifest = MANIFESTS[stage].read(path, verify="sha256")
    if manifest.id != folder.name:
        raise ArtifactError(f"{folder} holds {manifest.id}: rename it, or delete it and run its stage again")
    listed = {path, *(folder / name for name in manifest.files)}
    if unlisted := sorted(set(files) - listed):
        raise ArtifactError(f"{unlisted[0]} isn't in {path}: delete it, or move it elsewhere")
    return Product(stage, folder, files)


def _files_below(folder: Path) -> Iterator[Path]:
    for path in _visible(folder):
        if path.is_dir() and path.name != PARTS:
            yield from _files_below(path)
        elif path.is_file():
            yield path


def _file_product(stage: Stage, path: Path) -> Product | None:
    """An evaluation or a novelty measurement, which is finished if it exists; None for a file of another name."""
    if FINGERPRINTED.match(path.name) is None or not path.is_file():
        return None
    files = {path: identity(path)}
    if stage == "novelty":
        Novelty.read(path)
        return Product(stage, path, files)
    run = Evaluation.read(path).run
    if run is not None and run.id != path.parent.name:
        raise ArtifactError(f"{path}: run.id: '{run.id}'. The folder has the run's id. Move the file there.")
    return Product(stage, path, files)
