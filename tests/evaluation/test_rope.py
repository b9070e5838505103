"""Scaled rotary positions: the rules from their papers, the same in our decoders as in transformers' own."""

import copy
import math

import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from tlm_repro.errors import EvaluationError
from tlm_repro.evaluation.rope import check_length, scaled, scaled_frequencies
from tlm_repro.models.hugging_face.configuration import TLMConfig
from tlm_repro.models.hugging_face.decoder import TLMForCausalLM
from tlm_repro.spec.evaluation import RopeScaling

TRAINED, LENGTH, HEAD, THETA = 32, 128, 8, 10_000.0


def llama(**rope) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=2 * HEAD,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=TRAINED,
        rope_parameters={"rope_type": "default", "rope_theta": THETA, **rope},
        initializer_range=0.4,
    )
    return LlamaForCausalLM(config).eval()


def ours(architecture="transformer", **mixer) -> TLMForCausalLM:
    torch.manual_seed(0)
    shape = {"hidden_size": 2 * HEAD, "num_attention_heads": 2, "num_hidden_layers": 2, "vocab_size": 50}
    shape |= {"intermediate_sizes": (24, 24), "initializer_range": 0.4, "max_position_embeddings": TRAINED}
    return TLMForCausalLM(TLMConfig(**shape, architecture=architecture, mixer=mixer)).eval()


def tokens() -> torch.Tensor:
    return torch.randint(0, 50, (1, LENGTH), generator=torch.Generator().manual_seed(1))


def plain() -> list[float]:
    return [THETA ** (-channel / HEAD) for channel in range(0, HEAD, 2)]


@torch.no_grad()
def logits(model, inputs):
    return model(inputs).logits


def test_frequencies_are_those_of_the_papers():
    model = ours()
    linear, one = scaled_frequencies(model, RopeScaling(kind="linear"), LENGTH)
    assert linear.tolist() == pytest.approx([value * TRAINED / LENGTH for value in plain()])
    # NTK: the base grows so that the slowest channel is interpolated by the factor, the fastest not at all.
    ntk, _ = scaled_frequencies(model, RopeScaling(kind="ntk"), LENGTH)
    assert ntk[0] == pytest.approx(1.0)
    assert ntk[-1] == pytest.approx(plain()[-1] * TRAINED / LENGTH)
    # YaRN: queries and keys together are scaled by (0.1 ln s + 1)².
    yarn, magnitude = scaled_frequencies(model, RopeScaling(kind="yarn"), LENGTH)
    assert magnitude == pytest.approx(0.1 * math.log(LENGTH / TRAINED) + 1)
    assert yarn[-1] == pytest.approx(plain()[-1] * TRAINED / LENGTH)
    assert one == 1.0


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_a_scaled_model_is_the_one_that_transformers_builds_with_that_rule(kind):
    rope = {"rope_type": kind, "factor": LENGTH / TRAINED, "original_max_position_embeddings": TRAINED}
    built, model, inputs = llama(**rope), llama(), tokens()
    built.load_state_dict(model.state_dict())
    before = logits(model, inputs)
    with scaled(model, RopeScaling(kind=kind), LENGTH) as done:
        torch.testing.assert_close(logits(model, inputs), logits(built, inputs))
    assert done == {"kind": kind, "factor": 4.0, "applied": True}
    assert (logits(built, inputs) - before).abs().max() > 0.01
    torch.testing.assert_close(logits(model, inputs), before, atol=0, rtol=0)


@pytest.mark.parametrize("kind", ["linear", "ntk", "yarn"])
def test_our_decoder_turns_as_transformers_does(kind):
    """Channels are paired differently there, so rotations are compared and not weights."""
    model, reference, positions = ours(), llama(), torch.arange(LENGTH)[None]
    with scaled(model, RopeScaling(kind=kind), LENGTH), scaled(reference, RopeScaling(kind=kind), LENGTH):
        turns = model.model.rotary.rotations(positions)[0, :, 0]
        cosine, sine = reference.model.rotary_emb(torch.zeros(1), positions)
        torch.testing.assert_close(turns.real, cosine[0, :, : HEAD // 2])
        torch.testing.assert_close(turns.imag, sine[0, :, : HEAD // 2])
        changed = logits(model, tokens())
    assert (changed - logits(model, tokens())).abs().max() > 0.01


def test_nothing_changes_at_the_training_length_or_without_a_rule():
    model = ours()
    inputs = tokens()[:, :TRAINED]
    before = logits(model, inputs)
    for scaling in (RopeScaling(), RopeScaling(kind="linear"), RopeScaling(kind="ntk"), RopeScaling(kind="yarn")):
        with scaled(model, scaling, TRAINED):
            torch.testing.assert_close(logits(model, inputs), before)


def test_a_memory_alone_has_no_positions_to_scale():
    model = ours("titans", variant="lmm", memory_head_dim=8, chunk=4)
    before = logits(model, tokens())
    with scaled(model, RopeScaling(kind="yarn"), LENGTH) as done:
        torch.testing.assert_close(logits(model, tokens()), before, atol=0, rtol=0)
    assert done == {"kind": "yarn", "factor": 4.0, "applied": False}


def test_models_that_can_t_be_scaled_are_told_apart():
    learned = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=TRAINED, n_embd=16, n_layer=1, n_head=2))
    with pytest.raises(EvaluationError, match="learned positions for 32 tokens"):
        check_length(learned, LENGTH, RopeScaling())
    with pytest.raises(EvaluationError, match="no rotary positions"):
        check_length(learned, TRAINED, RopeScaling(kind="yarn"))
    check_length(learned, TRAINED, RopeScaling())
    biased = BloomForCausalLM(BloomConfig(vocab_size=50, hidden_size=16, n_layer=1, n_head=2))
    biased.config.max_position_embeddings = TRAINED  # biases by distance: no table ends there
    check_length(biased, LENGTH, RopeScaling())
    own = llama(rope_type="linear", factor=2.0)
    with pytest.raises(EvaluationError, match="already scales its rotary positions"):
        check_length(own, LENGTH, RopeScaling(kind="yarn"))
    check_length(copy.deepcopy(own), LENGTH, RopeScaling())
    check_length(ours(), LENGTH, RopeScaling(kind="yarn"))
