"""The three Titans mixers against their equations, written token by token for one sequence at a time.

Shapes: T time, D model width, H memory heads, N memory head width, P persistent tokens.
"""

import copy
import math
from types import SimpleNamespace

import pytest
import torch
from plain_cache import PlainCache
from small_models import small_spec

from tlm_repro.architectures.registry import architecture, load
from tlm_repro.errors import ConfigError
from tlm_repro.models.attention import causal_mask
from tlm_repro.models.mixer import Context
from tlm_repro.models.rotary import Rotary

WIDTH, ATTENTION_HEADS, MEMORY_HEAD, THETA = 12, 2, 4, 50.0
MEMORY_HEADS = WIDTH // MEMORY_HEAD
EPS = 1e-5
VARIANTS = ("lmm", "mag", "mac")
OPTIONS = {
    "memory_head_dim": MEMORY_HEAD,
    "depth": 2,
    "expansion": 2,
    "chunk": 4,
    "max_learning_rate": 0.05,
    "window": 5,
    "persistent": 3,
    "segment": 8,
    "gate": "silu",
}


def rms(vector, eps, weight=1.0):
    return weight * vector / (vector.square().sum() / vector.numel() + eps).sqrt()


def heads_of(vector):
    return vector.reshape(MEMORY_HEADS, MEMORY_HEAD)


def rms_heads(vector, weight):
    return torch.cat([rms(head, EPS) for head in heads_of(vector)]) * weight


def sigmoid(value):
    return 1 / (1 + torch.exp(-value))


GATES = {"silu": lambda value: value * sigmoid(value), "sigmoid": sigmoid}


def turned(vector, position):
    """RoPE of one head from its definition."""
    parts = []
    for channel in range(0, len(vector), 2):
        angle = position * THETA ** (-channel / len(vector))
        cosine, sine = math.cos(angle), math.sin(angle)
        first, second = vector[channel], vector[channel + 1]
        parts += [cosine * first - sine * second, sine * first + cosine * second]
    return torch.stack(parts)


def projected(p, stream):
    """q, k, v (H, N) and η, θ, α (H) of the last token of `stream`."""
    convolved = sum(p.conv[:, 3 - back] * (p.memory_qkv @ stream[-1 - back]) for back in range(4) if back < len(stream))
    q, k, v = (heads_of(part) for part in (convolved * sigmoid(convolved)).split(WIDTH))
    q, k = (part / (part.square().sum(dim=1, keepdim=True) + 1e-6).sqrt() for part in (q, k))
    eta, theta, alpha = sigmoid(p.rates @ stream[-1] + p.rates_bias).reshape(3, MEMORY_HEADS)
    return q, k, v, (eta, p.max_learning_rate * theta, alpha)


class SlowMemory:
    """All heads of one sequence's memory."""

    def __init__(self, p):
        self.p, self.count = p, 0
        self.weights = [[weight[head] for weight in p.fast] for head in range(MEMORY_HEADS)]
        self.momentum = [[torch.zeros_like(weight) for weight in head] for head in self.weights]
        self.start = self.weights

    def answer(self, head, weights, key):
        inner = weights[0] @ key
        if len(weights) == 2:
            inner = weights[1] @ (inner / 2 * (1 + torch.erf(inner / math.sqrt(2))))
        return key + self.p.scale[head] * rms(inner, 1)

    def read(self, queries, weights):
        return torch.cat([self.answer(head, weights[head], queries[head]) for head in range(MEMORY_HEADS)])

    def write(self, keys, values, rates):
        if self.count % self.p.chunk == 0:
            self.start = list(self.weights)
        self.count += 1
        for head, (eta, theta, alpha) in enumerate(zip(*rates, strict=True)):
            # Copies: keys and values may themselves come from the weights, which isn't what the memory descends.
            places = [weight.clone() for weight in self.start[head]]
            loss = (self.answer(head, places, keys[head]) - values[head]).square().sum()
            slopes = torch.autograd.grad(loss, places, create_graph=True)
            pairs = zip(self.momentum[head], slopes, strict=True)
            self.momentum[head] = [eta * old - theta * new for old, new in pairs]
            pairs = zip(self.weights[head], self.momentum[head], strict=True)
            self.weights[head] = [(1 - alpha) * old + change for old, change in pairs]


