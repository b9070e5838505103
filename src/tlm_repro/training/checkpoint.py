"""Resumable state on disk: whole or absent, checked before it is used.

`<folder>/step-00000123/` has `weights.safetensors` (parameters and persistent buffers, shared tensors once),
`moments.safetensors` (the optimiser's state, `<parameter>/<key>`) and `state.json` (step, run, random generators, and
the size and sha256 of the other two). Nothing is pickled.
"""

import base64
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from tlm_repro.artifacts.checksums import sha256_file
from tlm_repro.artifacts.files import read_json, staging, write_json
from tlm_repro.artifacts.fingerprint import fingerprint
from tlm_repro.errors import ArtifactError, CheckpointError

SCHEMA = 1
KEEP = 2  # checkpoints
WEIGHTS, MOMENTS, STATE = "weights.safetensors", "moments.safetensors", "state.json"


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint. `rng` has one entry per process (`random_state`). `extra` was saved with it."""

    folder: Path
    step: int
    rng: list[dict[str, str]]
    extra: dict[str, Any]

    def restore(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Copies the tensors into `model` and `optimizer`. Raises CheckpointError if names or shapes differ."""
        weights, own = dict(_tensors(self.folder / WEIGHTS)), _weights(model)
        saved, needed = ({name: tuple(tensor.shape) for name, tensor in side.items()} for side in (weights, own))
        if saved != needed:
            names = sorted(name for name in saved.keys() | needed.keys() if saved.get(name) != needed.get(name))
            raise CheckpointError(
                f"{self.folder} doesn't fit the model: {names[0]} has shape {saved.get(names[0])}, the model's has "
                f"{needed.get(names[0])} ({len(names)} tensors differ): delete {self.folder.parent} to start anew"
            )
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(weights[name])
        _restore_moments(self.folder / MOMENTS, model, optimizer)


@dataclass(frozen=True)
class Snapshot:
    """Copies, in the host's memory, of what a checkpoint holds. Training may change its own tensors meanwhile."""

    step: int
    weights: dict[str, Tensor]
    moments: dict[str, Tensor]
    rng: list[dict[str, str]]
    extra: dict[str, Any]

    @classmethod
    def of(
        cls, step: int, model: nn.Module, optimizer: Optimizer, rng: list[dict[str, str]], extra: dict[str, Any]
    ) -> Self:
        weights, moments = _weights(model), _moments(model, optimizer)
        return cls(step, _copies(weights), _copies(moments), rng, extra)


