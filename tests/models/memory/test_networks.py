import math

import torch
from torch.autograd.functional import jacobian

from tlm_repro.models.memory.networks import GatedMLP, ResidualMLP, Rms, density, gelu_and_slope


def normed(output):
    return output / torch.sqrt(output.square().sum() / len(output) + 1)


def test_the_norm_pulls_and_bends_as_autograd_does():
    torch.manual_seed(0)
    output, left, right = torch.randn(3, 7, dtype=torch.float64) * 2
    norm = Rms(output)
    torch.testing.assert_close(norm.normed, normed(output))
    matrix = jacobian(normed, output)
    torch.testing.assert_close(norm.pull(left), matrix @ left)
    bent = jacobian(lambda at: left @ jacobian(normed, at, create_graph=True) @ right, output)
    torch.testing.assert_close(norm.bend(left, right), bent)


def test_a_norm_of_narrow_values_is_taken_in_fp32():
    norm = Rms(torch.ones(4, dtype=torch.bfloat16))
    assert norm.normed.dtype == torch.float32
    torch.testing.assert_close(norm.normed, torch.full((4,), 1 / math.sqrt(2)))


def test_gelu_comes_with_its_slope():
    inputs = torch.linspace(-4, 4, 9, dtype=torch.float64, requires_grad=True)
    value, slope = gelu_and_slope(inputs)
    share = 0.5 * (1 + torch.erf(inputs / math.sqrt(2)))
    torch.testing.assert_close(value, inputs * share)
    torch.testing.assert_close(slope, *torch.autograd.grad(value.sum(), inputs, retain_graph=True))
    assert torch.autograd.gradcheck(gelu_and_slope, inputs)
    torch.testing.assert_close(density(torch.zeros(1)), torch.tensor([1 / math.sqrt(2 * math.pi)]))


def written(memory, weights, keys, values):
    """The gradient of each weight, summed over tokens, from what the memory says that it writes."""
    return [(errors.mT @ inputs)[0] for inputs, errors in memory.writes(weights, keys, values)]


def test_what_a_memory_writes_is_its_gradient():
    torch.manual_seed(0)
    keys, values = torch.randn(2, 1, 5, 4, dtype=torch.float64)
    scale = torch.randn(1, 4, dtype=torch.float64)
    shapes = {
        "linear": [(4, 4)],
        "mlp": [(12, 4), (4, 12)],
        "gated": [(9, 4), (9, 4), (4, 9)],
    }
    for kind, each in shapes.items():
        weights = tuple(torch.randn(1, *shape, dtype=torch.float64, requires_grad=True) for shape in each)
        memory = GatedMLP() if kind == "gated" else ResidualMLP(scale, len(each)).expand(1)
        outputs = memory.read(lambda which, inputs, weights=weights: inputs @ weights[which].mT, keys)
        predicted = torch.stack([normed(token) for token in outputs[0]]) if kind == "gated" else outputs[0]
        gradients = torch.autograd.grad((predicted - values[0]).square().sum(), weights)
        for seen, expected in zip(written(memory, weights, keys, values), gradients, strict=True):
            torch.testing.assert_close(seen, expected[0])
