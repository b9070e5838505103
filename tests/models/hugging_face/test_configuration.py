import pytest
from pydantic import Field

from tlm_repro.architectures.base import Options
from tlm_repro.architectures.registry import ARCHITECTURES
from tlm_repro.architectures.transformer import Transformer
from tlm_repro.errors import ConfigError
from tlm_repro.models.hugging_face.configuration import TLMConfig
from tlm_repro.spec.run import ModelSpec

SHAPE = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_sizes": [48, 0, 16],
}


class WindowOptions(Options):
    window: int = Field(default=8, ge=1)


@pytest.fixture
def windowed(monkeypatch):
    """An architecture with one option, registered for one test."""

    class Windowed(Transformer):
        title = "Windowed"
        options = WindowOptions

    monkeypatch.setitem(ARCHITECTURES, "windowed", Windowed())


def test_defaults_make_a_valid_configuration():
    config = TLMConfig()
    assert len(config.intermediate_sizes) == config.num_hidden_layers


def test_from_spec_carries_every_field():
    spec = ModelSpec(
        architecture="gated_attention",
        layers=3,
        model_width=16,
        heads=2,
        intermediate_sizes=(48, 0, 16),
        vocab_size=50,
        sequence_length=32,
        tied_embeddings=True,
        rope_theta=500.0,
        norm_eps=1e-6,
        initializer_range=0.1,
    )
    config = TLMConfig.from_spec(spec, bos_token_id=3, eos_token_id=4)
    expected = {
        **SHAPE,
        "architecture": "gated_attention",
        "max_position_embeddings": 32,
        "tie_word_embeddings": True,
        "rope_theta": 500.0,
        "rms_norm_eps": 1e-6,
        "initializer_range": 0.1,
        "mixer": {},
        "bos_token_id": 3,
        "eos_token_id": 4,
    }
    assert {key: getattr(config, key) for key in expected} == expected
    assert config.to_spec() == spec


@pytest.mark.usefixtures("windowed")
def test_a_saved_configuration_reads_back_equal(tmp_path):
    config = TLMConfig(**SHAPE, architecture="windowed", mixer={"window": 5}, rope_theta=77.0)
    config.save_pretrained(tmp_path)
    loaded = TLMConfig.from_pretrained(tmp_path)
    assert loaded.to_dict() == config.to_dict()
    assert loaded.options == WindowOptions(window=5)


@pytest.mark.usefixtures("windowed")
def test_options_take_their_defaults_from_the_registry():
    assert TLMConfig(**SHAPE, architecture="windowed").options == WindowOptions(window=8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"intermediate_sizes": [48, 16]}, "2 MLP widths for 3 layers"),
        ({"intermediate_sizes": [48, -16, 16]}, "width of -16"),
        ({"num_attention_heads": 3}, "16 isn't a multiple of 3 heads"),
        ({"num_attention_heads": 16}, "heads of width 1"),
        ({"num_attention_heads": 0}, "TLMConfig: heads: Input should be greater than or equal to 1"),
        ({"architecture": "perceptron"}, "unknown architecture 'perceptron': choose one of transformer"),
        ({"mixer": {"window": 4}}, "options of architecture 'transformer': window"),
    ],
)
def test_values_that_do_not_fit_are_named(change, message):
    with pytest.raises(ConfigError, match=message):
        TLMConfig(**{**SHAPE, **change})


@pytest.mark.usefixtures("windowed")
def test_an_option_out_of_range_is_named():
    with pytest.raises(ConfigError, match=r"options of architecture 'windowed': window: .*seen: 0"):
        TLMConfig(**SHAPE, architecture="windowed", mixer={"window": 0})
