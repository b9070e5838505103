from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW

from tlm_repro.architectures.accounting import parameters
from tlm_repro.models.hugging_face.configuration import TLMConfig
from tlm_repro.models.hugging_face.decoder import TLMForCausalLM
from tlm_repro.models.mixer import Block
from tlm_repro.spec.optimizers import AdamW as AdamWSpec
from tlm_repro.spec.run import RunSpec
from tlm_repro.training.checkpoint import Checkpoints, Snapshot, random_state
from tlm_repro.training.optimizers import build
from tlm_repro.training.optimizers.adamw import PeriodicAdamW
from tlm_repro.training.optimizers.periodic import Periodic, parameter_groups

PERIODS = (1, 2, 3)


@pytest.mark.parametrize("tied", [True, False])
def test_matrices_decay_and_norms_do_not(tiny_run: Callable[..., RunSpec], tied: bool) -> None:
    spec = tiny_run(model={"tied_embeddings": tied}).model
    model = TLMForCausalLM(TLMConfig.from_spec(spec))
    decayed, others = parameter_groups(model, 0.1)
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    # Two norms a layer and one at the end, 32 gains each; everything else is a matrix.
    assert sum(parameter.numel() for parameter in others["params"]) == 7 * 32
    assert sum(parameter.numel() for parameter in decayed["params"]) == parameters(spec).total - 7 * 32
    norms = {id(module.weight) for module in model.modules() if isinstance(module, nn.RMSNorm)}
    assert {id(parameter) for parameter in others["params"]} == norms


def test_frozen_parameters_are_left_out() -> None:
    model = nn.Linear(3, 2)
    model.weight.requires_grad_(False)
    decayed, others = parameter_groups(model, 0.1)
    assert decayed["params"] == []
    assert others["params"] == [model.bias]


def test_steps_follow_the_equations_of_adamw() -> None:
    """Loshchilov and Hutter (2019), algorithm 2, in float64."""
    model = nn.Linear(4, 3)
    optimizer = adamw(model, eps=1e-4, weight_decay=0.3)
    generator = np.random.default_rng(0)
    expected = {name: parameter.detach().double().numpy().copy() for name, parameter in model.named_parameters()}
    first = {name: np.zeros_like(value) for name, value in expected.items()}
    second = {name: np.zeros_like(value) for name, value in expected.items()}
    for step in range(1, 6):
        for name, parameter in model.named_parameters():
            gradient = generator.normal(size=expected[name].shape)
            parameter.grad = torch.tensor(gradient, dtype=torch.float32)
            first[name] = 0.9 * first[name] + 0.1 * gradient
            second[name] = 0.95 * second[name] + 0.05 * gradient**2
            corrected = (first[name] / (1 - 0.9**step)) / (np.sqrt(second[name] / (1 - 0.95**step)) + 1e-4)
            decay = 0.3 if name == "weight" else 0.0
            expected[name] = expected[name] - 0.05 * (corrected + decay * expected[name])
        optimizer.take_step(step, 0.05)
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(parameter.detach().numpy(), expected[name], rtol=2e-5, atol=1e-6)


class LinearLevel(nn.Linear, Block):
    def __init__(self, period: int | None) -> None:
        super().__init__(4, 3)
        self.update_period = period


def adamw(model: nn.Module, **keys: float) -> Periodic:
    return build(AdamWSpec(kind="adamw", **keys), model, torch.device("cpu"))


class Chain(nn.Module):
    """Linear maps that take a step every so many steps of the run; a period of None: one that says nothing."""

    def __init__(self, *periods: int | None) -> None:
        super().__init__()
        self.levels = nn.ModuleList(LinearLevel(period) for period in periods)


def chain(*periods: int | None) -> Chain:
    torch.manual_seed(5)
    return Chain(*periods)


def gradients(model: nn.Module, step: int) -> dict[str, Tensor]:
    """Those of a step, the same for every model of the same shape."""
    generator = torch.Generator().manual_seed(step)
    return {name: torch.randn(weight.shape, generator=generator) for name, weight in model.named_parameters()}


def take(model: nn.Module, optimizer: Periodic, step: int, scale: float = 1.0) -> None:
    for (_, parameter), gradient in zip(model.named_parameters(), gradients(model, step).values(), strict=True):
        parameter.grad = scale * gradient
    optimizer.take_step(step, 0.01 * step)


def slow_periodic_adamw(weight: np.ndarray, per_step: list[np.ndarray], period: int, decay: float) -> np.ndarray:
    """The rule, for one tensor: every `period` steps one of AdamW, on the mean of their gradients."""
    first, second = np.zeros_like(weight), np.zeros_like(weight)
    for fired, end in enumerate(range(period, len(per_step) + 1, period), start=1):
        gradient = sum(per_step[end - period : end]) / period
        first = 0.9 * first + 0.1 * gradient
        second = 0.95 * second + 0.05 * gradient**2
        corrected = (first / (1 - 0.9**fired)) / (np.sqrt(second / (1 - 0.95**fired)) + 1e-4)
        weight = weight - 0.01 * end * (corrected + decay * weight)
    return weight


