"""Runs in processes of their own that are killed, told to stop and restarted; their end must not show it."""

import hashlib
import json
import multiprocessing
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tlm_repro.data.shards import TokenData
from tlm_repro.spec import RunSpec

STEPS = 60
Launch = Callable[..., ForkServerProcess]


@pytest.fixture(scope="module")
def launch(periodic_data: TokenData) -> Iterator[Launch]:
    """Starts an attempt from a server that has the imports behind it: half a second a process instead of five."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent))
        patch.setenv("OMP_NUM_THREADS", "1")
        import attempt

        context = multiprocessing.get_context("forkserver")
        assert isinstance(context, ForkServerContext)
        context.set_forkserver_preload(["tlm_repro.training.trainer"])

        def start(
            spec: RunSpec, place: Path, environment: dict[str, str] | None = None, **options: Any
        ) -> ForkServerProcess:
            manifest = str(periodic_data.manifest.folder / "manifest.json")
            arguments = (spec.to_json(), manifest, str(place), options, environment or {})
            process = context.Process(target=attempt.attempt, args=arguments, daemon=True)
            process.start()
            return process

        yield start


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


MODELS = {
    "transformer": {"architecture": "transformer"},
    "titans": {"architecture": "titans", "mixer": {"memory_head_dim": 8, "chunk": 8, "window": 12, "persistent": 2}},
    "hope_attention": {"architecture": "hope_attention"},
}


@pytest.mark.parametrize(
    ("architecture", "micro_batch"), [("transformer", 8), ("transformer", 2), ("titans", 4), ("hope_attention", 4)]
)
def test_a_run_killed_and_stopped_ends_in_the_same_bits(
    launch: Launch, tiny_run: Callable[..., RunSpec], tmp_path: Path, architecture: str, micro_batch: int
) -> None:
    # The levels of Hope-attention take a step every 1, 2, 4 and 8 steps: most stops are in the middle of a period.
    spec, calm, rough = (
        tiny_run(steps=STEPS, model=MODELS[architecture]),
        tmp_path / "calm",
        tmp_path / "rough",
    )
    options = {"micro_batch_sequences": micro_batch, "validations": 4, "checkpoint_seconds": 0.0}
    undisturbed = launch(spec, calm, **options)
    moments = random.Random(micro_batch)

    # A checkpoint after every step: a random moment is often in the middle of a save.
    first = launch(spec, rough, **options)
    assert stop_at(first, rough, 10, signal.SIGKILL, moments.uniform(0, 0.05)) == -signal.SIGKILL
    second = launch(spec, rough, **options)
    assert stop_at(second, rough, 25, signal.SIGKILL, moments.uniform(0, 0.05)) == -signal.SIGKILL
    # And one at the signal alone.
    third = launch(spec, rough, **{**options, "checkpoint_seconds": 600.0})
    assert stop_at(third, rough, 45, signal.SIGTERM) == 75
    message = (rough / "error-0.txt").read_text()
    assert "stopped by SIGTERM after step" in message
    assert str(rough / "checkpoints" / "step-000000") in message
    assert finish(launch(spec, rough, **options)) == 0

    assert finish(undisturbed) == 0
    assert weights(rough) == weights(calm)
    assert rows(rough) == rows(calm)
    assert [row["step"] for row in rows(rough)] == list(range(1, STEPS + 1))


def test_a_second_process_waits_and_finds_the_work_done(
    launch: Launch, tiny_run: Callable[..., RunSpec], tmp_path: Path
) -> None:
    spec = tiny_run(steps=30)
    pair = [launch(spec, tmp_path) for _ in range(2)]
    assert [finish(process) for process in pair] == [0, 0]
    assert [row["step"] for row in rows(tmp_path)] == list(range(1, 31))


def together(launch: Launch, spec: RunSpec, place: Path, **options: Any) -> list[ForkServerProcess]:
    """Two processes with a gloo group, as torchrun would start them."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = str(probe.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    ranks = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    return [launch(spec, place, environment, **options) for environment in ranks]


@pytest.mark.parametrize("architecture", ["transformer", "hope_attention"])
def test_two_processes_train_like_one_and_stop_together(
    launch: Launch, tiny_run: Callable[..., RunSpec], tmp_path: Path, architecture: str
) -> None:
    # A large eps: AdamW divides by the root of the gradient's square, which makes much of rounding where it is tiny.
    spec = tiny_run(steps=20, eps=1e-3, model=MODELS[architecture])
    one, two = tmp_path / "one", tmp_path / "two"
    assert finish(launch(spec, one)) == 0
    pair = together(launch, spec, two, micro_batch_sequences=2)
    assert stop_at(pair[1], two, 5, signal.SIGUSR1) == 75
    assert finish(pair[0]) == 75
    messages = [(two / f"error-{rank}.txt").read_text() for rank in range(2)]
    assert "a signal in another process" in messages[0]
    assert messages[1].split("after")[1] == messages[0].split("after")[1]
    assert [finish(process) for process in together(launch, spec, two, micro_batch_sequences=2)] == [0, 0]

    ours, theirs = (load_file(place / "run" / "model" / "model.safetensors") for place in (two, one))
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in theirs) < 1e-5
    assert [row["loss"] for row in rows(two)] == pytest.approx([row["loss"] for row in rows(one)], abs=1e-5)
    assert (two / "summary-0.json").read_text() == (two / "summary-1.json").read_text()
