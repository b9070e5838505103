"""The engine against the rule it computes, written token by token with the inner gradient left to autograd.

Shapes: B batch, H heads, T time, N memory head width, C chunk.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tlm_repro.errors import ConfigError
from tlm_repro.models.memory.coefficients import Rates
from tlm_repro.models.memory.fast_weights import MemoryState, initial_state, recall, scan
from tlm_repro.models.memory.networks import GatedMLP, ResidualMLP

KINDS = ("residual 1", "residual 2", "gated")


@dataclass
class Problem:
    """Everything one call of `scan` takes; `scale` is None for the gated memory."""

    kind: str
    keys: torch.Tensor
    values: torch.Tensor
    queries: torch.Tensor
    momentum: torch.Tensor
    retention: torch.Tensor
    step: torch.Tensor
    weights: tuple[torch.Tensor, ...]
    scale: torch.Tensor | None

    @property
    def memory(self):
        return GatedMLP() if self.scale is None else ResidualMLP(self.scale, int(self.kind[-1]))

    @property
    def leaves(self):
        parts = (self.keys, self.values, self.queries, self.momentum, self.retention, self.step, *self.weights)
        return parts if self.scale is None else (*parts, self.scale)

    def like(self, leaves):
        scale = None if self.scale is None else leaves[-1]
        return Problem(self.kind, *leaves[:6], tuple(leaves[6 : 6 + len(self.weights)]), scale)

    def to(self, dtype):
        return self.like([leaf.to(dtype) for leaf in self.leaves])

    def trainable(self):
        return self.like([leaf.detach().clone().requires_grad_() for leaf in self.leaves])

    def state(self):
        return initial_state(self.weights, self.keys.shape[0])

    def scan(self, part=slice(None), state=None, **options):
        tokens = [tensor[:, :, part] for tensor in (self.keys, self.values, self.queries)]
        rates = Rates(*(tensor[:, :, part] for tensor in (self.momentum, self.retention, self.step)))
        return scan(self.memory, *tokens, rates, state or self.state(), **options)


def problem(kind, time, *, batch=2, heads=2, width=3, seed=0):
    """Random tokens, rates and weights in float64; all rates are far from their bounds."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    keys, values, queries = (torch.nn.functional.normalize(normal(batch, heads, time, width), dim=-1) for _ in "kvq")
    momentum, retention, step = (normal(batch, heads, time) for _ in "msr")
    hidden = {"residual 1": width, "residual 2": 2 * width, "gated": width + 1}[kind]
    weights = tuple(normal(heads, hidden, width) for _ in range(2 if kind == "gated" else 1))
    weights += () if kind == "residual 1" else (normal(heads, width, hidden),)
    scale = None if kind == "gated" else 1 + 0.3 * normal(heads, width)
    rates = (momentum.sigmoid().log(), (retention + 2).sigmoid().log(), 0.3 * step.sigmoid())
    return Problem(kind, keys, values, queries, *rates, weights, scale)


def rms(vector):
    return vector / (vector.square().sum() / vector.numel() + 1).sqrt()


def slow_read(kind, weights, scale, query):
    """One head's answer to one query."""
    if kind == "gated":
        gate, up, down = weights
        activation = gate @ query
        return down @ (activation / (1 + torch.exp(-activation)) * (up @ query))
    inner = weights[0] @ query
    if kind == "residual 2":
        inner = weights[1] @ (inner / 2 * (1 + torch.erf(inner / math.sqrt(2))))
    return query + scale * rms(inner)


def slow_gradient(kind, weights, scale, key, value):
    """Of ‖prediction − value‖², differentiable where the weights are."""
    again = weights[0].requires_grad
    places = list(weights) if again else [weight.detach().requires_grad_() for weight in weights]
    answer = slow_read(kind, places, scale, key)
    prediction = rms(answer) if kind == "gated" else answer
    return torch.autograd.grad((prediction - value).square().sum(), places, create_graph=again)


