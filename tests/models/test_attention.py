import math

import pytest
import torch
from small_models import small_spec

from tlm_repro.models.attention import CausalAttention, GatedAttention, causal_mask
from tlm_repro.models.feed_forward import SwiGLU
from tlm_repro.models.mixer import Context
from tlm_repro.models.rotary import Rotary, rotate

WIDTH, HEADS, THETA = 12, 2, 50.0
HEAD = WIDTH // HEADS


def turned(vector, position):
    """RoPE from its definition: a 2×2 rotation for each pair of channels."""
    result = vector.clone()
    for channel in range(0, HEAD, 2):
        angle = position * THETA ** (-channel / HEAD)
        cosine, sine = math.cos(angle), math.sin(angle)
        matrix = torch.tensor([[cosine, -sine], [sine, cosine]], dtype=vector.dtype)
        result[channel : channel + 2] = matrix @ vector[channel : channel + 2]
    return result


def slow_attention(module, hidden, positions, gate=None):
    """One sequence, head by head and token by token; `gate` is the matrix of arXiv 2505.06708 or None."""
    query_map, key_map, value_map = module.qkv.weight.split(WIDTH)
    mixed = torch.zeros_like(hidden)
    for head in range(HEADS):
        part = slice(head * HEAD, (head + 1) * HEAD)
        for now, token in enumerate(hidden):
            query = turned(query_map[part] @ token, positions[now])
            seen = range(now + 1)
            scores = [query @ turned(key_map[part] @ hidden[then], positions[then]) / math.sqrt(HEAD) for then in seen]
            shares = torch.stack(scores).exp() / torch.stack(scores).exp().sum()
            mixed[now, part] = sum(shares[then] * (value_map[part] @ hidden[then]) for then in seen)
            if gate is not None:
                mixed[now, part] *= 1 / (1 + torch.exp(-(gate[part] @ token)))
    return mixed @ module.output.weight.t()


def context(positions, **other):
    rotary = Rotary(HEAD, THETA)
    # Angles in double precision, so that the comparison is as sharp as the arithmetic.
    angles = positions[:, :, None, None].double() * torch.tensor(rotary.frequencies, dtype=torch.float64)
    return Context(rotary=torch.polar(torch.ones_like(angles), angles), **other)


@pytest.fixture
def model_spec():
    torch.manual_seed(0)
    return small_spec(layers=2, model_width=WIDTH, heads=HEADS, rope_theta=THETA, intermediate_sizes=(5, 3))


@pytest.mark.parametrize("mixer", [CausalAttention, GatedAttention])
def test_attention_follows_its_equations(model_spec, mixer):
    module = mixer(model_spec, 0).double()
    hidden, positions = torch.randn(2, 7, WIDTH, dtype=torch.float64), torch.arange(3, 10)
    gate = module.gate.weight if mixer is GatedAttention else None
    with torch.no_grad():
        result = module(hidden, context(positions[None]))
        expected = torch.stack([slow_attention(module, sequence, positions.tolist(), gate) for sequence in hidden])
    torch.testing.assert_close(result, expected, atol=1e-12, rtol=1e-12)


def test_the_gate_has_right_gradients(model_spec):
    module = GatedAttention(model_spec, 0).double()
    hidden = torch.randn(1, 3, WIDTH, dtype=torch.float64, requires_grad=True)

    def run(hidden, gate):
        return torch.func.functional_call(module, {"gate.weight": gate}, (hidden, context(torch.arange(3)[None])))

    gate = module.gate.weight.detach().requires_grad_()
    assert torch.autograd.gradcheck(run, (hidden, gate), fast_mode=True)


def test_a_gate_of_zero_halves_attention(model_spec):
    gated, plain = GatedAttention(model_spec, 0), CausalAttention(model_spec, 0)
    torch.nn.init.zeros_(gated.gate.weight)
    plain.load_state_dict({name: value for name, value in gated.state_dict().items() if not name.startswith("gate")})
    hidden, shared = (
        torch.randn(2, 5, WIDTH),
        Context(rotary=Rotary(HEAD, THETA).leading_rotations(5, torch.device("cpu"))),
    )
    torch.testing.assert_close(gated(hidden, shared), plain(hidden, shared) / 2)


def test_rotations_keep_length_and_depend_on_distance_alone():
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 1, 1, HEAD).unbind()
    rotary = Rotary(HEAD, THETA)

    def at(heads, position):
        return rotate(heads, rotary.rotations(torch.tensor([[position]])))

    assert at(query, 90).norm().item() == pytest.approx(query.norm().item(), rel=1e-6)
    near, far = (at(query, 5) * at(key, 2)).sum(), (at(query, 105) * at(key, 102)).sum()
    assert near.item() == pytest.approx(far.item(), abs=1e-5)
    torch.testing.assert_close(at(query, 0), query)


def test_rotations_made_while_evaluating_serve_training():
    rotary = Rotary(HEAD, THETA)
    with torch.inference_mode():
        rotary.leading_rotations(4, torch.device("cpu"))
    heads = torch.randn(1, 4, 1, HEAD, requires_grad=True)
    rotate(heads, rotary.leading_rotations(4, torch.device("cpu"))).sum().backward()
    assert heads.grad is not None


def test_rotations_of_bfloat16_heads_are_computed_in_full_precision():
    heads, rotary = (
        torch.randn(1, 3000, 1, HEAD).bfloat16(),
        Rotary(HEAD, THETA).leading_rotations(3000, torch.device("cpu")),
    )
    torch.testing.assert_close(rotate(heads, rotary), rotate(heads.float(), rotary).bfloat16(), atol=0, rtol=0)


def test_masks_are_made_only_where_they_are_needed():
    cpu = torch.device("cpu")
    assert causal_mask(5, 0, None, cpu) is None
    assert causal_mask(1, 9, None, cpu) is None
    assert causal_mask(2, 1, None, cpu).int().tolist() == [[[[1, 1, 0], [1, 1, 1]]]]
    padding = torch.tensor([[False, True, True], [True, True, False]])
    assert causal_mask(3, 0, padding, cpu).int().tolist() == [
        [[[1, 0, 0], [0, 1, 0], [0, 1, 1]]],
        [[[1, 0, 0], [1, 1, 0], [1, 1, 1]]],
    ]


def test_swiglu_follows_its_equation(model_spec):
    module, hidden = SwiGLU(model_spec, 1).double(), torch.randn(4, WIDTH, dtype=torch.float64)
    gate, up = hidden @ module.gate.weight.t(), hidden @ module.up.weight.t()
    expected = (gate / (1 + torch.exp(-gate)) * up) @ module.down.weight.t()
    torch.testing.assert_close(module(hidden), expected)
    assert sum(weight.numel() for weight in module.parameters()) == 3 * WIDTH * 3