@pytest.mark.parametrize("steps", [1, 3, 11, 12])
def test_slow_groups_follow_their_rule(steps: int) -> None:
    model = chain(*PERIODS)
    optimizer = adamw(model, eps=1e-4, weight_decay=0.3)
    before = {name: weight.detach().double().numpy() for name, weight in model.named_parameters()}  # a copy
    seen = [gradients(model, step) for step in range(1, steps + 1)]
    for step in range(1, steps + 1):
        take(model, optimizer, step)
    for name, weight in model.named_parameters():
        period, decay = PERIODS[int(name.split(".")[1])], 0.3 if name.endswith("weight") else 0.0
        expected = slow_periodic_adamw(before[name], [each[name].double().numpy() for each in seen], period, decay)
        np.testing.assert_allclose(weight.detach().numpy(), expected, rtol=2e-5, atol=1e-6, err_msg=name)
        fired = optimizer.state[weight]["step"].item()
        assert fired == steps // period


def test_a_period_of_one_is_plain_adamw_to_the_bit_and_keeps_nothing_more() -> None:
    ones, plain = chain(1, 1), chain(None, None)
    optimizer = adamw(ones)
    groups = [
        {"params": [weight for weight in plain.parameters() if weight.ndim == 2], "weight_decay": 0.1},
        {"params": [weight for weight in plain.parameters() if weight.ndim == 1], "weight_decay": 0.0},
    ]
    reference = AdamW(groups, betas=(0.9, 0.95), eps=1e-8, fused=True)
    for step in range(1, 8):
        take(ones, optimizer, step)
        for weight, gradient in zip(plain.parameters(), gradients(plain, step).values(), strict=True):
            weight.grad = gradient
        for group in reference.param_groups:
            group["lr"] = 0.01 * step
        reference.step()
    for ours, theirs in zip(ones.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        assert optimizer.state[ours].keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert all(torch.equal(optimizer.state[ours][key], reference.state[theirs][key]) for key in ("step", "exp_avg"))
    assert all(group["fused"] for group in optimizer.param_groups)


def test_between_its_steps_a_slow_group_stands_still() -> None:
    model = chain(4)
    optimizer = adamw(model)
    weight = model.levels[0].weight
    history = [weight.detach().clone()]
    for step in range(1, 10):
        take(model, optimizer, step)
        history.append(weight.detach().clone())
    moved = [step for step in range(1, 10) if not torch.equal(history[step], history[step - 1])]
    assert moved == [4, 8]
    # The unfinished third period is held and not applied.
    torch.testing.assert_close(optimizer.state[weight]["gradient_sum"], gradients(model, 9)["levels.0.weight"])


def test_a_period_is_one_adamw_step_on_the_mean_gradient() -> None:
    slow, plain = chain(4), chain(1)
    optimizer, other = (adamw(model) for model in (slow, plain))
    for step in range(1, 5):
        take(slow, optimizer, step)
    for name, weight in plain.named_parameters():
        weight.grad = torch.stack([gradients(plain, step)[name] for step in range(1, 5)]).mean(dim=0)
    other.take_step(4, 0.04)
    for ours, theirs in zip(slow.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-7, rtol=1e-6)


def test_a_checkpoint_in_the_middle_of_a_period_loses_nothing(tmp_path: Path) -> None:
    calm = chain(*PERIODS, 8)
    calm_optimizer = adamw(calm)
    for step in range(1, 14):
        take(calm, calm_optimizer, step)

    model = chain(*PERIODS, 8)
    optimizer = adamw(model)
    for step in range(1, 14):
        take(model, optimizer, step)
        # Each step in another process, as it were: step 1 is in the middle of every first period.
        Checkpoints(tmp_path, "run").write(Snapshot.of(step, model, optimizer, [random_state()], {}))
        model = chain(*PERIODS, 8)
        optimizer = adamw(model)
        found = Checkpoints(tmp_path, "run").latest()
        assert found is not None
        found.restore(model, optimizer)
    for ours, theirs in zip(model.parameters(), calm.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        for key, value in calm_optimizer.state[theirs].items():
            assert torch.equal(optimizer.state[ours][key], value), key


def test_groups_name_their_period() -> None:
    model = nn.Sequential(chain(1, 8, None), nn.LayerNorm(3))
    found = [
        (group["update_period"], group["weight_decay"], sum(weight.numel() for weight in group["params"]))
        for group in parameter_groups(model, 0.1)
    ]
    assert found == [(1, 0.1, 24), (1, 0.0, 3 + 3 + 6), (8, 0.1, 12), (8, 0.0, 3)]


def test_sums_of_narrow_gradients_are_kept_in_full_precision() -> None:
    weight = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    optimizer = PeriodicAdamW([{"params": [weight], "update_period": 300}], lr=0.1, fused=False)
    for step in range(1, 300):
        weight.grad = torch.ones(1, dtype=torch.bfloat16)
        optimizer.take_step(step, 0.1)
    assert optimizer.state[weight]["gradient_sum"].item() == 299  # bf16 stops counting at 256
