"""torch.compile, a region at a time.

One graph over all layers would take minutes to build and be built again for every allocation. A layer is a region of
its own, with a cache of its own: of a tapered model every layer has another width, and in a shared cache they would
count as recompilations of one function, of which torch allows eight before it gives up without an error.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from tlm_repro.models.decoder import DecoderLayer, TLMForCausalLM


def regions(model: TLMForCausalLM) -> Iterator[nn.Module]:
    """Each layer whole, or only the half of it that isn't steered by data.

    Fast weights ask in Python at which token of a chunk each row stands; a graph would break there again and again and
    be slower than none.
    """
    for layer in model.model.layers:
        assert isinstance(layer, DecoderLayer)
        halves = [half for half in (layer.mixer, layer.mlp) if half is not None]
        fit = [half for half in halves if not steered_by_data(half)]
        yield from [layer] if len(fit) == len(halves) else fit


def steered_by_data(block: nn.Module) -> bool:
    """Whether a part of it says that its control flow depends on values."""
    return any(getattr(module, "steered_by_data", False) for module in block.modules())


def compile_layers(model: TLMForCausalLM, backend: str | Callable[..., Any] = "inductor") -> None:
    """Compiles the model's regions in place, when they are first called; names of parameters stay as they are.

    Shapes are taken as fixed: training has one.
    """
    import torch._dynamo

    # DDP would have graphs cut at its buckets: a layer is small already, and one with a checkpoint can't be cut.
    torch._dynamo.config.optimize_ddp = False
    for region in regions(model):
        region.compile(backend=backend, dynamic=False, isolate_recompiles=True)


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """In the block compiled regions run as plain Python: for shapes and modes that aren't training's."""
    with torch.compiler.set_stance("force_eager"):
        yield
