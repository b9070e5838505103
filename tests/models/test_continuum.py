"""The continuum memory against its equations, written token by token. T time, D model width, F width of a level."""

import pytest
import torch
from plain_cache import PlainCache
from small_models import small_spec
from torch.utils.flop_counter import FlopCounterMode

from tlm_repro.allocation.widths import layer_widths
from tlm_repro.architectures.registry import architecture
from tlm_repro.errors import ConfigError
from tlm_repro.models.continuum import ContinuumMemory
from tlm_repro.models.decoder import LanguageModel
from tlm_repro.models.feed_forward import SwiGLU
from tlm_repro.models.mixer import Context
from tlm_repro.training.optimizers.periodic import parameter_groups

WIDTH, EPS = 12, 1e-5
IN_CONTEXT = {"update": "in_context", "periods": [3, 5, 5, 0], "max_learning_rate": 0.05}


def settings(widths=(20,), model_width=WIDTH, **mixer):
    return small_spec(
        "hope_attention",
        layers=len(widths),
        model_width=model_width,
        heads=2,
        intermediate_sizes=tuple(widths),
        norm_eps=EPS,
        initializer_range=0.02,
        mixer=mixer,
    )


def memory(widths=(20,), deviation=0.5, **mixer):
    """One block in float64, its weights large enough for every level to matter."""
    torch.manual_seed(0)
    block = ContinuumMemory(settings(widths, **mixer), 0).double()
    with torch.no_grad():
        for weight in block.parameters():
            weight.normal_(std=deviation)
    return block


def stream(batch=2, time=13, seed=1):
    """A residual stream and its norm under a weight of the layer's own."""
    generator = torch.Generator().manual_seed(seed)
    residual = torch.randn(batch, time, WIDTH, dtype=torch.float64, generator=generator)
    weight = torch.rand(WIDTH, dtype=torch.float64, generator=generator) + 0.5
    return weight * normed(residual, EPS), residual


def shared(padding=None):
    """No level looks at positions; a turn for each of 13 is what a context holds."""
    return Context(rotary=torch.ones(1, 13, 1, 3), padding=padding)


def normed(vector, eps):
    return vector / (vector.square().mean(dim=-1, keepdim=True) + eps).sqrt()


def swiglu(weights, vector):
    gate, up, down = weights
    opened = gate @ vector
    return down @ (opened / (1 + torch.exp(-opened)) * (up @ vector))


def slow_fast_level(level, inputs, chunk, max_learning_rate):
    """One sequence (T, D): S_t = η S_{t−1} − θ ∇ℓ, M_t = (1 − α) M_{t−1} + S_t, gradients and reads at M_start."""
    weights = start = [level.gate.weight, level.up.weight, level.down.weight]
    momentum, reads = [torch.zeros_like(weight) for weight in weights], []
    for now, vector in enumerate(inputs):
        reads.append(swiglu(start, vector))
        eta, theta, alpha = 1 / (1 + torch.exp(-(level.rates.weight @ vector + level.rates.bias)))
        if now == 0:  # nothing came before it
            steps = [torch.zeros_like(weight) for weight in weights]
        else:
            loss = (normed(swiglu(start, inputs[now - 1]), 1) - vector).square().sum()
            steps = torch.autograd.grad(loss, start, create_graph=True)
        momentum = [eta * old - max_learning_rate * theta * step for old, step in zip(momentum, steps, strict=True)]
        weights = [(1 - alpha) * old + new for old, new in zip(weights, momentum, strict=True)]
        if (now + 1) % chunk == 0:
            start = weights
    return torch.stack(reads)


def slow_chain(block, hidden, residual, run):
    """One sequence through u_j = u_{j−1} + MLP_j(norm_j(u_{j−1})); `run(level, j, inputs)` is MLP_j."""
    now = residual
    for place, level in enumerate(block.levels):
        now = now + run(level, place, hidden if place == 0 else normed(now, EPS))
    return now - residual


def static(level, _, inputs):
    return torch.stack([swiglu([level.gate.weight, level.up.weight, level.down.weight], each) for each in inputs])


