from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from tlm_repro.models.accounting import parameters
from tlm_repro.models.configuration import TLMConfig
from tlm_repro.models.decoder import TLMForCausalLM
from tlm_repro.spec import RunSpec
from tlm_repro.training.optimizer import adamw, parameter_groups


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


def test_steps_follow_the_equations_of_adamw(tiny_run: Callable[..., RunSpec]) -> None:
    """Loshchilov and Hutter (2019), algorithm 2, in float64."""
    training = tiny_run(eps=1e-4, weight_decay=0.3, peak_learning_rate=0.05).training
    model = nn.Linear(4, 3)
    optimizer = adamw(model, training, torch.device("cpu"))
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
        optimizer.step()
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(parameter.detach().numpy(), expected[name], rtol=2e-5, atol=1e-6)
