import math
from typing import Any

import pytest
from pydantic import ValidationError

from tlm_repro.spec.learning_rates import Cosine, WarmedUp, WarmupStableDecay


def rates(schedule: WarmedUp, steps: int) -> list[float]:
    return [schedule.rate(step, steps) for step in range(1, steps + 1)]


def test_warms_up_linearly_then_follows_half_a_cosine() -> None:
    schedule = Cosine(peak=2.0, warmup_ratio=0.4, final_ratio=0.1)
    # (1 + cos(π k/6)) / 2 for k = 1…6, between 2.0 and 0.2
    cosine = [0.9330127, 0.75, 0.5, 0.25, 0.0669873, 0.0]
    assert rates(schedule, 10) == pytest.approx([0.5, 1.0, 1.5, 2.0] + [0.2 + 1.8 * value for value in cosine])


def test_ends_exactly_at_the_final_ratio() -> None:
    assert Cosine(peak=4e-4, warmup_ratio=0.01).rate(1000, 1000) == pytest.approx(4e-5, rel=1e-12)
    assert Cosine(peak=4e-4, warmup_ratio=0, final_ratio=0).rate(1000, 1000) == 0.0
    assert WarmupStableDecay(peak=4e-4, final_ratio=0.1).rate(1000, 1000) == pytest.approx(4e-5, rel=1e-12)
    assert WarmupStableDecay(peak=4e-4).rate(1000, 1000) == 0.0


def test_warm_up_may_take_the_whole_run() -> None:
    assert rates(Cosine(peak=1.0, warmup_ratio=1), 2) == [0.5, 1.0]


def rates_of_transformers(name: str, steps: int, **keys: Any) -> list[float]:
    """Those of `transformers.get_<name>`, with a peak of 3e-4."""
    import transformers
    from torch import nn
    from torch.optim import SGD

    optimizer = SGD([nn.Parameter()], lr=3e-4)
    schedule = getattr(transformers, f"get_{name}")(optimizer, num_training_steps=steps, **keys)
    rates = []
    for _ in range(steps):
        optimizer.step()
        schedule.step()
        rates += schedule.get_last_lr()
    return rates


@pytest.mark.process
def test_the_cosine_equals_the_schedule_of_transformers() -> None:
    theirs = rates_of_transformers("cosine_with_min_lr_schedule_with_warmup", 50, num_warmup_steps=7, min_lr_rate=0.1)
    assert rates(Cosine(peak=3e-4, warmup_ratio=7 / 50), 50) == pytest.approx(theirs, rel=1e-9)


def test_warm_up_then_stable_then_one_minus_the_root() -> None:
    schedule = WarmupStableDecay(peak=2.0, warmup_ratio=0.2, decay_ratio=0.4, final_ratio=0.1)
    decay = [0.2 + 1.8 * (1 - math.sqrt(passed)) for passed in (0.25, 0.5, 0.75, 1.0)]
    assert rates(schedule, 10) == pytest.approx([1.0, 2.0, 2.0, 2.0, 2.0, 2.0, *decay])


@pytest.mark.process
@pytest.mark.parametrize(("final_ratio", "first"), [(0.0, 1), (0.1, 5)])
def test_wsd_equals_the_schedule_of_transformers(final_ratio: float, first: int) -> None:
    """Theirs warms up from the final rate instead of 0."""
    keys = {"num_warmup_steps": 5, "num_decay_steps": 10, "decay_type": "1-sqrt", "min_lr_ratio": final_ratio}
    theirs = rates_of_transformers("wsd_schedule", 50, **keys)
    ours = rates(WarmupStableDecay(peak=3e-4, warmup_ratio=0.1, decay_ratio=0.2, final_ratio=final_ratio), 50)
    assert ours[first - 1 :] == pytest.approx(theirs[first - 1 :], rel=1e-9)


def test_decay_may_follow_the_warm_up_at_once() -> None:
    """Both halves round up to two steps of three: the decay takes what the warm-up leaves."""
    assert rates(WarmupStableDecay(peak=1.0, warmup_ratio=0.5, decay_ratio=0.5), 3) == [0.5, 1.0, 0.0]


def test_warm_up_and_decay_fit_into_the_run() -> None:
    with pytest.raises(ValidationError, match=r"warmup_ratio 0\.5 \+ decay_ratio 0\.6 is more than 1: lower one"):
        WarmupStableDecay(peak=1.0, warmup_ratio=0.5, decay_ratio=0.6)


@pytest.mark.parametrize("step", [0, 11])
@pytest.mark.parametrize("kind", [Cosine, WarmupStableDecay])
def test_refuses_steps_outside_the_run(kind: type[WarmedUp], step: int) -> None:
    with pytest.raises(ValueError, match=f"step {step} is outside 1…10"):
        kind(peak=1.0, warmup_ratio=0.2).rate(step, 10)
