"""The residual stream of a decoder: its layers and, in each, the module whose output is the MLP's update of the stream.

They are located by the structure of the modules and verified on a few tokens, so no list of model types is needed.
Hidden states are (batch, time, model) unless a layer flattens them.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from tlm_repro.errors import EvaluationError
from tlm_repro.models.decoder import LanguageModel

# Names of a layer's feed-forward block. `fc2` is the last linear map of one without a module of its own, as in OPT.
FEED_FORWARD_NAMES = ("mlp", "feed_forward", "ffn", "mlp_block", "fc2")


@dataclass(frozen=True)
class Block:
    """A decoder layer, and the module whose output is exactly its MLP's update of the residual; None: no MLP."""

    layer: nn.Module
    mlp: nn.Module | None


@dataclass
class Call:
    """One call of a direct child of a layer. The tensors are copied, because they can change in place."""

    module: nn.Module
    inputs: list[Tensor]
    result: Tensor
    copies: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.copies = [tensor.clone() for tensor in [*self.inputs, self.result]]

    @property
    def output(self) -> Tensor:
        return self.copies[-1]


@dataclass
class Trace:
    """One pass through a layer: the residual before and after it, and the calls of its direct children in order."""

    layer: nn.Module
    before: Tensor
    after: Tensor = field(init=False)
    calls: list[Call] = field(default_factory=list)


@torch.inference_mode()
def blocks(model: nn.Module, token_ids: Tensor) -> list[Block]:
    """The layers of `model` and their MLPs, verified on `token_ids` (tokens,).

    Every layer must run once and read the output of the layer before. The MLP's output must be exactly its update of
    the residual: h' = z + MLP(z), or h' = h + Mixer(h) + MLP(h) in a parallel block.

    Raises:
        EvaluationError: the model isn't such a stack; the message says where it differs.
    """
    name = type(model).__name__
    layers = layer_list(model)
    traces: list[Trace] = []
    with traced(layers, into=traces):
        run_layers(model, token_ids[None])
    if [trace.layer for trace in traces] != layers:
        raise EvaluationError(f"{name} doesn't run its {len(layers)} layers once each and in order")
    for index, trace in enumerate(traces):
        if not torch.isfinite(trace.after).all():
            raise EvaluationError(f"layer {index} of {name} gave a value that isn't finite: check the model's weights")
    for index, (previous, trace) in enumerate(pairwise(traces)):
        if not torch.equal(previous.after, trace.before):
            raise EvaluationError(
                f"layer {index + 1} of {name} doesn't read what layer {index} wrote: it has no single residual stream"
            )
    decoder_blocks = [Block(trace.layer, contribution(trace)) for trace in traces]
    if all(block.mlp is None for block in decoder_blocks):
        raise EvaluationError(f"no layer of {name} has an MLP with one of the names {', '.join(FEED_FORWARD_NAMES)}")
    return decoder_blocks


def run_layers(model: nn.Module, token_ids: Tensor) -> None:
    """Runs the model without its head on `token_ids` (batch, time): no logits are needed."""
    if isinstance(model, LanguageModel):
        model.model(input_ids=token_ids)
    else:
        getattr(model, "base_model", model)(input_ids=token_ids, use_cache=False)


def context_length(model: nn.Module) -> int | None:
    """Tokens of a training sequence; None if the model doesn't say."""
    if isinstance(model, LanguageModel):
        return model.spec.sequence_length
    return getattr(getattr(model, "config", None), "max_position_embeddings", None)


def layer_list(model: nn.Module) -> list[nn.Module]:
    """The decoder's layers: the longest ModuleList that isn't inside another one, as lists of experts are."""
    lists = {name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    outer = [module for name, module in lists.items() if not any(name.startswith(f"{other}.") for other in lists)]
    longest = max(outer, key=len, default=nn.ModuleList())
    if len(longest) < 2:
        raise EvaluationError(f"{type(model).__name__} has no list of layers: only stacks of residual layers work")
    return list(longest)


@contextlib.contextmanager
def traced(layers: list[nn.Module], *, into: list[Trace]) -> Iterator[None]:
    """In the block, every pass through one of the layers appends a trace to `into`."""

    def enter(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        into.append(Trace(layer, residual_argument(args, kwargs).clone()))

    def call(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        inputs = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        into[-1].calls.append(Call(module, inputs, first_tensor(output)))

    def leave(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        into[-1].after = first_tensor(output).clone()

    with contextlib.ExitStack() as stack:
        for layer in layers:
            handles = [layer.register_forward_pre_hook(enter, with_kwargs=True), layer.register_forward_hook(leave)]
            handles += [child.register_forward_hook(call, with_kwargs=True) for child in layer.children()]
            for handle in handles:
                stack.callback(handle.remove)
        yield


def contribution(trace: Trace) -> nn.Module | None:
    """The module whose output is the MLP's update of the residual; None if the layer has no MLP.

    This is the MLP itself or a norm after it, as in Gemma 2 and OLMo 2. The residual to which it is added is one of the
    tensors between the layer's children, or the layer's input plus one of their outputs (parallel blocks).
    """
    layer = trace.layer
    mlp = next((child for name in FEED_FORWARD_NAMES if (child := getattr(layer, name, None)) is not None), None)
    if mlp is None:
        return None
    mlp_calls = [call for call in trace.calls if call.module is mlp]
    if len(mlp_calls) != 1:
        raise EvaluationError(f"a {type(layer).__name__} runs its MLP {len(mlp_calls)} times instead of once")
    calls_after = [call for call in trace.calls if any(tensor is mlp_calls[0].result for tensor in call.inputs)]
    reshaped = [reshape_like(tensor, trace.before) for call in trace.calls for tensor in call.copies]
    hidden_states = [tensor for tensor in reshaped if tensor is not None]
    residuals = [trace.before, *hidden_states, *(trace.before + tensor for tensor in hidden_states)]
    for call in [*mlp_calls, *calls_after]:
        update = reshape_like(call.output, trace.before)
        if update is not None and any(agree(trace.after - residual, update, trace.after) for residual in residuals):
            return call.module
    raise EvaluationError(
        f"the output of {type(layer).__name__}'s {type(mlp).__name__} isn't what the layer adds to its residual: ρ_MLP "
        "can't be measured with hooks if a layer scales the output or adds the residual inside the MLP"
    )


def reshape_like(tensor: Tensor, like: Tensor) -> Tensor | None:
    """A hidden state in the shape of `like`, because some layers flatten batch and time. None for any other tensor."""
    return tensor.reshape(like.shape) if tensor.is_floating_point() and tensor.numel() == like.numel() else None


def agree(left: Tensor, right: Tensor, sum_: Tensor) -> bool:
    """Whether two tensors agree to one in a thousand, or to the rounding error of a sum as large as `sum_`."""
    tolerance = 1e-3 * right.norm() + 4 * torch.finfo(sum_.dtype).eps * sum_.norm()
    return bool((left - right).norm() <= tolerance)


def residual_argument(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The residual among a layer's arguments."""
    return first_tensor(args or kwargs.get("hidden_states"))


def first_tensor(value: Any) -> Tensor:
    """`value`, or the first entry of a tuple: hidden states come first if a module returns several values."""
    tensor = value[0] if isinstance(value, tuple | list) and value else value
    if not isinstance(tensor, Tensor):
        raise EvaluationError(f"a layer returns a {type(tensor).__name__} instead of its hidden states")
    return tensor