def attended(p, query, position, others):
    """Softmax attention of one token over the persistent tokens and `others`, pairs of (vector, position)."""
    query_map, key_map, value_map = p.attention_qkv.split(WIDTH)
    size = WIDTH // ATTENTION_HEADS
    mixed = []
    for head in range(ATTENTION_HEADS):
        part = slice(head * size, (head + 1) * size)
        asked = turned(query_map[part] @ query, position)
        keys = [key_map[part] @ token for token in p.persistent]
        keys += [turned(key_map[part] @ token, place) for token, place in others]
        values = [value_map[part] @ token for token in (*p.persistent, *(token for token, _ in others))]
        shares = torch.stack([(asked @ key / math.sqrt(size)).exp() for key in keys])
        mixed.append((shares / shares.sum()) @ torch.stack(values))
    return torch.cat(mixed)


def slow_lmm(p, x, _):
    memory, result = SlowMemory(p), []
    for t in range(len(x)):
        q, k, v, rates = projected(p, x[: t + 1])
        memory.write(k, v, rates)
        gate = p.gate @ x[t]
        result.append(p.output @ (rms_heads(memory.read(q, memory.weights), p.memory_norm) * gate * sigmoid(gate)))
    return torch.stack(result)


def slow_mag(p, x, positions):
    memory, result = SlowMemory(p), []
    for t in range(len(x)):
        q, k, v, rates = projected(p, x[: t + 1])
        memory.write(k, v, rates)
        seen = [(x[j], positions[j]) for j in range(t + 1) if j > t - p.window]
        mixed = attended(p, x[t], positions[t], seen)
        gate = GATES[p.gating](rms_heads(memory.read(q, memory.weights), p.memory_norm))
        result.append(p.output @ (rms(mixed, EPS, p.attention_norm) * gate))
    return torch.stack(result)


def slow_mac(p, x, positions):
    memory, recalled, mixed, result = SlowMemory(p), [], [], []
    for t in range(len(x)):
        first = t - t % p.segment
        if t == first:
            frozen = list(memory.weights)
        recalled.append(rms(memory.read(projected(p, x[: t + 1])[0], frozen), EPS, p.context_norm))
        seen = [(stream[j], positions[j]) for stream in (recalled, x) for j in range(first, t + 1)]
        mixed.append(attended(p, x[t], positions[t], seen))
        q, k, v, rates = projected(p, mixed)
        memory.write(k, v, rates)
        gate = GATES[p.gating](rms_heads(memory.read(q, memory.weights), p.memory_norm))
        result.append(p.output @ (rms(mixed[t], EPS, p.attention_norm) * gate))
    return torch.stack(result)


SLOW = {"lmm": slow_lmm, "mag": slow_mag, "mac": slow_mac}


def weights_of(mixer, **options):
    """The reference's names for the mixer's parameters, and its options."""
    memory, names = mixer.memory, SimpleNamespace(**{**OPTIONS, **options})
    names.gating = names.gate
    names.memory_qkv, names.conv = memory.qkv.weight, memory.conv.reshape(3 * WIDTH, 4)
    names.rates, names.rates_bias = memory.rates.weight, memory.rates.bias
    names.fast, names.scale, names.memory_norm = tuple(memory.weights), memory.scale, memory.norm.weight
    names.output = mixer.output.weight
    if hasattr(mixer, "gate"):
        names.gate = mixer.gate.weight
    if hasattr(mixer, "attention"):
        names.attention_qkv, names.persistent = mixer.attention.qkv.weight, mixer.attention.persistent
        names.attention_norm = mixer.attention.norm.weight
    if hasattr(mixer, "recall_norm"):
        names.context_norm = mixer.recall_norm.weight
    return names


def built(variant, **options):
    """A mixer in float64 with every parameter drawn at random."""
    torch.manual_seed(0)
    spec = small_spec(
        "titans",
        layers=2,
        model_width=WIDTH,
        heads=ATTENTION_HEADS,
        rope_theta=THETA,
        norm_eps=EPS,
        intermediate_sizes=(5, 3),
        mixer={**OPTIONS, "variant": variant, **options},
    )
    mixer = load(architecture("titans").mixer)(spec, 0).double()
    for name, parameter in mixer.named_parameters():
        if "norm" in name or "scale" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
        else:
            # Wide fast weights: next to 0 the norm in a memory amplifies rounding as much as learning.
            torch.nn.init.normal_(parameter, std=1.0 if "weights" in name else 0.5)
    return mixer


