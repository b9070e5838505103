import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from attempts import untracked

from tlm_repro.data.shards import TokenData
from tlm_repro.devices import arithmetic_of
from tlm_repro.errors import ArtifactError
from tlm_repro.records.attempt import ATTEMPT, Attempt
from tlm_repro.spec.run import RunSpec
from tlm_repro.training.trainer import pretrain


def test_training_says_who_trains(periodic_data: TokenData, tiny_run: Callable[..., RunSpec], place: dict[str, Path]):
    before = time.time()
    pretrain(tiny_run(steps=2), periodic_data, execution=untracked(), **place)
    attempt = Attempt.read(place["checkpoints"] / ATTEMPT)
    assert (attempt.device, attempt.processes, attempt.arithmetic) == ("cpu", 1, "fp32")
    assert (attempt.host, attempt.pid) == (platform.node(), os.getpid())
    assert before <= attempt.started <= time.time()
    assert not attempt.has_ended()


def test_arithmetic_is_what_torch_was_told(monkeypatch: pytest.MonkeyPatch):
    assert (arithmetic_of("fp32"), arithmetic_of("bf16")) == ("fp32", "bf16")
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert (arithmetic_of("fp32"), arithmetic_of("bf16")) == ("tf32", "bf16")


@pytest.mark.parametrize("raw", [None, [], {}, {"device": "cpu"}])
def test_what_isnt_an_attempt_is_refused(raw: object):
    with pytest.raises(ArtifactError, match=r"attempt\.json: (the whole file|device|processes): "):
        Attempt.from_values(raw, Path(ATTEMPT))
