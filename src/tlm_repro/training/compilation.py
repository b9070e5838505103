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

from tlm_repro.models.decoder import LanguageModel
from tlm_repro.models.mixer import any_data_dependent


def regions(model: LanguageModel) -> Iterator[nn.Module]:
    """Each layer whole, or only the half of it whose control flow doesn't depend on data.

    Fast weights ask in Python at which token of a chunk each row stands; a graph would break there again and again and
    be slower than none.
    """
    for layer in model.layers:
        halves = [half for half in (layer.mixer, layer.mlp) if half is not None]
        compilable = [half for half in halves if not any_data_dependent(half)]
        yield from [layer] if len(compilable) == len(halves) else compilable


def compile_layers(model: LanguageModel, backend: str | Callable[..., Any] = "inductor") -> None:
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
