"""The weights that a seed names, and what an architecture must declare before its decoder is built."""

import math

import pytest
import torch
from small_models import SHIPPED_OPTIONS, small_spec
from torch import nn

from tlm_repro.architectures import registry
from tlm_repro.architectures.transformer import Transformer
from tlm_repro.errors import ConfigError
from tlm_repro.models.attention import CausalAttention
from tlm_repro.models.decoder import LanguageModel
from tlm_repro.models.hugging_face.configuration import TLMConfig
from tlm_repro.models.hugging_face.decoder import TLMForCausalLM

CASES = [pytest.param(architecture, options, id=name) for name, (architecture, options) in SHIPPED_OPTIONS.items()]


@pytest.mark.parametrize(("architecture", "options"), CASES)
@pytest.mark.parametrize("tied", [True, False])
def test_a_seed_gives_the_core_and_its_facade_the_same_weights(architecture: str, options: dict, tied: bool) -> None:
    spec = small_spec(architecture, tied_embeddings=tied, mixer=options)
    states, generators = [], []
    for build in (lambda: LanguageModel(spec), lambda: TLMForCausalLM(TLMConfig.from_spec(spec))):
        torch.manual_seed(7)
        states.append(build().state_dict())
        generators.append(torch.get_rng_state())
    core, facade = states
    assert list(core) == list(facade)
    assert all(torch.equal(core[name], facade[name]) for name in core)
    assert torch.equal(*generators)


def test_weights_are_drawn_in_the_order_of_construction() -> None:
    """A transformer of one layer, drawn by hand: each module as torch initialises it, then each as the decoder does."""
    spec = small_spec(layers=1, intermediate_sizes=(48,))
    torch.manual_seed(7)
    state = LanguageModel(spec).state_dict()
    torch.manual_seed(7)
    width = spec.model_width
    embedding = nn.Embedding(spec.vocab_size, width)
    shapes = {"mixer.qkv": (width, 3 * width), "mixer.output": (width, width)}
    shapes |= {"mlp.gate": (width, 48), "mlp.up": (width, 48), "mlp.down": (48, width)}
    maps = {name: nn.Linear(*shape, bias=False) for name, shape in shapes.items()}
    expected = {"model.embed_tokens.weight": embedding.weight.detach().normal_(std=0.2)}
    for name, linear in maps.items():
        ends_branch = name in ("mixer.output", "mlp.down")
        deviation = 0.2 / math.sqrt(2) if ends_branch else 0.2
        expected[f"model.layers.0.{name}.weight"] = linear.weight.detach().normal_(std=deviation)
    head = nn.Linear(width, spec.vocab_size, bias=False)
    expected["lm_head.weight"] = head.weight.detach().normal_(std=0.2)
    norms = {name for name in state if "norm" in name}
    assert state.keys() - norms == expected.keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in expected.items())
    assert all((state[name] == 1).all() for name in norms)


class Remembering(CausalAttention):
    keeps_state = True


def test_a_state_must_be_declared_by_the_registry_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    class Undeclared(Transformer):
        title = "Undeclared"
        mixer = f"{__name__}:Remembering"

    class Declared(Undeclared):
        def keeps_state(self, model) -> bool:  # noqa: ARG002
            return True

    monkeypatch.setitem(registry.ARCHITECTURES, "private", Undeclared())
    with pytest.raises(ConfigError, match="'private': its Remembering keeps a state in the cache, and keeps_state"):
        LanguageModel(small_spec("private"))
    monkeypatch.setitem(registry.ARCHITECTURES, "private", Declared())
    LanguageModel(small_spec("private"))
