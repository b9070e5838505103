"""Attempts at a run in processes of their own: starting them, stopping them, and what they leave."""

import hashlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from tlm_repro.spec.execution import Execution
from tlm_repro.spec.run import RunSpec

Launch = Callable[..., ForkServerProcess]


def untracked(**keys: Any) -> Execution:
    """How a run is executed; no tracker writes into the current folder."""
    return Execution(**{"trackers": (), **keys})


def finish(process: ForkServerProcess) -> int | None:
    process.join(timeout=120)
    return process.exitcode


def steps_seen(place: Path) -> int:
    metrics = place / "checkpoints" / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def stop_at(
    process: ForkServerProcess, place: Path, step: int, number: signal.Signals, wait: float = 0.0
) -> int | None:
    """Sends `number` some time after `step` was taken."""
    while steps_seen(place) < step:
        assert process.is_alive(), f"ended before step {step}"
        time.sleep(0.002)
    time.sleep(wait)
    assert process.pid is not None
    os.kill(process.pid, number)
    return finish(process)


def weights(place: Path) -> str:
    return hashlib.sha256((place / "run" / "model" / "model.safetensors").read_bytes()).hexdigest()


def rows(place: Path) -> list[dict[str, Any]]:
    """The metrics without what differs from time to time."""
    lines = (place / "run" / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key != "tokens_per_second"} for line in lines]


def together(launch: Launch, spec: RunSpec, place: Path, **options: Any) -> list[ForkServerProcess]:
    """Two processes with a gloo group, as torchrun would start them."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = str(probe.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    ranks = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    return [launch(spec, place, environment, **options) for environment in ranks]
