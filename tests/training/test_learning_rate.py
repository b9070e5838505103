import pytest
from torch import nn
from torch.optim import SGD
from transformers import get_cosine_with_min_lr_schedule_with_warmup

from tlm_repro.training.learning_rate import learning_rate


def test_warms_up_linearly_then_follows_half_a_cosine() -> None:
    rates = [learning_rate(step, steps=10, warmup_steps=4, peak=2.0, final_ratio=0.1) for step in range(1, 11)]
    # (1 + cos(π k/6)) / 2 for k = 1…6, between 2.0 and 0.2
    cosine = [0.9330127, 0.75, 0.5, 0.25, 0.0669873, 0.0]
    assert rates == pytest.approx([0.5, 1.0, 1.5, 2.0] + [0.2 + 1.8 * value for value in cosine])


def test_ends_exactly_at_the_final_ratio() -> None:
    assert learning_rate(1000, steps=1000, warmup_steps=10, peak=4e-4, final_ratio=0.1) == pytest.approx(
        4e-5, rel=1e-12
    )
    assert learning_rate(1000, steps=1000, warmup_steps=0, peak=4e-4, final_ratio=0.0) == 0.0


def test_warm_up_may_take_the_whole_run() -> None:
    assert [learning_rate(step, steps=2, warmup_steps=2, peak=1.0, final_ratio=0.1) for step in (1, 2)] == [0.5, 1.0]


def test_equals_the_schedule_of_transformers() -> None:
    optimizer = SGD([nn.Parameter()], lr=3e-4)
    theirs = get_cosine_with_min_lr_schedule_with_warmup(
        optimizer, num_warmup_steps=7, num_training_steps=50, min_lr_rate=0.1
    )
    for step in range(1, 51):
        optimizer.step()
        theirs.step()
        ours = learning_rate(step, steps=50, warmup_steps=7, peak=3e-4, final_ratio=0.1)
        assert ours == pytest.approx(theirs.get_last_lr()[0], rel=1e-9)


@pytest.mark.parametrize("step", [0, 11])
def test_refuses_steps_outside_the_run(step: int) -> None:
    with pytest.raises(ValueError, match=f"step {step} is outside 1…10"):
        learning_rate(step, steps=10, warmup_steps=2, peak=1.0, final_ratio=0.1)
