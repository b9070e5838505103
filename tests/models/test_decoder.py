import json
import math

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from tlm_repro.architectures.registry import SHIPPED
from tlm_repro.errors import ConfigError
from tlm_repro.models import register
from tlm_repro.models.hugging_face.configuration import TLMConfig
from tlm_repro.models.hugging_face.decoder import TLMForCausalLM, TLMModel

VOCABULARY = 61
# Chunks and windows that the 20 tokens of these tests cross several times.
OPTIONS = {
    "titans": {"memory_head_dim": 8, "expansion": 2, "chunk": 4, "window": 6, "persistent": 3, "segment": 8},
    "hope_attention": {"update": "in_context", "periods": (3, 8, 8, 0)},
}


def small(architecture="transformer", widths=(48, 0, 16), **other):
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": len(widths), "vocab_size": VOCABULARY}
    # A wide initialisation: sharp distributions make an error visible.
    config = TLMConfig(
        **{**shape, "initializer_range": 0.2, **other},
        architecture=architecture,
        intermediate_sizes=widths,
        mixer=OPTIONS.get(architecture),
    )
    return TLMForCausalLM(config)


@pytest.fixture
def tokens():
    # From 1: `generate` takes token 0 for padding.
    return torch.randint(1, VOCABULARY, (2, 20), generator=torch.Generator().manual_seed(1))


def llama(tied):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        initializer_range=0.2,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        tie_word_embeddings=tied,
    )
    model = LlamaForCausalLM(config)
    for name, weight in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    return model.eval()


def paired(rows):
    """Llama turns channel i with i + E/2, this decoder 2i with 2i + 1: the rows of a query or key map, reordered."""
    return rows.unflatten(0, (4, 2, 4)).transpose(1, 2).reshape(rows.shape)


def with_weights_of(source, tied):
    model = small(widths=(48,) * 3, rope_theta=500.0, tie_word_embeddings=tied)
    theirs, ours = source.state_dict(), {}
    for name in model.state_dict():
        theirs_name = name.replace("input_norm", "input_layernorm").replace("mlp_norm", "post_attention_layernorm")
        for mine, yours in [("mlp.gate", "mlp.gate_proj"), ("mlp.up", "mlp.up_proj"), ("mlp.down", "mlp.down_proj")]:
            theirs_name = theirs_name.replace(mine, yours)
        theirs_name = theirs_name.replace("mixer.output", "self_attn.o_proj")
        if "mixer.qkv" in name:
            query, key, value = (theirs[name.replace("mixer.qkv", f"self_attn.{part}_proj")] for part in "qkv")
            ours[name] = torch.cat((paired(query), paired(key), value))
        else:
            ours[name] = theirs[theirs_name]
    model.load_state_dict(ours)
    return model.eval()


