import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tlm_repro.architectures.accounting import forward_flops, parameters, training_flops
from tlm_repro.config.loading import load
from tlm_repro.errors import ConfigError
from tlm_repro.models.decoder import LanguageModel
from tlm_repro.spec.run import ModelSpec
from tlm_repro.study import grid

MEMORY = {"memory_head_dim": 8, "chunk": 4, "window": 6, "persistent": 3, "segment": 8}
MODELS = {
    "transformer": ("transformer", {}),
    "gated_attention": ("gated_attention", {}),
    "titans mag": ("titans", {**MEMORY, "variant": "mag"}),
    "titans lmm": ("titans", {**MEMORY, "variant": "lmm"}),
    "titans lmm linear": ("titans", {**MEMORY, "variant": "lmm", "depth": 1}),
    "titans mac": ("titans", {**MEMORY, "variant": "mac"}),
    "hope_attention": ("hope_attention", {"periods": (1, 2)}),
    "hope_attention in context": ("hope_attention", {"update": "in_context", "periods": (4, 8, 8, 0)}),
}


def model_spec(model="transformer", widths=(48, 0, 16), width=32, heads=4, vocabulary=97, time=24, tied=False):
    architecture, options = MODELS[model]
    return ModelSpec(
        architecture=architecture,
        layers=len(widths),
        model_width=width,
        heads=heads,
        intermediate_sizes=widths,
        vocab_size=vocabulary,
        sequence_length=time,
        tied_embeddings=tied,
        rope_theta=1e4,
        norm_eps=1e-5,
        initializer_range=0.02,
        mixer=options,
    )


def built(spec):
    """The decoder, without memory behind its weights."""
    with torch.device("meta"):
        return LanguageModel(spec)


def size(module):
    return sum(weight.numel() for weight in module.parameters())


@pytest.mark.parametrize("architecture", MODELS)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("widths", [(48, 0, 16), (32,) * 5, (0, 0), (16,)])
def test_parameters_are_those_of_the_built_decoder(architecture, tied, widths):
    spec = model_spec(architecture, widths, tied=tied)
    count, model = parameters(spec), built(spec)
    assert count.total == size(model)
    assert count.mixer == tuple(size(layer.mixer) for layer in model.model.layers)
    assert count.mlp == tuple(0 if layer.mlp is None else size(layer.mlp) for layer in model.model.layers)
    assert count.embedding == size(model.model.embed_tokens)
    assert count.head == (0 if tied else size(model.lm_head))


@pytest.mark.parametrize(
    ("architecture", "layers", "width", "heads", "intermediate", "tied", "millions"),
    [
        ("transformer", 24, 1024, 16, 3712, False, 439.9),
        ("transformer", 12, 1536, 16, 4096, False, 438.1),
        ("transformer", 24, 1152, 16, 3328, True, 440.4),
        ("transformer", 24, 1536, 16, 3968, False, 763.7),
        ("transformer", 24, 1536, 16, 4352, True, 757.0),
        ("transformer", 18, 2048, 8, 7808, False, 1296.6),
        ("transformer", 24, 2048, 16, 5632, True, 1298.8),
        ("gated_attention", 24, 1536, 16, 3456, False, 763.7),
        ("gated_attention", 24, 1536, 16, 3840, True, 757.0),
    ],
)
def test_shapes_of_the_paper_have_their_nominal_size(architecture, layers, width, heads, intermediate, tied, millions):
    spec = model_spec(architecture, (intermediate,) * layers, width, heads, 32000, 4096, tied)
    assert round(parameters(spec).total / 1e6, 1) == millions
    assert size(built(spec)) == parameters(spec).total


PAPER = load(Path(__file__).parents[2] / "config/paper.yaml")


@pytest.mark.parametrize("scale", PAPER.scales)
@pytest.mark.parametrize("architecture", PAPER.architectures)
def test_every_architecture_has_every_scale_of_the_paper(scale, architecture):
    """Within 1.5 % of the nominal size, uniform and tapered alike, and as the decoder is built."""
    width = PAPER.scales[scale].mlp_width[architecture]
    assert width % 128 == 0
    nominal = {"440m": 440e6, "760m": 760e6, "1.3b": 1.3e9}[scale]
    for name in ("uniform", "tapered"):
        spec = grid.model_spec(PAPER, architecture, scale, PAPER.allocations[name])
        total = parameters(spec).total
        assert abs(total / nominal - 1) <= 0.015
        assert size(built(spec)) == total


@pytest.mark.parametrize("architecture", MODELS)
@pytest.mark.parametrize(("widths", "time"), [((48, 0, 16), 24), ((32, 32), 7), ((16,), 1)])
def test_flops_are_those_that_torch_counts(architecture, widths, time):
    # On the meta device torch breaks attention down into matrix products; its fused CPU kernel it doesn't count at all,
    # nor, unless told to, products that are added in place.
    spec = model_spec(architecture, widths, time=time)
    model, tokens = built(spec).eval(), torch.zeros(1, time, dtype=torch.long, device="meta")
    in_place = {torch.ops.aten.baddbmm_: lambda _, left, right, **__: 2 * math.prod(left) * right[-1]}
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=in_place) as counter:
        model(tokens)
    assert forward_flops(spec, time) == counter.get_total_flops()


@pytest.mark.parametrize("training", [True, False])
def test_training_costs_three_forward_passes(training):
    spec = model_spec(widths=(48, 0, 16), time=24)
    model, tokens = built(spec).train(training), torch.zeros(2, 24, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter:
        model(tokens, shift_labels=tokens).loss.backward()
    assert training_flops(spec, tokens.numel()) == counter.get_total_flops()


def test_flops_of_a_shape_worked_out_by_hand():
    # Per token: attention maps 4·2² = 16, MLP 3·2·5 = 30, head 2·7 = 14; scores and mixture 2·2·T with T = 3.
    spec = model_spec(widths=(5,), width=2, heads=1, vocabulary=7, time=3)
    assert forward_flops(spec, 3) == 2 * 3 * (16 + 30 + 14) + 2 * 3 * (2 * 2 * 3)
    assert training_flops(spec, 6) == 3 * 2 * forward_flops(spec, 3)


@pytest.mark.parametrize("architecture", MODELS)
def test_equal_width_sums_cost_exactly_the_same(architecture):
    uniform = model_spec(architecture, (64,) * 4)
    for widths in [(96, 80, 48, 32), (32, 48, 80, 96), (128, 64, 48, 16)]:
        other = model_spec(architecture, widths)
        assert parameters(other).total == parameters(uniform).total
        assert forward_flops(other, 24) == forward_flops(uniform, 24)
        assert training_flops(other, 2400) == training_flops(uniform, 2400)


def test_widths_for_another_number_of_layers_are_refused():
    spec = model_spec().model_copy(update={"layers": 4})
    with pytest.raises(ConfigError, match="3 MLP widths for 4 layers"):
        parameters(spec)
    with pytest.raises(ConfigError, match="3 MLP widths for 4 layers"):
        forward_flops(spec, 8)


@pytest.mark.process
def test_accounting_needs_no_torch():
    program = (
        "import sys, tlm_repro.architectures.accounting; sys.exit(bool({'torch', 'transformers'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
