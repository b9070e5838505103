"""Which products of the workflow are finished, and whether they are what they say. Reads only; DVC isn't needed."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tlm_repro.artifacts.checksums import Identity, identity
from tlm_repro.artifacts.manifest import read_manifest
from tlm_repro.errors import ArtifactError, ConfigError
from tlm_repro.records.base import FINGERPRINTED
from tlm_repro.records.evaluation import Evaluation
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
KINDS: dict[Stage, str] = {"data": "data", "pretrain": "model", "needles": "samples"}
MANIFEST = "manifest.json"
PARTS = "parts"  # of a data set that many jobs made: the shards hold the same


@dataclass(frozen=True)
class Product:
    """A finished product: `path` is its folder, or its file. `files` are all of it, as they were when checked."""

    stage: Stage
    path: Path
    files: dict[Path, Identity]

    def changed(self) -> bool:
        """Whether a file isn't the one that was checked."""
        return any(not path.is_file() or identity(path) != seen for path, seen in self.files.items())


@dataclass
class Survey:
    """Products below one folder of results. `unfinished` are paths, `broken` says what is wrong and how to mend it."""

    finished: list[Product] = field(default_factory=list)
    unfinished: list[Path] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


def stages(names: list[str]) -> list[Stage]:
    """All of them where none is named. Raises ConfigError on an unknown one."""
    for name in names:
        if name not in TREES:
            raise ConfigError(f"'{name}' is no kind of artifact: one of {', '.join(TREES)} is expected")
    return [stage for stage in TREES if stage in names or not names]


def wanted(grid: Grid, stage: Stage) -> list[str]:
    """Paths, below the folder of results, of all products that a configuration asks for."""
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
    """Everything of one kind under `results`, each file checked against its manifest by size and (once) by sha256."""
    found = Survey()
    for path in _candidates(stage, results / TREES[stage]):
        try:
            product = _folder(stage, path) if stage in KINDS else _file(stage, path)
        except ArtifactError as error:
            found.broken.append(str(error))
            continue
        if product is None:
            found.unfinished.append(path)
        else:
            found.finished.append(product)
    return found


def _visible(folder: Path) -> list[Path]:
    """Hidden files are temporary: locks, and what is being written."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith(".")) if folder.is_dir() else []


def _candidates(stage: Stage, tree: Path) -> Iterator[Path]:
    for path in _visible(tree):
        if stage == "evaluate" and path.is_dir():
            yield from _visible(path)
        else:
            yield path


def _folder(stage: Stage, folder: Path) -> Product | None:
    """A folder with a manifest; None where there is none yet."""
    manifest = folder / MANIFEST
    if not manifest.is_file():
        return None
    seen = {path: identity(path) for path in sorted(_inside(folder))}
    read = read_manifest(manifest, kind=KINDS[stage], verify="sha256")
    if read.id != folder.name:
        raise ArtifactError(f"{folder} holds {read.id}: rename it, or delete it and run its stage again")
    named = {manifest, *(folder / name for name in read.files)}
    if strange := sorted(set(seen) - named):
        raise ArtifactError(f"{strange[0]} isn't in {manifest}: delete it, or move it elsewhere")
    return Product(stage, folder, seen)


def _inside(folder: Path) -> Iterator[Path]:
    for path in _visible(folder):
        if path.is_dir() and path.name != PARTS:
            yield from _inside(path)
        elif path.is_file():
            yield path


def _file(stage: Stage, path: Path) -> Product | None:
    """An evaluation or a novelty measurement, complete by being there; None for a file of another name."""
    if FINGERPRINTED.match(path.name) is None or not path.is_file():
        return None
    seen = {path: identity(path)}
    if stage == "novelty":
        Novelty.read(path)
        return Product(stage, path, seen)
    run = Evaluation.read(path).run
    if run is not None and run.id != path.parent.name:
        raise ArtifactError(f"{path}: run.id: '{run.id}'. The folder has the run's id. Move the file there.")
    return Product(stage, path, seen)