def tokens(time, batch=1):
    return torch.randn(batch, time, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def context(time, past=0, padding=None, shift=0):
    """As the decoder makes it, with angles in double precision; `padding` (B, past + time) is True at real tokens."""
    if padding is None:
        positions = torch.arange(past, past + time)[None] + shift
    else:
        positions = (padding.cumsum(dim=-1) - 1).clamp(min=0)[:, past:]
    frequencies = torch.tensor(Rotary(WIDTH // ATTENTION_HEADS, THETA).frequencies, dtype=torch.float64)
    angles = positions[:, :, None, None].double() * frequencies
    return Context(
        rotary=torch.polar(torch.ones_like(angles), angles),
        padding=None if padding is None else padding[:, past:],
        make_mask=lambda: causal_mask(time, past, padding, torch.device("cpu")),
    )


def pieces(mixer, hidden, lengths, padding=None):
    """The outputs of calls that take `lengths` tokens one after the other, through one cache."""
    cache, past, outputs = PlainCache(), 0, []
    for piece in hidden.split(lengths, dim=1):
        time = piece.shape[1]
        seen = None if padding is None else padding[:, : past + time]
        outputs.append(mixer(piece, context(time, past, seen), cache))
        past += time
        assert cache.length == past
    return torch.cat(outputs, dim=1)


def assert_close(seen, expected, tolerance=1e-8):
    torch.testing.assert_close(seen, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    "options", [{}, {"depth": 1, "gate": "sigmoid"}, {"chunk": 1, "window": 1, "persistent": 0, "segment": 3}]
)
def test_a_mixer_follows_its_equations(variant, options):
    mixer = built(variant, **options)
    p, hidden = weights_of(mixer, **options), tokens(19)
    assert_close(mixer(hidden, context(19)), SLOW[variant](p, hidden[0], range(19))[None])


@pytest.mark.parametrize("variant", VARIANTS)
def test_its_gradients_are_those_of_the_equations(variant):
    mixer = built(variant)
    hidden = tokens(11).requires_grad_()
    leaves = [hidden, *mixer.parameters()]
    fast = mixer(hidden, context(11))
    slow = SLOW[variant](weights_of(mixer), hidden[0], range(11))[None]
    found = [torch.autograd.grad(result.pow(3).sum(), leaves) for result in (fast, slow)]
    assert_close(*found, 1e-6)
    assert all(gradient.abs().max() > 0 for gradient in found[0])


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_later_token_never_moves_an_earlier_output(variant):
    mixer = built(variant)
    hidden = tokens(21, batch=2)
    before = mixer(hidden, context(21))
    for changed in (5, 11, 12, 16):
        other = hidden.clone()
        other[:, changed] += 1
        after = mixer(other, context(21))
        assert_close(after[:, :changed], before[:, :changed], 1e-12)
        assert (after - before)[:, changed:].abs().amax(dim=-1).min() > 1e-11


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    "lengths", [[1] * 21, [21], [6, *[1] * 15], [8, 13], [3, 7, 1, 1, 9], [17, 1, 1, 1, 1], [2, 19]]
)
def test_any_split_through_the_cache_gives_one_result(variant, lengths):
    mixer = built(variant)
    hidden = tokens(21, batch=2)
    assert_close(pieces(mixer, hidden, lengths), mixer(hidden, context(21)))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("lengths", [None, [13, *[1] * 7], [9, 11], [4, 3, 6, 1, 6]])
def test_a_left_padded_row_gives_what_it_does_alone(variant, lengths):
    """Whatever stands in the padding; `None`: in one pass and without a cache."""
    mixer = built(variant)
    real = (20, 17, 13, 12)
    hidden = tokens(20, batch=len(real))
    padding = torch.stack([torch.arange(20) >= 20 - count for count in real])
    if lengths is None:
        together = mixer(hidden, context(20, padding=padding))
    else:
        together = pieces(mixer, hidden, lengths, padding)
    assert together.isfinite().all()
    for row, count in enumerate(real):
        alone = mixer(hidden[row : row + 1, 20 - count :], context(count))
        assert_close(together[row : row + 1, 20 - count :], alone)


def reach(mixer, time):
    """(T, T) of booleans: does output t depend on input j?"""
    probe = torch.linspace(1, 2, WIDTH, dtype=torch.float64)
    slopes = torch.autograd.functional.jacobian(lambda hidden: mixer(hidden, context(time))[0] @ probe, tokens(time))
    return slopes[:, 0].abs().amax(dim=2) > 1e-12


def without_learning(mixer):
    """A memory that learns nothing and forgets at a constant rate, and whose convolution sees one token."""
    with torch.no_grad():
        memory = mixer.memory
        memory.rates.weight.zero_()
        memory.rates.bias[MEMORY_HEADS : 2 * MEMORY_HEADS] = -1e4
        memory.conv.reshape(3 * WIDTH, 4)[:, :3] = 0
    return mixer


@pytest.mark.parametrize(
    ("variant", "sees"),
    [
        ("lmm", lambda now, then: now == then),
        ("mag", lambda now, then: now - 5 < then),
        ("mac", lambda now, then: now // 8 == then // 8),
    ],
)
def test_attention_reaches_as_far_as_it_says(variant, sees):
    """Without a memory that learns: itself, the last 5 tokens, its segment of 8; with one, everything before it."""
    expected = [[then <= now and sees(now, then) for then in range(18)] for now in range(18)]
    assert reach(without_learning(built(variant)), 18).tolist() == expected
    assert reach(built(variant), 18).tolist() == [[then <= now for then in range(18)] for now in range(18)]


@pytest.mark.parametrize("variant", ["mag", "mac"])
def test_persistent_tokens_are_seen_by_all_and_have_no_order(variant):
    mixer = built(variant)
    hidden = tokens(18)

    def run(persistent):
        return torch.func.functional_call(mixer, {"attention.persistent": persistent}, (hidden, context(18)))[0]

    probe = torch.linspace(1, 2, WIDTH, dtype=torch.float64)
    slopes = torch.autograd.functional.jacobian(lambda rows: run(rows) @ probe, mixer.attention.persistent.detach())
    assert slopes.abs().amax(dim=2).min() > 1e-6
    assert_close(run(mixer.attention.persistent.flip(0)), run(mixer.attention.persistent))


@pytest.mark.parametrize("variant", ["mag", "mac"])
def test_without_persistent_tokens_distance_alone_matters(variant):
    hidden = tokens(18)
    for persistent, same in ((0, True), (3, False)):
        mixer = built(variant, persistent=persistent)
        moved = (mixer(hidden, context(18, shift=7)) - mixer(hidden, context(18))).abs().max()
        assert (moved < 1e-10) == same


def test_autocast_keeps_a_slow_decay():
    """A logit of 1e-4 a token is −9.21; in bfloat16 it would be −9.1875, and 2,000 tokens would show it."""
    mixer = built("lmm")
    mixer, cache = without_learning(mixer.float()), PlainCache()
    with torch.no_grad():
        mixer.memory.rates.bias[2 * MEMORY_HEADS :] = math.log(1e-4 / (1 - 1e-4))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixer(tokens(2000).float(), context(2000), cache)
    for seen, initial in zip(cache.state(0).get("titans").memory.weights, mixer.memory.weights, strict=True):
        assert_close(seen[0], initial * (1 - 1e-4) ** 2000, 5e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_autocast_outputs_and_gradients_are_near_those_in_double_precision(variant):
    mixer = built(variant, max_learning_rate=1e-3)
    hidden, found = tokens(19), []
    for place, precision in ((mixer, torch.float64), (copy.deepcopy(mixer).float(), torch.float32)):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision is torch.float32):
            output = place(hidden.to(precision), context(19))
        gradients = torch.autograd.grad(output.float().square().sum(), list(place.parameters()))
        assert all(gradient.isfinite().all() for gradient in gradients)
        found.append(output.detach().double())
    assert (found[1] - found[0]).norm() < 0.05 * found[0].norm()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"window": 0}, "window"),
        ({"persistent": -1}, "persistent"),
        ({"chunk": 0}, "chunk"),
        ({"depth": 3}, "depth"),
        ({"expansion": 0}, "expansion"),
        ({"max_learning_rate": 0.0}, "max_learning_rate"),
        ({"variant": "mal"}, "variant"),
        ({"memory_head_dim": 5}, "memory_head_dim"),
        ({"variant": "mac", "segment": 6}, "segment"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, problem):
    with pytest.raises(ConfigError, match=problem):
        built(**{"variant": "mag", **options})