def in_context(level, place, inputs):
    chunk = IN_CONTEXT["periods"][place]
    return slow_fast_level(level, inputs, chunk, 0.05) if chunk else static(level, place, inputs)


@pytest.mark.parametrize("periods", [[1], [1, 2, 4], [4, 1, 3, 3, 9]])
def test_the_chain_is_that_of_its_equations(periods):
    block, (hidden, residual) = memory(periods=periods), stream()
    expected = [slow_chain(block, *row, static) for row in zip(hidden, residual, strict=True)]
    torch.testing.assert_close(block(hidden, residual, shared()), torch.stack(expected), atol=1e-11, rtol=1e-11)


def test_one_level_is_the_transformers_mlp():
    config = settings(periods=[3])
    block, plain = ContinuumMemory(config, 0), SwiGLU(config, 0)
    plain.load_state_dict({name.removeprefix("levels.0."): weight for name, weight in block.state_dict().items()})
    hidden = torch.randn(2, 5, WIDTH)
    assert torch.equal(block(hidden, torch.randn(2, 5, WIDTH), shared()), plain(hidden))


@pytest.mark.parametrize("mixer", [{}, {"periods": [2, 7]}, {"update": "in_context"}, IN_CONTEXT])
def test_a_tapered_stack_has_the_transformers_parameters_layer_by_layer(mixer):
    widths = layer_widths("cosine", 12, 256, start=1.5, end=0.5)
    widths = widths if "update" in mixer else (*widths, 77, 33, 5)
    config = settings(widths, 128, **mixer)
    options = architecture("hope_attention").options.model_validate(config.mixer)
    fast = sum(period > 0 for period in options.periods) if "update" in mixer else 0
    cost = architecture("hope_attention").feed_forward_parameters
    for index, width in enumerate(widths):
        with torch.device("meta"):
            block = ContinuumMemory(config, index)
        count = sum(weight.numel() for weight in block.parameters())
        assert count == 3 * 128 * width + fast * (3 * 128 + 3) == cost(config, width)
        assert sum(level.gate.out_features for level in block.levels) == width


@pytest.mark.parametrize("mixer", [{"periods": [1, 2, 4]}, IN_CONTEXT])
@pytest.mark.parametrize("time", [1, 4, 13])
def test_flops_are_those_that_torch_counts(mixer, time):
    config = settings((40,), **mixer)
    block, hidden = ContinuumMemory(config, 0), torch.randn(1, time, WIDTH)
    with FlopCounterMode(display=False) as counter:
        block(hidden, hidden, shared())
    assert counter.get_total_flops() == architecture("hope_attention").feed_forward_flops(config, 40, time)


def test_the_optimiser_hears_the_period_of_every_level():
    block = ContinuumMemory(settings((40,), periods=[1, 2, 8, 8]), 0)
    sizes = {
        group["update_period"]: sum(weight.numel() for weight in group["params"])
        for group in parameter_groups(block, 0.1)
        if group["weight_decay"]
    }
    assert sizes == {1: 3 * WIDTH * 16, 2: 3 * WIDTH * 8, 8: 3 * WIDTH * 16}  # 40 = 16 + 8 + 8 + 8
    inside = ContinuumMemory(settings((40,), **IN_CONTEXT), 0)
    assert {group["update_period"] for group in parameter_groups(inside, 0.1)} == {1}


def test_levels_of_unequal_width_are_refused_in_context():
    with pytest.raises(ConfigError, match="an MLP width of 22 doesn't divide into 4 equal levels"):
        ContinuumMemory(settings((22,), **IN_CONTEXT), 0)


def test_a_width_below_one_a_level_is_refused():
    with pytest.raises(ConfigError, match="an MLP width of 3 can't be split over 4 levels"):
        ContinuumMemory(settings((3,)), 0)


