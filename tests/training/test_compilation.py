"""Compiled and checkpointed layers: the same numbers, one graph a layer, less memory."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

from tlm_repro.models.hugging_face.configuration import TLMConfig
from tlm_repro.models.hugging_face.decoder import TLMForCausalLM
from tlm_repro.training.compilation import compile_layers, regions, uncompiled

LAYERS = 10  # each of another width: two more than the recompilations that torch allows one function
TITANS = {"memory_head_dim": 8, "chunk": 4, "window": 6, "persistent": 2}
IN_CONTEXT = {"update": "in_context", "periods": (4, 0)}
ALL: list[tuple[str, dict[str, Any]]] = [
    ("transformer", {}),
    ("gated_attention", {}),
    ("titans", TITANS),
    ("titans", {**TITANS, "variant": "lmm"}),
    ("hope_attention", {}),
    ("hope_attention", IN_CONTEXT),
]


@pytest.fixture(autouse=True)
def _no_former_graphs() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def decoder(architecture: str, mixer: dict[str, Any], *, layers: int = LAYERS, width: int = 16) -> TLMForCausalLM:
    torch.manual_seed(0)
    config = TLMConfig(
        architecture=architecture,
        vocab_size=40,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_sizes=[8 * (2 * layers - index) for index in range(layers)],
        max_position_embeddings=16,
        **({"mixer": mixer} if mixer else {}),
    )
    return TLMForCausalLM(config).train()


def batch(sequences: int = 2, time: int = 12) -> torch.Tensor:
    return torch.randint(40, (sequences, time + 1), generator=torch.Generator().manual_seed(1))


def loss(model: TLMForCausalLM) -> torch.Tensor:
    tokens = batch()
    return model(input_ids=tokens[:, :-1], shift_labels=tokens[:, 1:], use_cache=False).loss


def loss_and_gradients(model: TLMForCausalLM) -> tuple[float, dict[str, torch.Tensor | None]]:
    model.zero_grad()
    value = loss(model)
    value.backward()
    return value.item(), {name: parameter.grad for name, parameter in model.named_parameters()}


def assert_same(ours: dict[str, torch.Tensor | None], theirs: dict[str, torch.Tensor | None], atol: float) -> None:
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, atol=atol, rtol=0, msg=name)


def checkpointed(model: TLMForCausalLM) -> TLMForCausalLM:
    model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
    return model


@pytest.mark.parametrize("both", [False, True], ids=["compiled", "compiled and checkpointed"])
@pytest.mark.parametrize(("architecture", "mixer"), [ALL[0], ALL[1], ALL[4]])
def test_a_tapered_model_has_one_graph_a_layer(architecture: str, mixer: dict[str, Any], both: bool) -> None:
    plain, compiled = decoder(architecture, mixer), decoder(architecture, mixer)
    if both:
        checkpointed(compiled)
    counter = CompileCounterWithBackend("eager")
    compile_layers(compiled, counter)
    for _ in range(2):
        (ours, our_gradients), (theirs, their_gradients) = loss_and_gradients(compiled), loss_and_gradients(plain)
        assert ours == pytest.approx(theirs, abs=1e-6)
        assert_same(our_gradients, their_gradients, atol=1e-6)
    assert counter.frame_count == LAYERS
    assert not counters["graph_break"]
    assert not counters["unimplemented"]
    assert compiled.state_dict().keys() == plain.state_dict().keys()


@pytest.mark.parametrize(("architecture", "mixer"), [ALL[2], ALL[3], ALL[5]])
def test_of_layers_with_fast_weights_the_other_half_is_compiled(architecture: str, mixer: dict[str, Any]) -> None:
    plain, compiled = decoder(architecture, mixer, layers=3), decoder(architecture, mixer, layers=3)
    halves = [layer.mlp if architecture == "titans" else layer.mixer for layer in compiled.model.layers]
    assert list(regions(compiled)) == halves
    counter = CompileCounterWithBackend("eager")
    compile_layers(compiled, counter)
    (ours, our_gradients), (theirs, their_gradients) = loss_and_gradients(compiled), loss_and_gradients(plain)
    assert ours == pytest.approx(theirs, abs=1e-6)
    assert_same(our_gradients, their_gradients, atol=1e-6)
    assert counter.frame_count == 3
    assert not counters["graph_break"]


def test_other_shapes_and_modes_run_uncompiled() -> None:
    model = decoder("transformer", {}, layers=2)
    counter = CompileCounterWithBackend("eager")
    compile_layers(model, counter)
    with uncompiled(), torch.no_grad():
        model.eval()(input_ids=batch(3, 7), use_cache=False)
    assert counter.frame_count == 0


@pytest.mark.parametrize(("architecture", "mixer"), ALL)
def test_checkpointed_layers_have_the_same_gradients_to_the_bit(architecture: str, mixer: dict[str, Any]) -> None:
    plain, cheap = decoder(architecture, mixer, layers=3), checkpointed(decoder(architecture, mixer, layers=3))
    (ours, our_gradients), (theirs, their_gradients) = loss_and_gradients(cheap), loss_and_gradients(plain)
    assert ours == theirs
    assert_same(our_gradients, their_gradients, atol=0)


def saved_bytes(model: TLMForCausalLM) -> int:
    """What autograd holds between forward and backward, each storage once, without the weights."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    held: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            held[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        value = loss(model)
    assert value.isfinite()
    return sum(held.values())


@pytest.mark.parametrize(("architecture", "mixer"), ALL)
def test_checkpointed_layers_hold_little_more_than_their_inputs(architecture: str, mixer: dict[str, Any]) -> None:
    plain = decoder(architecture, mixer, layers=LAYERS)
    before, after = saved_bytes(plain), saved_bytes(checkpointed(plain))
    inputs = LAYERS * 2 * 12 * 16 * 4  # layers × sequences × tokens × width × bytes
    head = (40 + 3 * 2 * 12) * 16 * 4 + 5 * 2 * 12 * 8  # the head's gradients, last norm, and small change
    assert after <= inputs + head
    assert before > 4 * after