def slow_head(case, row, head, chunk, read):
    """S_t = η S_{t−1} − θ ∇ℓ(M_start), M_t = (1 − α) M_{t−1} + S_t, y_t = M_t(q_t), for one head of one row."""
    scale = None if case.scale is None else case.scale[head]
    weights = [weight[head] for weight in case.weights]
    momentum, start, outputs = [torch.zeros_like(weight) for weight in weights], weights, []
    for t in range(case.keys.shape[2]):
        if t % chunk == 0:
            start = weights
        at = (row, head, t)
        eta, kept = case.momentum[at].exp(), case.retention[at].exp()
        slope = slow_gradient(case.kind, start, scale, case.keys[at], case.values[at])
        momentum = [eta * old - case.step[at] * new for old, new in zip(momentum, slope, strict=True)]
        weights = [kept * old + change for old, change in zip(weights, momentum, strict=True)]
        outputs.append(slow_read(case.kind, start if read == "chunk" else weights, scale, case.queries[at]))
    return torch.stack(outputs), weights, momentum, start


def slow_scan(case, chunk, read="token"):
    """Outputs (B, H, T, N) and the three lists of weights that `MemoryState` holds."""
    batch, heads = case.keys.shape[:2]
    runs = [[slow_head(case, row, head, chunk, read) for head in range(heads)] for row in range(batch)]
    outputs = torch.stack([torch.stack([run[0] for run in row]) for row in runs])
    lists: list[Any] = [
        [torch.stack([torch.stack([run[part][i] for run in row]) for row in runs]) for i in range(len(case.weights))]
        for part in (1, 2, 3)
    ]
    return outputs, *lists


def assert_close(seen, expected, tolerance=1e-10):
    torch.testing.assert_close(seen, expected, atol=tolerance, rtol=tolerance)


def same_state(seen, expected, chunk):
    """`start` says something only inside a chunk."""
    assert seen.count.tolist() == expected.count.tolist()
    assert_close(seen.weights, expected.weights)
    assert_close(seen.momentum, expected.momentum)
    if int(expected.count[0]) % chunk:
        assert_close(seen.start, expected.start)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("read", ["token", "chunk"])
@pytest.mark.parametrize(("time", "chunk"), [(7, 1), (1, 1), (8, 4), (11, 4), (13, 3), (5, 8)])
def test_scan_is_the_token_by_token_rule(kind, read, time, chunk):
    case = problem(kind, time)
    outputs, state = case.scan(chunk=chunk, read=read)
    expected, weights, momentum, start = slow_scan(case, chunk, read)
    assert_close(outputs, expected)
    same_state(state, MemoryState(tuple(start), tuple(weights), tuple(momentum), torch.tensor([time, time])), chunk)
    assert state.count.dtype == torch.int64