def test_levels_that_change_in_context_follow_their_equations_and_gradients():
    block, (hidden, residual) = memory(**IN_CONTEXT), stream(batch=1)
    result = block(hidden, residual, shared())
    expected = slow_chain(block, hidden[0], residual[0], in_context)[None]
    torch.testing.assert_close(result, expected, atol=1e-9, rtol=1e-9)
    assert (result - slow_chain(block, hidden[0], residual[0], static)[None])[:, 3:].abs().max() > 0.1
    weights = list(block.parameters())
    probe = torch.randn(result.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    ours, theirs = (torch.autograd.grad((each * probe).sum(), weights) for each in (result, expected))
    for (name, _), mine, yours in zip(block.named_parameters(), ours, theirs, strict=True):
        torch.testing.assert_close(mine, yours, atol=1e-8, rtol=1e-8, msg=name)
        assert yours.abs().max() > 0, name


def test_a_later_token_changes_nothing_before_it():
    block, (hidden, residual) = memory(**IN_CONTEXT), stream()
    before = block(hidden, residual, shared())
    for place in range(13):
        changed = hidden.clone(), residual.clone()
        for each in changed:
            each[:, place] += 1
        after = block(*changed, shared())
        torch.testing.assert_close(after[:, :place], before[:, :place], atol=0, rtol=0)
        assert (after[:, place] - before[:, place]).abs().min() > 1e-6


@pytest.mark.parametrize("lengths", [[13], [1] * 13, [7, 1, 1, 4], [4, 9], [2, 3, 8]])
def test_any_split_through_the_cache_is_one_pass(lengths):
    block, (hidden, residual) = memory(**IN_CONTEXT), stream()
    cache = PlainCache()
    parts = zip(hidden.split(lengths, dim=1), residual.split(lengths, dim=1), strict=True)
    pieces = [block(*part, shared(), cache) for part in parts]
    expected = block(hidden, residual, shared())
    torch.testing.assert_close(torch.cat(pieces, dim=1), expected, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_row_is_that_row_alone(side):
    block, (hidden, residual) = memory(**IN_CONTEXT), stream(batch=3)
    lengths = [13, 6, 0]
    places = torch.arange(13)
    padding = torch.stack([places < length if side == "right" else places >= 13 - length for length in lengths])
    cache = PlainCache()
    result = block(hidden, residual, shared(padding), cache)
    more_hidden, more_residual = stream(batch=3, time=14, seed=4)
    # The last row begins only now; together the rows stand at different places of their chunks.
    first = block(more_hidden[:, :1], more_residual[:, :1], shared(), cache)
    rest = block(more_hidden[:, 1:], more_residual[:, 1:], shared(), cache)
    for row, length in enumerate(lengths):
        real = padding[row]
        alone = block(
            torch.cat((hidden[row, real], more_hidden[row]))[None],
            torch.cat((residual[row, real], more_residual[row]))[None],
            shared(),
        )[0]
        torch.testing.assert_close(result[row, real], alone[:length], atol=1e-11, rtol=1e-11)
        torch.testing.assert_close(torch.cat((first[row], rest[row])), alone[length:], atol=1e-11, rtol=1e-11)


def test_a_period_longer_than_the_text_changes_nothing():
    mixer = {"update": "in_context", "periods": [13, 0], "max_learning_rate": 0.05}
    block, (hidden, residual) = memory(**mixer), stream()
    expected = [slow_chain(block, *row, static) for row in zip(hidden, residual, strict=True)]
    torch.testing.assert_close(block(hidden, residual, shared()), torch.stack(expected), atol=1e-11, rtol=1e-11)


def test_untrained_levels_of_every_period_forget_the_same_share_in_it():
    torch.manual_seed(0)
    model = LanguageModel(settings((64, 40), update="in_context", periods=[8, 64, 1024, 0], max_learning_rate=0.5))
    for layer in model.model.layers:
        for level, period in zip(layer.mlp.levels, (8, 64, 1024), strict=False):
            rates = level.rates(torch.randn(1, period, WIDTH), has_past=torch.ones(1, dtype=torch.bool))
            assert rates.retention.sum().exp().item() == pytest.approx(0.995, abs=1e-4)
            assert rates.step.sum().item() == pytest.approx(0.5 * 0.01, rel=1e-4)
            assert rates.momentum.exp().tolist() == [[pytest.approx([0.9] * period)]]
