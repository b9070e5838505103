import json
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, StaticCache
from transformers.cache_utils import DynamicLayer

from tlm_repro.architectures.registry import ARCHITECTURES
from tlm_repro.architectures.transformer import Transformer
from tlm_repro.errors import ConfigError
from tlm_repro.models.cache import layer_state, past_length, tensors
from tlm_repro.models.hugging_face.cache import CacheAdapter, StateLayer
from tlm_repro.models.hugging_face.configuration import TLMConfig


@dataclass(frozen=True, slots=True)
class Memory:
    weights: tuple[Tensor, ...]
    count: Tensor


class Pair(NamedTuple):
    left: Tensor
    right: Tensor | None


@pytest.fixture
def remembering(monkeypatch):
    """An architecture that keeps a state, registered for one test."""

    class Remembering(Transformer):
        def keeps_state(self, model):
            return model.architecture == "remembering"

    monkeypatch.setitem(ARCHITECTURES, "remembering", Remembering())
    return TLMConfig(architecture="remembering", hidden_size=16)


def filled(rows=3):
    """A layer whose every tensor holds its row's number, at each kind of nesting."""
    numbers = torch.arange(float(rows))
    layer = StateLayer()
    layer.update(numbers.view(-1, 1, 1, 1).expand(-1, 2, 5, 4), -numbers.view(-1, 1, 1, 1).expand(-1, 2, 5, 4))
    layer.put("memory", Memory(weights=(numbers.view(-1, 1, 1).expand(-1, 4, 2), numbers), count=numbers.long()))
    layer.put("rest", {"list": [numbers, Pair(numbers, None)], "name": "kept", "empty": None})
    return layer


def row_numbers(layer):
    """The row numbers that each tensor of the layer holds, after checking that a row holds no other value."""
    found = [tensor.reshape(len(tensor), -1) for tensor in tensors((layer.keys, layer.values, layer.states))]
    assert all((flat == flat[:, :1]).all() for flat in found)
    return [flat[:, 0].abs().int().tolist() for flat in found]


@pytest.mark.parametrize(
    ("change", "arguments", "rows"),
    [
        ("reorder_cache", [torch.tensor([2, 0, 0])], [2, 0, 0]),
        ("batch_repeat_interleave", [2], [0, 0, 1, 1, 2, 2]),
        ("batch_select_indices", [torch.tensor([2, 1])], [2, 1]),
        ("batch_select_indices", [torch.tensor([True, False, True])], [0, 2]),
        ("offload", [], [0, 1, 2]),
        ("prefetch", [], [0, 1, 2]),
        ("crop", [0], [0, 1, 2]),
    ],
)
def test_a_change_of_rows_reaches_every_tensor(change, arguments, rows):
    layer = filled()
    getattr(layer, change)(*arguments)
    assert row_numbers(layer) == [rows] * 7
    assert layer.get_seq_length() == 5
    assert type(layer.get("memory")) is Memory
    assert type(layer.get("rest")["list"][1]) is Pair
    assert layer.get("rest")["name"] == "kept"


def test_tokens_are_counted_once_whoever_counts_them():
    layer = StateLayer()
    assert layer.get_seq_length() == 0
    layer.advance(7)
    layer.update(torch.ones(1, 1, 3, 2), torch.ones(1, 1, 3, 2))
    assert layer.get_seq_length() == 10
    assert layer.get_mask_sizes(4) == (14, 0)


def test_keys_and_values_are_those_of_a_dynamic_layer():
    torch.manual_seed(0)
    plain, stateful = DynamicLayer(), StateLayer()
    for time in (4, 1, 2):
        pair = torch.randn(2, 2, 3, time, 5).unbind()
        torch.testing.assert_close(stateful.update(*pair), plain.update(*pair), atol=0, rtol=0)


def test_a_layer_without_keys_is_reordered_too():
    layer = StateLayer()
    layer.put("state", torch.tensor([3.0, 4.0]))
    layer.reorder_cache(torch.tensor([1, 1]))
    assert layer.get("state").tolist() == [4.0, 4.0]
    assert layer.get("another") is None


def test_a_reset_layer_is_a_new_one():
    layer = filled()
    layer.reset()
    assert vars(layer) == vars(StateLayer()) | {"device": torch.device("cpu")}


def test_a_memory_cannot_be_rolled_back():
    layer = filled()
    assert not layer.is_croppable
    with pytest.raises(ConfigError, match="3 tokens were to be taken out of a memory"):
        layer.crop(-3)


def test_the_configuration_says_which_layers_a_cache_has(remembering):
    layers = DynamicCache(config=remembering).layers
    assert [type(layer) for layer in layers] == [StateLayer, StateLayer]
    assert [type(layer) for layer in DynamicCache(config=TLMConfig()).layers] == [DynamicLayer, DynamicLayer]


def test_the_kind_of_cache_is_derived_and_never_saved(remembering, tmp_path):
    remembering.save_pretrained(tmp_path)
    assert "layer_types" not in json.loads((tmp_path / "config.json").read_text())
    loaded = TLMConfig.from_pretrained(tmp_path)
    assert loaded.to_dict() == remembering.to_dict()
    assert loaded.layer_types == ["tlm_state", "tlm_state"]


def test_a_cache_of_another_architecture_is_refused(remembering):
    assert layer_state(None, 0) is None
    cache = DynamicCache(config=remembering)
    assert layer_state(CacheAdapter(cache), 1) is cache.layers[1]
    with pytest.raises(ConfigError, match=r"layer 1 keeps a state, .* a DynamicLayer: pass DynamicCache\(config"):
        layer_state(CacheAdapter(DynamicCache(config=TLMConfig())), 1)
    with pytest.raises(ConfigError, match="part of the DynamicCache is missing"):
        layer_state(CacheAdapter(DynamicCache()), 0)


def test_a_cache_of_fixed_size_is_refused():
    assert past_length(None) == past_length(CacheAdapter(DynamicCache())) == 0
    with pytest.raises(ConfigError, match="a StaticCache of 32 tokens: this decoder takes caches that grow"):
        past_length(CacheAdapter(StaticCache(config=TLMConfig(), max_cache_len=32)))