@pytest.mark.parametrize("tied", [True, False])
def test_logits_loss_and_gradients_are_those_of_llama(tokens, tied):
    source = llama(tied)
    model = with_weights_of(source, tied)
    labels = tokens.clone()
    labels[0, :5] = -100
    theirs, ours = source(tokens, labels=labels), model(tokens, labels=labels)
    torch.testing.assert_close(ours.logits, theirs.logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.loss, theirs.loss, atol=1e-6, rtol=1e-6)
    theirs.loss.backward()
    model.train()(tokens, labels=labels).loss.backward()
    for mine, yours in [
        (model.model.embed_tokens, source.model.embed_tokens),
        (model.model.layers[0].mlp.gate, source.model.layers[0].mlp.gate_proj),
        (model.model.layers[1].mixer.output, source.model.layers[1].self_attn.o_proj),
        (model.model.layers[2].input_norm, source.model.layers[2].input_layernorm),
        (model.lm_head, source.lm_head),
    ]:
        torch.testing.assert_close(mine.weight.grad, yours.weight.grad, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("architecture", SHIPPED)
def test_a_later_token_never_moves_an_earlier_prediction(tokens, architecture):
    model = small(architecture).eval()
    changed = tokens.clone()
    changed[:, 11] = (changed[:, 11] + 1) % VOCABULARY
    before, after = model(tokens).logits, model(changed).logits
    torch.testing.assert_close(before[:, :11], after[:, :11], atol=0, rtol=0)
    assert (before[:, 11:] - after[:, 11:]).abs().amax(dim=-1).min() > 1e-4


@pytest.mark.parametrize("architecture", SHIPPED)
@pytest.mark.parametrize("steps", [[20], [12, 1, 1, 1, 5], [1] * 20])
def test_any_split_through_the_cache_gives_the_same_logits(tokens, architecture, steps):
    model = small(architecture).eval()
    cache, pieces = None, []
    for piece in tokens.split(steps, dim=1):
        output = model(piece, cache=cache, use_cache=True)
        cache = output.cache
        pieces.append(output.logits)
    assert cache.get_seq_length() == 20
    torch.testing.assert_close(torch.cat(pieces, dim=1), model(tokens).logits, atol=1e-5, rtol=1e-5)


def test_nothing_is_cached_unless_asked_for(tokens):
    assert small().eval()(tokens).cache is None


@pytest.mark.parametrize("architecture", SHIPPED)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_changes_no_real_prediction(tokens, architecture, side):
    model, junk = small(architecture).eval(), torch.full((2, 6), 7)
    padded = torch.cat((junk, tokens) if side == "left" else (tokens, junk), dim=1)
    mask = torch.ones_like(padded)
    real = slice(6, None) if side == "left" else slice(None, 20)
    mask[:, : 6 if side == "left" else None] = 0
    mask[:, real] = 1
    logits = model(padded, attention_mask=mask).logits
    assert logits.isfinite().all()
    torch.testing.assert_close(logits[:, real], model(tokens).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kept", [1, 5, torch.tensor([0, 3, 19])])
def test_logits_to_keep_selects_positions(tokens, kept):
    model = small().eval()
    positions = kept if isinstance(kept, torch.Tensor) else torch.arange(20 - kept, 20)
    targets = tokens.roll(1, dims=1)
    expected = model(tokens).logits[:, positions]
    output = model(tokens, shift_labels=targets, logits_to_keep=kept)
    torch.testing.assert_close(output.logits, expected, atol=1e-6, rtol=1e-5)
    nats = -expected.log_softmax(dim=-1).gather(2, targets[:, positions, None])
    torch.testing.assert_close(output.loss, nats.mean())


def test_labels_and_labels_already_shifted_give_one_loss(tokens):
    model = small().eval()
    logits = model(tokens).logits[:, :-1].log_softmax(dim=-1)
    expected = -logits.gather(2, tokens[:, 1:, None]).mean()
    for loss in [
        model(tokens, labels=tokens).loss,
        model(tokens[:, :-1], shift_labels=tokens[:, 1:]).loss,
        model.train()(tokens, labels=tokens).loss,
    ]:
        torch.testing.assert_close(loss, expected)


def test_training_never_holds_the_logits(tokens):
    assert small().train()(tokens, labels=tokens).logits is None
    assert small().train()(tokens).logits.shape == (2, 20, VOCABULARY)


@pytest.mark.parametrize("architecture", SHIPPED)
def test_the_loss_of_an_untrained_decoder_is_that_of_guessing(tokens, architecture):
    model = small(architecture, initializer_range=0.02)
    assert model(tokens, labels=tokens).loss.item() == pytest.approx(math.log(VOCABULARY), abs=0.05)


def test_initial_deviations_and_seeds():
    model, again = (small(widths=(512,) * 8, hidden_size=128, initializer_range=0.02) for _ in range(2))
    layer = model.model.layers[3]
    for module, deviation in [
        (layer.mixer.qkv, 0.02),
        (layer.mlp.gate, 0.02),
        (layer.mixer.output, 0.02 / 4),
        (layer.mlp.down, 0.02 / 4),
        (model.model.embed_tokens, 0.02),
    ]:
        assert module.weight.std().item() == pytest.approx(deviation, rel=0.03)
    assert all(torch.equal(first, second) for first, second in zip(model.parameters(), again.parameters(), strict=True))


def test_a_layer_of_width_zero_has_no_mlp():
    layers = small(widths=(48, 0, 16)).model.layers
    assert [layer.mlp is None for layer in layers] == [False, True, False]
    assert [layer.mlp_norm is None for layer in layers] == [False, True, False]
    assert [layer.mlp.up.weight.shape[0] for layer in layers if layer.mlp is not None] == [48, 16]


@pytest.mark.parametrize("architecture", SHIPPED)
@pytest.mark.parametrize("tied", [True, False])
def test_a_saved_decoder_comes_back_through_the_auto_classes(tmp_path, tokens, architecture, tied):
    register()
    register()
    model = small(architecture, widths=(48, 0, 16), tie_word_embeddings=tied).eval()
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["intermediate_sizes"] == [48, 0, 16]
    stored = sum(weight.numel() for weight in load_file(tmp_path / "model.safetensors").values())
    assert stored == sum(weight.numel() for weight in model.parameters())
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is TLMForCausalLM
    assert type(AutoConfig.from_pretrained(tmp_path)) is TLMConfig
    assert type(AutoModel.from_pretrained(tmp_path)) is TLMModel
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) is tied
    torch.testing.assert_close(loaded.state_dict(), model.state_dict(), atol=0, rtol=0)
    # Not to the bit: weights read from a file are aligned differently in memory, and matrix products round with that.
    torch.testing.assert_close(loaded(tokens).logits, model(tokens).logits, atol=1e-5, rtol=1e-5)


def test_gradient_checkpointing_changes_no_gradient(tokens):
    plain, checkpointed = small().train(), small().train()
    checkpointed.gradient_checkpointing_enable()
    for model in (plain, checkpointed):
        model(tokens, labels=tokens).loss.backward()
    for first, second in zip(plain.parameters(), checkpointed.parameters(), strict=True):
        torch.testing.assert_close(first.grad, second.grad)


def test_hidden_states_are_those_between_the_layers(tokens):
    model = small().eval()
    states = model(tokens, output_hidden_states=True).hidden_states
    assert len(states) == 4
    torch.testing.assert_close(states[0], model.model.embed_tokens(tokens))
    rotary = model.model.context(states[0], None, None, None)
    torch.testing.assert_close(states[2], model.model.layers[1](states[1], rotary))


def test_embeddings_may_be_given_instead_of_tokens(tokens):
    model = small().eval()
    embedded = model.model.embed_tokens(tokens)
    torch.testing.assert_close(model(inputs_embeds=embedded).logits, model(tokens).logits)
    with pytest.raises(ConfigError, match="exactly one"):
        model(tokens, inputs_embeds=embedded)


def test_a_mask_that_forgets_the_cache_is_refused(tokens):
    model = small().eval()
    cache = model(tokens[:, :8], use_cache=True).cache
    with pytest.raises(ConfigError, match="covers 4 tokens, but there are 8 cached and 4 new ones"):
        model(tokens[:, 8:12], attention_mask=torch.ones(2, 4), cache=cache)