def test_scan_is_the_rule_over_chunks_of_a_real_size():
    case = problem("residual 2", 150, batch=1, heads=1, width=8)
    outputs, state = case.scan(chunk=64)
    expected, weights, momentum, _ = slow_scan(case, 64)
    assert_close(outputs, expected, 1e-9)
    assert_close(list(state.weights), weights, 1e-9)
    assert_close(list(state.momentum), momentum, 1e-9)
    assert_close(case.to(torch.float32).scan(chunk=64)[0].double(), expected, 5e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("read", ["token", "chunk"])
def test_gradients_are_those_of_the_rule(kind, read):
    case = problem(kind, 7)
    found = []
    for run in ("fast", "slow"):
        torch.manual_seed(0)
        leaves = case.trainable()
        if run == "fast":
            outputs, state = leaves.scan(chunk=3, read=read)
            ends = (outputs, *state.weights, *state.momentum)
        else:
            outputs, weights, momentum, _ = slow_scan(leaves, 3, read)
            ends = (outputs, *weights, *momentum)
        sum((end * torch.randn_like(end)).sum() for end in ends).backward()
        found.append([leaf.grad for leaf in leaves.leaves])
    assert_close(*found, 1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("read", ["token", "chunk"])
def test_gradients_are_those_of_finite_differences(kind, read):
    case = problem(kind, 5, batch=1)

    def run(*leaves):
        outputs, state = case.like(leaves).scan(chunk=2, read=read)
        return (outputs, *state.weights, *state.momentum)

    assert torch.autograd.gradcheck(run, case.trainable().leaves, fast_mode=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("read", ["token", "chunk"])
@pytest.mark.parametrize("pieces", [[1] * 11, [4, 4, 3], [3, 8], [2, 1, 1, 6, 1], [5, 5, 1], [1, 2, 8]])
def test_any_split_into_calls_ends_the_same(kind, read, pieces):
    case = problem(kind, 11)
    whole, end = case.scan(chunk=4, read=read)
    outputs, state, first = [], case.state(), 0
    for length in pieces:
        output, state = case.scan(slice(first, first + length), state, chunk=4, read=read)
        outputs.append(output)
        first += length
    assert_close(torch.cat(outputs, dim=2), whole)
    same_state(state, end, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_pass_from_call_to_call(kind):
    case, found = problem(kind, 9), []
    for pieces in ([9], [4, 5], [3, 1, 5]):
        leaves = case.trainable()
        state, first, total = leaves.state(), 0, 0.0
        for length in pieces:
            output, state = leaves.scan(slice(first, first + length), state, chunk=4)
            total = total + output.pow(3).sum()
            first += length
        total.backward()
        found.append([leaf.grad for leaf in leaves.leaves])
    assert_close(found[1], found[0], 1e-9)
    assert_close(found[2], found[0], 1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("read", ["token", "chunk"])
def test_a_step_takes_rows_of_different_counts(kind, read):
    case, counts = problem(kind, 10, batch=3), (3, 4, 5)
    alone, states = [], []
    for row, count in enumerate(counts):
        own = case.like([*(tensor[row : row + 1] for tensor in case.leaves[:6]), *case.leaves[6:]])
        states.append(own.scan(slice(0, count), chunk=4, read=read)[1])
        alone.append(own.scan(slice(0, count + 5), chunk=4, read=read)[0][:, :, count:])
    state = MemoryState(
        *(
            tuple(torch.cat(same) for same in zip(*(getattr(each, part) for each in states), strict=True))
            for part in ("start", "weights", "momentum")
        ),
        count=torch.cat([each.count for each in states]),
    )
    for ahead in range(5):
        tokens = [
            torch.stack([tensor[row, :, count + ahead] for row, count in enumerate(counts)])[:, :, None]
            for tensor in case.leaves[:6]
        ]
        now = case.like([*tokens, *case.leaves[6:]])
        output, state = now.scan(state=state, chunk=4, read=read)
        assert_close(output, torch.cat([expected[:, :, ahead : ahead + 1] for expected in alone]))
    assert state.count.tolist() == [count + 5 for count in counts]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 3, 20])
def test_nothing_is_learned_or_forgotten_at_zero_rates(kind, chunk):
    case = problem(kind, 8)
    case.step, case.retention = torch.zeros_like(case.step), torch.zeros_like(case.retention)
    outputs, state = case.scan(chunk=chunk)
    for row in range(2):
        for head in range(2):
            weights = [weight[head] for weight in case.weights]
            scale = None if case.scale is None else case.scale[head]
            assert_close(outputs[row, head, 6], slow_read(kind, weights, scale, case.queries[row, head, 6]), 1e-12)
        assert_close([weight[row] for weight in state.weights], list(case.weights), 1e-12)
    assert all(momentum.abs().max() == 0 for momentum in state.momentum)


def test_a_chunk_without_momentum_is_one_step_of_gradient_descent():
    """∇ℓ of k + γ ∘ rms(W k) by hand: with r = rms(o), o = W k, g = 2γ(k + γr − v): (g − r (r·g)/N) / √(ō² + ε) kᵀ."""
    case = problem("residual 1", 6, batch=1, heads=1, width=4)
    case.momentum, case.retention = torch.full_like(case.momentum, -70.0), torch.zeros_like(case.retention)
    weight, scale, steps = case.weights[0][0], case.scale[0], case.step[0, 0]
    keys, values = case.keys[0, 0], case.values[0, 0]
    inner = keys @ weight.t()
    size = (inner.square().mean(dim=1, keepdim=True) + 1).sqrt()
    turned = inner / size
    error = 2 * scale * (keys + scale * turned - values)
    slope = (error - turned * (turned * error).mean(dim=1, keepdim=True)) / size
    expected = weight - (steps[:, None] * slope).t() @ keys
    for chunk in (6, 64):
        assert_close(case.scan(chunk=chunk)[1].weights[0][0, 0], expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("learner", [0, 5])
def test_one_token_that_learns_makes_the_chunk_irrelevant(kind, learner):
    """Its gradient is taken at the initial weights in every chunking, if nothing was forgotten before it."""
    case = problem(kind, 11)
    case.step = case.step * (torch.arange(11) == learner)
    case.retention = case.retention * (torch.arange(11) >= learner)
    expected, state = case.scan(chunk=1)
    for chunk in (2, 3, 8, 11, 32):
        outputs, end = case.scan(chunk=chunk)
        assert_close(outputs, expected)
        assert_close(end.weights, state.weights)
        assert_close(end.momentum, state.momentum)


def test_the_chunk_matters_once_two_tokens_learn():
    case = problem("residual 2", 8)
    assert (case.scan(chunk=1)[0] - case.scan(chunk=4)[0]).abs().max() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_forgetting_at_once_is_exact(kind):
    """Logits of ±40 among others: a chunk's log decays sum to −10³, beyond what exp can undo."""
    case = problem(kind, 80, batch=1, heads=1)
    signs = torch.randn(2, 1, 1, 80, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    extreme = torch.nn.functional.logsigmoid(40 * signs.sign())
    ordinary = torch.stack((case.momentum, case.retention))
    case.momentum, case.retention = torch.where(signs.abs() > 0.5, extreme, ordinary).unbind()
    case.retention[:, :, 32:64] = -40.0
    expected, weights, momentum, _ = slow_scan(case, 32)
    for dtype, tolerance in ((torch.float64, 1e-8), (torch.float32, 5e-4)):
        leaves = case.to(dtype).trainable()
        outputs, state = leaves.scan(chunk=32)
        outputs.sum().backward()
        assert_close(outputs.double(), expected, tolerance)
        assert_close([weight.double() for weight in state.weights], weights, tolerance)
        assert_close([weight.double() for weight in state.momentum], momentum, tolerance)
        assert all(leaf.grad.isfinite().all() for leaf in leaves.leaves)


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_keeps_a_slow_decay(kind):
    """1e-4 a token is below bfloat16's resolution next to 1: over 2,000 tokens it comes to 18 %."""
    case = problem(kind, 2000, batch=1, heads=1, width=4)
    case.retention = torch.full_like(case.retention, math.log1p(-1e-4))
    case.step = 1e-3 * case.step
    learning, idle = case.to(torch.float32), case.to(torch.float32)
    idle.step = torch.zeros_like(idle.step)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (_, learned), (_, faded) = learning.scan(chunk=64), idle.scan(chunk=64)
    assert_close([weight[0].double() for weight in faded.weights], [w * (1 - 1e-4) ** 2000 for w in case.weights], 1e-4)
    assert_close([weight.double() for weight in learned.weights], slow_scan(case, 64)[1], 4e-3)
    assert max((a - b).abs().max() for a, b in zip(learned.weights, faded.weights, strict=True)) > 0.02


def test_reads_without_writing_are_those_of_the_last_weights():
    case = problem("residual 2", 6)
    state = case.scan(chunk=4)[1]
    answers = recall(case.memory, case.queries, state.weights)
    for row, head in ((0, 0), (1, 0), (1, 1)):
        weights = [weight[row, head] for weight in state.weights]
        assert_close(answers[row, head, 2], slow_read(case.kind, weights, case.scale[head], case.queries[row, head, 2]))


def test_what_cannot_be_computed_is_refused():
    case = problem("residual 1", 6)
    state = case.scan(slice(0, 3), chunk=4)[1]
    uneven = dataclasses.replace(state, count=torch.tensor([3, 5]))
    with pytest.raises(ConfigError, match="2 tokens for rows at different places of their chunks"):
        case.scan(slice(3, 5), uneven, chunk=4)
    with pytest.raises(ConfigError, match="depth 3"):
        ResidualMLP(case.scale, 3)


def saved_bytes(case, chunk):
    """What a forward pass keeps for the backward pass, each storage once."""
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    leaves = case.to(torch.float32).trainable()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs, _ = leaves.scan(chunk=chunk)
    assert outputs.requires_grad
    return sum(kept.values())


@pytest.mark.parametrize("kind", KINDS)
def test_memory_for_the_backward_pass_grows_linearly(kind):
    one, two, four = (saved_bytes(problem(kind, time, batch=1, width=16), 16) for time in (128, 256, 512))
    assert four - two == pytest.approx(2 * (two - one), rel=0.02)


class Largest(TorchDispatchMode):
    """Remembers the elements of the largest tensor that any operation returns."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


@pytest.mark.parametrize("kind", KINDS)
def test_no_weight_matrix_is_made_per_token(kind):
    time, width = 256, 32
    case = problem(kind, time, batch=1, heads=1, width=width).to(torch.float32).trainable()
    with Largest() as largest:
        case.scan(chunk=32)[0].sum().backward()
    assert time * width <= largest.elements < time * width**2
