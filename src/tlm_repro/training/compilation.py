"""torch.compile, one region at a time.

One graph over all layers would take minutes to build and would be built again for every allocation. So each layer is a
region with a cache of its own. In a tapered model every layer has another width; in a shared cache these would count as
recompilations of one function, and after eight of them torch continues uncompiled with a mere warning.
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

    Fast weights ask in Python at which token of a chunk each row is. A graph would break there again and again and be
    slower than none.
    """
    for layer in model.layers:
        halves = [half for half in (layer.mixer, layer.mlp) if half is not None]
        compilable = [half for half in halves if not any_data_dependent(half)]
        yield from [layer] if len(compilable) == len(halves) else compilable


def compile_layers(model: LanguageModel, backend: str | Callable[..., Any] = "inductor") -> None:
    """Compiles the model's regions in place, on their first call. Names of parameters don't change.

    Shapes are fixed, because training has only one.
    """
    import torch._dynamo

    # DDP would cut graphs at its buckets, but a layer is small already, and a checkpointed one can't be cut.
    torch._dynamo.config.optimize_ddp = False
    for region in regions(model):
        region.compile(backend=backend, dynamic=False, isolate_recompiles=True)


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """A context in which compiled regions run as plain Python, for shapes and modes other than training's."""
    with torch.compiler.set_stance("force_eager"):
        yield
