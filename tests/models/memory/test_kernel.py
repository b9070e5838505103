"""The hand-written chunk against the general path, whose own tests hold it to the equations."""

import pytest
import torch
import torch.nn.functional as F

from tlm_repro.models.memory.coefficients import Rates, coefficients
from tlm_repro.models.memory.fast_weights import scan_pieces
from tlm_repro.models.memory.kernel import scan_chunks
from tlm_repro.models.memory.networks import ResidualMLP

ROWS, TIME, WIDTH, HIDDEN, CHUNK = 3, 11, 4, 10, 4


def leaves():
    torch.manual_seed(0)
    shapes = {
        "keys": (ROWS, TIME, WIDTH), "values": (ROWS, TIME, WIDTH), "queries": (ROWS, TIME, WIDTH),
        "momentum": (ROWS, 1, TIME), "retention": (ROWS, 1, TIME), "step": (ROWS, 1, TIME),
        "scale": (ROWS, 1, WIDTH),
        "first": (ROWS, HIDDEN, WIDTH), "second": (ROWS, WIDTH, HIDDEN),
        "first_momentum": (ROWS, HIDDEN, WIDTH), "second_momentum": (ROWS, WIDTH, HIDDEN),
    }  # fmt: skip
    return {name: torch.randn(shape, dtype=torch.float64).requires_grad_() for name, shape in shapes.items()}


def run(given, by_hand, keep):
    rates = Rates(F.logsigmoid(given["momentum"]), F.logsigmoid(given["retention"]), given["step"].sigmoid() / 4)
    lengths = [CHUNK, CHUNK, TIME - 2 * CHUNK]
    parts = list(zip(*(given[name].split(lengths, dim=1) for name in ("keys", "values", "queries")), strict=True))
    factors = coefficients(rates, lengths, "token")
    weights, momentum = (given["first"], given["second"]), (given["first_momentum"], given["second_momentum"])
    memory = ResidualMLP(given["scale"], 2)
    if by_hand:
        reads, _, weights, momentum = scan_chunks(memory, parts, factors, weights, momentum, keep=keep)
    else:
        count = torch.zeros(ROWS, dtype=torch.int64)
        state = (weights, weights, momentum)
        reads, _, weights, momentum = scan_pieces(memory, parts, factors, state, count, chunk=CHUNK, keep=keep)
    return [torch.cat(reads, dim=1), *(weights if keep else ()), *(momentum if keep else ())]


@pytest.mark.parametrize("keep", [True, False])
def test_values_and_gradients_are_those_of_the_general_path(keep):
    results = []
    for by_hand in (True, False):
        given = leaves()
        outputs = run(given, by_hand, keep)
        torch.manual_seed(1)
        sum((output * torch.randn_like(output)).sum() for output in outputs).backward()
        results.append((outputs, {name: leaf.grad for name, leaf in given.items()}))
    (ours, our_gradients), (theirs, their_gradients) = results
    torch.testing.assert_close(ours, theirs, atol=1e-11, rtol=1e-11)
    torch.testing.assert_close(our_gradients, their_gradients, atol=1e-10, rtol=1e-10)


def test_in_bf16_products_the_state_and_its_gradients_stay_in_fp32_and_near_the_exact_ones():
    exact = leaves()
    narrow = {name: leaf.detach().float().requires_grad_() for name, leaf in exact.items()}
    expected = run(exact, True, True)
    with torch.autocast("cpu", torch.bfloat16):
        seen = run(narrow, True, True)
    assert {output.dtype for output in seen} == {torch.float32}
    for output, right in zip(seen, expected, strict=True):
        assert (output - right).norm() < 0.02 * right.norm()
    expected[0].sum().backward()
    seen[0].sum().backward()
    for name, leaf in narrow.items():
        assert (leaf.grad - exact[name].grad).norm() < 0.05 * exact[name].grad.norm(), name