class Checkpoints:
    """The checkpoints of one run. `run` is its id, which is saved in each of them."""

    def __init__(self, folder: Path, run: str) -> None:
        self.folder = folder
        self.run = run
        self._unusable: set[Path] = set()

    def write(self, snapshot: Snapshot) -> Path:
        """Writes `step-…`, then removes all but the last two.

        Raises CheckpointError if it can't. The earlier ones are kept.
        """
        target = self.folder / f"step-{snapshot.step:08d}"
        try:
            with staging(self.folder, target.name) as temporary:
                save_file(snapshot.weights, temporary / WEIGHTS)
                save_file(snapshot.moments, temporary / MOMENTS)
                state = {"step": snapshot.step, "rng": snapshot.rng, "extra": snapshot.extra}
                self._write_state(temporary, state)
                _sync(*temporary.iterdir(), temporary)
            _sync(self.folder)
        except (OSError, SafetensorError) as error:  # a full disk can raise either
            earlier = self._steps()
            consequence = (
                f"{earlier[-1].name} is intact and the next attempt resumes there"
                if earlier
                else "no earlier one exists"
            )
            raise CheckpointError(
                f"{target} could not be written ({error}): free some space or repair the file system under "
                f"{self.folder}, then run again; {consequence}"
            ) from error
        self._unusable.discard(target)
        usable = [path for path in self._steps() if path <= target and path not in self._unusable]
        self._remove(path for path in self._steps() if path not in usable[-KEEP:])
        return target

    def latest(self) -> Checkpoint | None:
        """The newest usable checkpoint, or None if there is none at all. Removes what a killed save left behind.

        A damaged checkpoint is skipped, with a warning on stderr, in favour of the one before.

        Raises:
            CheckpointError: a checkpoint belongs to another run, or all of them are damaged.
        """
        for stray in self.folder.glob(".step-*"):
            shutil.rmtree(stray, ignore_errors=True)
        saved = self._steps()
        for path in reversed(saved):
            try:
                return self._read(path)
            except ArtifactError as error:
                self._unusable.add(path)
                print(f"warning: skipping the damaged checkpoint {path}: {error}", file=sys.stderr)
        if saved:
            raise CheckpointError(
                f"none of the {len(saved)} checkpoints under {self.folder} is usable: restore one, or delete "
                f"{self.folder} to train from the start"
            )
        return None

    def last_saved(self) -> str:
        """The newest one, as messages name it."""
        steps = self._steps()
        return str(steps[-1]) if steps else "none (training starts from the beginning)"

    def clear(self, keep: int = 0) -> None:
        """Removes all but the last `keep`."""
        steps = self._steps()
        self._remove(iter(steps[: len(steps) - keep]))

    def _steps(self) -> list[Path]:
        """Oldest first."""
        return sorted(path for path in self.folder.glob("step-*") if re.fullmatch(r"step-\d{8,}", path.name))

    def _remove(self, paths: Iterator[Path]) -> None:
        for path in list(paths):
            # Renamed first: a kill during the removal leaves a stray folder, not a damaged checkpoint.
            stray = path.replace(path.with_name(f".{path.name}.dropped"))
            shutil.rmtree(stray, ignore_errors=True)

    def _write_state(self, folder: Path, state: dict[str, Any]) -> None:
        files = {
            name: {"size": (folder / name).stat().st_size, "sha256": sha256_file(folder / name)}
            for name in (WEIGHTS, MOMENTS)
        }
        state = {"schema": SCHEMA, "run": self.run, **state, "files": files}
        write_json(folder / STATE, {**state, "sha256": fingerprint(state, 64)})

    def _read(self, path: Path) -> Checkpoint:
        """Raises ArtifactError if it is damaged, CheckpointError if it belongs to another run."""
        state = read_json(path / STATE)
        digest = state.pop("sha256", None) if isinstance(state, dict) else None
        if digest != fingerprint(state, 64) or state.get("schema") != SCHEMA:
            raise ArtifactError(f"{STATE} doesn't match its own sha256 or isn't of schema {SCHEMA}")
        if state["run"] != self.run:
            raise CheckpointError(
                f"{path} belongs to the run {state['run']}, this is {self.run}: pass another checkpoint folder"
            )
        for name, entry in state["files"].items():
            file = path / name
            size = file.stat().st_size if file.is_file() else None
            if size != entry["size"]:
                raise ArtifactError(f"{name} has {size} bytes, but {entry['size']} were saved")
            if sha256_file(file) != entry["sha256"]:
                raise ArtifactError(f"{name} has another sha256 than was saved")
        return Checkpoint(path, state["step"], state["rng"], state["extra"])


def random_state() -> dict[str, str]:
    """The states of this process's torch generators, in base64. Training uses no others."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return {device: base64.b64encode(state.numpy().tobytes()).decode() for device, state in states.items()}


def set_random_state(states: dict[str, str]) -> None:
    """The inverse of `random_state`. Devices that this machine lacks are ignored."""
    tensors = {
        device: torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
        for device, text in states.items()
    }
    torch.set_rng_state(tensors["cpu"])
    if "cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["cuda"])


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name. A shared tensor has only its first name."""
    persistent = model.state_dict().keys()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in persistent}
    return {name: tensor.detach() for name, tensor in {**dict(model.named_parameters()), **buffers}.items()}


def _moments(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}/{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def _copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: tensor.to("cpu", copy=True, memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }


def _restore_moments(path: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Uses `load_state_dict`, which puts each value on the device that the optimiser needs."""
    parameters = dict(model.named_parameters())
    order = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    position = {id(parameter): index for index, parameter in enumerate(order)}
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in _tensors(path):
        parameter, key = name.rsplit("/", 1)
        state.setdefault(position[id(parameters[parameter])], {})[key] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - not a mapping
            # Cloned, because a tensor of the memory-mapped file would outlive the file.
            yield name, file.get_tensor(name).clone()


def _sync(*paths: Path) -> None:
    """Flushes files and folders to the disk, in the given order."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
