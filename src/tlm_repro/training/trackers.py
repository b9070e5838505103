"""Curves in TensorBoard and W&B: accelerate's trackers, fed with the rows of `metrics.jsonl`.

accelerate's part is imported only if a tracker is used.
"""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tlm_repro.errors import ConfigError
from tlm_repro.spec.run import RunSpec

KNOWN = ("tensorboard", "wandb")
PROJECT = "tlm-repro"


def check(names: Sequence[str]) -> None:
    """Raises ConfigError for a tracker that isn't known or whose package isn't installed."""
    for name in names:
        if name not in KNOWN:
            raise ConfigError(f"trackers: '{name}' is unknown: choose among {', '.join(KNOWN)}")
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f"trackers: {name} is not installed: pip install {name}, or take it off the list")


def start(names: Sequence[str], spec: RunSpec, folder: Path, *, step: int) -> list[Any]:
    """Starts the trackers of a run that continues after `step`. Rows of later steps that they already have are hidden.

    TensorBoard reads `folder`/tensorboard/<run>. W&B gets a run of this id in the project `tlm-repro`. Its files are in
    `folder`/wandb.

    Raises:
        ConfigError: a service can't be reached or refuses this user.
    """
    from accelerate.tracking import TensorBoardTracker, WandBTracker

    started: list[Any] = []
    for name in names:
        if name == "tensorboard":
            tracker = TensorBoardTracker(spec.id, folder / "tensorboard", purge_step=step + 1)
        else:
            (folder / "wandb").mkdir(parents=True, exist_ok=True)
            tracker = WandBTracker(
                PROJECT, id=spec.id, name=spec.id, resume="allow", config=spec.canonical(), dir=str(folder)
            )
        try:
            tracker.start()
        except Exception as error:  # each service raises its own types
            raise ConfigError(
                f"trackers: {name} can't start ({error}): log in to it, set WANDB_MODE=offline for wandb, or take it "
                "off the list"
            ) from error
        started.append(tracker)
    return started
