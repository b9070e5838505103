"""Runs in processes of their own that are killed, told to stop and restarted; their end must not show it."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attempts import Launch, finish, rows, steps_seen, stop_at, together, untracked, weights
from safetensors.torch import load_file

from tlm_repro.artifacts.manifest import read_manifest
from tlm_repro.data.shards import TokenData
from tlm_repro.spec.run import RunSpec

STEPS = 60


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
    options = {"micro_batch_sequences": micro_batch, "validations": 4, "checkpoint_seconds": 0}
    undisturbed = launch(spec, calm, **options)
    moments = random.Random(micro_batch)

    # A checkpoint after every step: a random moment is often in the middle of a save.
    first = launch(spec, rough, **options)
    assert stop_at(first, rough, 10, signal.SIGKILL, moments.uniform(0, 0.05)) == -signal.SIGKILL
    second = launch(spec, rough, **options)
    assert stop_at(second, rough, 25, signal.SIGKILL, moments.uniform(0, 0.05)) == -signal.SIGKILL
    # And one at the signal alone.
    third = launch(spec, rough, **{**options, "checkpoint_seconds": 600})
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
    manifest = read_manifest(two / "run" / "manifest.json")
    assert manifest.summary["device_seconds"] == pytest.approx(2 * manifest.wall_time_s, abs=2e-3)  # of both attempts


@pytest.mark.parametrize("micro_batch", [4, 1], ids=["accumulation 1", "accumulation 4"])
@pytest.mark.parametrize("processes", [1, 2])
def test_five_kills_at_random_moments_leave_no_trace(
    launch: Launch, tiny_run: Callable[..., RunSpec], tmp_path: Path, processes: int, micro_batch: int
) -> None:
    """Twenty in all four cases, SIGKILL and SIGTERM mixed; one of two processes is hit, the other ends by itself."""
    spec, calm, rough = tiny_run(steps=100, batch_sequences=4 * processes), tmp_path / "calm", tmp_path / "rough"
    options = {"micro_batch_sequences": micro_batch, "validations": 2, "checkpoint_seconds": 0}
    begin = attempts_of(launch, processes)
    undisturbed = begin(spec, calm, **options)
    assert [finish(process) for process in undisturbed] == [0] * processes

    moments = random.Random(100 * processes + micro_batch)
    for _ in range(5):
        target = steps_seen(rough) + moments.randrange(2, 10)
        victims = begin(spec, rough, **options)
        victim, number = moments.choice(victims), moments.choice((signal.SIGKILL, signal.SIGTERM))
        code = stop_at(victim, rough, target, number, moments.uniform(0, 0.03))
        others = [finish(process) for process in victims if process is not victim]
        if number is signal.SIGKILL:
            assert code == -signal.SIGKILL
            assert 0 not in others
        else:
            assert {code, *others} == {75}
    assert [finish(process) for process in begin(spec, rough, **options)] == [0] * processes
    assert weights(rough) == weights(calm)
    assert rows(rough) == rows(calm)


def attempts_of(launch: Launch, processes: int) -> Callable[..., list[Any]]:
    """What starts an attempt of one process or of two."""
    if processes == 2:
        return lambda spec, place, **options: together(launch, spec, place, **options)
    return lambda spec, place, **options: [launch(spec, place, **options)]


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_a_run_resumes_on_another_number_of_processes(
    launch: Launch, tiny_run: Callable[..., RunSpec], tmp_path: Path, order: tuple[int, int]
) -> None:
    spec = tiny_run(steps=20, eps=1e-3)
    one, changed = tmp_path / "one", tmp_path / "changed"
    assert finish(launch(spec, one)) == 0
    first = attempts_of(launch, order[0])(spec, changed, micro_batch_sequences=2)
    assert stop_at(first[0], changed, 8, signal.SIGTERM) == 75
    assert {finish(process) for process in first} == {75}
    again = attempts_of(launch, order[1])(spec, changed, micro_batch_sequences=4)
    assert [finish(process) for process in again] == [0] * order[1]
    ours, theirs = (load_file(place / "run" / "model" / "model.safetensors") for place in (changed, one))
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in theirs) < 1e-5
    assert [row["loss"] for row in rows(changed)] == pytest.approx([row["loss"] for row in rows(one)], abs=1e-5)


def test_a_rank_that_dies_ends_the_launch_within_seconds(
    tiny_run: Callable[..., RunSpec], periodic_data: TokenData, tmp_path: Path
) -> None:
    """Through the command and torchrun, as a cluster runs it; nobody stays behind."""
    spec, manifest = tiny_run(steps=5_000, warmup_steps=1), periodic_data.manifest.folder / "manifest.json"
    command = [sys.executable, "-m", "tlm_repro", "pretrain", "--spec", spec.to_json()]
    command += ["--data", str(manifest), "--checkpoints", str(tmp_path / "checkpoints")]
    command += ["--out", str(tmp_path / "run" / "manifest.json")]
    command += ["--execution", untracked(processes=2, validations=1).to_json()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (tmp_path / "log").open("w") as log:
        launcher = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            end = time.monotonic() + 60
            while steps_seen(tmp_path) < 3:
                assert launcher.poll() is None, (tmp_path / "log").read_text()
                assert time.monotonic() < end
                time.sleep(0.02)
            ranks = children(launcher.pid)
            assert len(ranks) == 2
            os.kill(ranks[1], signal.SIGKILL)
            began = time.monotonic()
            assert launcher.wait(timeout=40) != 0
            assert time.monotonic() - began < 15
        finally:
            launcher.kill()
    assert not [rank for rank in ranks if Path(f"/proc/{rank}").exists()]


def children(parent: int) -> list[int]:
    text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return [int(child) for child in text.split() if "pretrain" in Path(f"/proc/{child}/cmdline").read_text()]


def test_two_processes_compile_and_checkpoint_layers_too(
    launch: Launch, tiny_run: Callable[..., RunSpec], tmp_path: Path
) -> None:
    spec = tiny_run(steps=4, eps=1e-3)
    plain, changed = tmp_path / "plain", tmp_path / "changed"
    assert finish(launch(spec, plain)) == 0
    options = {"compile": True, "backend": "eager", "activation_checkpointing": True, "micro_batch_sequences": 2}
    assert [finish(process) for process in together(launch, spec, changed, **options)] == [0, 0]
    ours, theirs = (load_file(place / "run" / "model" / "model.safetensors") for place in (changed, plain))
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in theirs) < 1e-5
