"""Layer novelty: how far each layer's update points away from the residual stream (paper, Section 4 and Figure 4).

    ρ_block(l) = cos(h_{l+1} − h_l, h_l)        ρ_MLP(l) = cos(MLP_l(z_l), h_l)

h_l is the residual that enters layer l, and z_l the residual that its MLP reads. In a parallel block, as in GPT-NeoX,
the MLP reads h_l itself, and ρ_MLP is the cosine of its output with h_l. Each ρ is a mean of per-token cosines; novelty
falls as ρ rises. The size of an update is the norm ratio ‖MLP_l(z_l)‖ / ‖h_l‖, averaged in the same way. All are
measured with forward hooks, so this works for any Hugging Face decoder. Runs of this project need no transformers.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from tqdm import tqdm

from tlm_repro.artifacts.manifest import versions
from tlm_repro.data.corpora import documents
from tlm_repro.data.readers.base import Document
from tlm_repro.data.shards import TokenData
from tlm_repro.devices import default_device, device_name
from tlm_repro.errors import ArtifactError, ConfigError, EvaluationError
from tlm_repro.models.folder import read_decoder, read_tokenizer
from tlm_repro.novelty.residual import Block, blocks, context_length, first_tensor, residual_argument, run_layers
from tlm_repro.records.manifests import ModelManifest
from tlm_repro.records.novelty import CONSTANT, FEWEST_LAYERS, Bounds, Correlation, Intervals, Mean, Novelty
from tlm_repro.spec.data import HeldOut
from tlm_repro.spec.evaluation import NoveltySpec
from tlm_repro.statistics.intervals import student_quantile

PROBE_TOKENS = 16
# Neighbouring tokens are correlated, so whole blocks are resampled. With fewer blocks there is no interval.
BLOCK_TOKENS, MIN_BLOCKS = 128, 8
RESAMPLES, COVERAGE = 2000, 0.95


@dataclass(frozen=True)
class Profile:
    """ρ of every layer, including the first and the last, over `tokens` tokens in windows of at most `window`.

    `norm_ratio` is ‖MLP‖ / ‖h‖. Like `mlp`, it is None for a layer without an MLP.
    """

    tokens: int
    window: int
    block: list[Mean]
    mlp: list[Mean | None]
    norm_ratio: list[Mean | None]
    intervals: Intervals


def measure_novelty(
    spec: NoveltySpec, *, run: Path | None = None, data: Path | None = None, device: str | None = None
) -> Novelty:
    """Measures a model's layer novelty.

    Args:
        spec: names the text and, unless `run` is given, the external model.
        run: the manifest of the run to measure.
        data: the manifest of the data set, if the text is held-out documents.
        device: PyTorch's name of a device; None: the first free GPU, else the CPU.

    Raises:
        ConfigError: there is no model or no held-out text.
        EvaluationError: the model is unavailable or can't be measured, or the text is too short.
        ArtifactError: a manifest is of another kind, or a file doesn't match it.
        DataError: the text can't be read.
    """
    start = time.perf_counter()
    labels = None
    device = device or default_device()
    model: nn.Module
    if spec.external is not None:
        from tlm_repro.models.hugging_face import pretrained

        name = spec.external.name
        model, tokenizer = pretrained.load_external(spec.external, device=device)
        encode = pretrained.encoder(tokenizer)
    elif run is not None:
        manifest = ModelManifest.read(run, verify="sha256")
        name, labels = manifest.id, {"id": manifest.id, **manifest.spec.labels.canonical()}
        model = read_decoder(manifest.folder / "model", device=device)
        encode = encoder(read_tokenizer(manifest.folder / "model", model.spec))
    else:
        raise ConfigError("no model to measure: name an external model in the spec, or pass the manifest of a run")
    profile = measure_profile(model, token_ids(encode, texts(spec, data), spec.tokens), window=spec.window)
    return Novelty.create(
        {
            "schema": 1,
            "kind": "novelty",
            "model": {
                "name": name,
                "run": labels,
                "layers": len(profile.block),
                "parameters": sum(parameter.numel() for parameter in model.parameters()),
            },
            "spec": spec.canonical(),
            **vars(profile),
            "correlation": {"block": correlation(profile.block), "mlp": correlation(profile.mlp)},
            "versions": versions(),
            "device": device_name(device),
            "wall_time_s": round(time.perf_counter() - start, 3),
        }
    )


def texts(spec: NoveltySpec, data: Path | None) -> Iterator[Document]:
    """The documents of the spec's text, in order."""
    if not isinstance(spec.text, HeldOut):
        return documents(spec.text)
    if data is None:
        raise ConfigError("the text is held-out documents, but there is no data set: pass its manifest as --data")
    token_data = TokenData.open(data)
    if spec.data is not None and token_data.manifest.id != spec.data.name:
        raise ArtifactError(
            f"{data} describes data set {token_data.manifest.id}, but {spec.data.name} is needed: pass its manifest"
        )
    return token_data.held_out()


Encode = Callable[[str], list[int]]


def encoder(tokenizer: Tokenizer) -> Encode:
    """A function that encodes text with a tokenizer of the tokenizers library, without special tokens."""
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def token_ids(encode: Encode, texts: Iterable[Document], tokens: int) -> Tensor:
    """The first `tokens` token ids of the concatenated documents, without special tokens: (tokens,) int64.

    Raises:
        EvaluationError: the text has fewer tokens.
    """
    ids: list[int] = []
    for document in texts:
        ids += encode(document.text)
        if len(ids) >= tokens:
            return torch.tensor(ids[:tokens])
    raise EvaluationError(f"the text has {len(ids)} tokens, not {tokens}: reduce tokens, or name a longer text")


@torch.inference_mode()
def measure_profile(model: Any, token_ids: Tensor, *, window: int) -> Profile:
    """ρ_block and ρ_MLP of every layer on `token_ids` (tokens,), in windows that don't overlap.

    A window is no longer than the model's context. Only cosines are stored, not hidden states.

    Raises:
        EvaluationError: the model isn't a stack of residual layers, or a cosine isn't finite.
    """
    model.eval()
    window = min(window, context_length(model) or window)
    ids = token_ids.to(next(model.parameters()).device)
    layers = blocks(model, ids[: min(PROBE_TOKENS, window)])
    cosines = Cosines(layers)
    with cosines.attached():
        for part in tqdm(ids.split(window), desc="novelty", unit="window", disable=None):
            run_layers(model, part[None])
    block = [estimate(values, f"layer {index}") for index, values in enumerate(cosines.block)]
    mlp = [
        estimate(values, f"the MLP of layer {index}") if values else None for index, values in enumerate(cosines.mlp)
    ]
    return Profile(
        tokens=len(ids),
        window=window,
        block=block,
        mlp=mlp,
        norm_ratio=[
            estimate(values, f"the MLP of layer {index}") if values else None
            for index, values in enumerate(cosines.norm_ratio)
        ],
        intervals=intervals(cosines.block, cosines.mlp),
    )


Hook = Callable[[nn.Module, tuple[Any, ...], Any], None]


class Cosines:
    """Forward hooks that compute per-token cosines in each layer, so that no hidden state is stored.

    `block[l]`, `mlp[l]` and `norm_ratio[l]` have one (tokens,) tensor for each window. The last two are empty for a
    layer without an MLP.
    """

    def __init__(self, layers: list[Block]) -> None:
        self.layers = layers
        self.block: list[list[Tensor]] = [[] for _ in layers]
        self.mlp: list[list[Tensor]] = [[] for _ in layers]
        self.norm_ratio: list[list[Tensor]] = [[] for _ in layers]
        self.residual = torch.empty(0)

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for index, layer in enumerate(self.layers):
                handles = [
                    layer.layer.register_forward_pre_hook(self.enter, with_kwargs=True),
                    layer.layer.register_forward_hook(self.block_collector(index)),
                ]
                if layer.mlp is not None:
                    handles.append(layer.mlp.register_forward_hook(self.mlp_collector(index)))
                for handle in handles:
                    stack.callback(handle.remove)
            yield

    def enter(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # A copy, because some layers add to their input in place.
        self.residual = residual_argument(args, kwargs).to(torch.float64, copy=True)

    def block_collector(self, index: int) -> Hook:
        """A hook on a layer, whose output is the residual plus the layer's update."""

        def collect(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
            self.block[index].append(cosine(self.in_residual_shape(output) - self.residual, self.residual))

        return collect

    def mlp_collector(self, index: int) -> Hook:
        """A hook on an MLP, whose output is its update of the residual."""

        def collect(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
            update = self.in_residual_shape(output)
            self.mlp[index].append(cosine(update, self.residual))
            self.norm_ratio[index].append(norm_ratio(update, self.residual))

        return collect

    def in_residual_shape(self, output: Any) -> Tensor:
        return first_tensor(output).double().reshape(self.residual.shape)


def cosine(left: Tensor, right: Tensor) -> Tensor:
    """Cosines of the vectors in the last dimension, flattened, on the CPU; 0 if a vector is zero."""
    norms = left.norm(dim=-1) * right.norm(dim=-1)
    return torch.where(norms == 0, 0.0, (left * right).sum(-1) / norms).flatten().cpu()


def norm_ratio(update: Tensor, residual: Tensor) -> Tensor:
    """‖update‖ ÷ ‖residual‖ over the last dimension, flattened, on the CPU; 0 if both are zero."""
    norms = update.norm(dim=-1), residual.norm(dim=-1)
    return torch.where(norms[0] == 0, 0.0, norms[0] / norms[1]).flatten().cpu()


def estimate(cosines: Sequence[Tensor], where: str) -> Mean:
    """Mean and standard error of all windows' cosines. Raises EvaluationError, naming `where`, if one isn't finite."""
    values = torch.cat(list(cosines)).numpy()
    if not np.isfinite(values).all():
        raise EvaluationError(f"{where} gave a value that isn't finite: check the model's weights")
    return Mean(mean=float(values.mean()), stderr=float(values.std(ddof=1) / np.sqrt(len(values))))


def correlation(estimates: Sequence[Mean | None]) -> Correlation:
    """Pearson's r between ρ and depth, the first and the last layer left out as in the paper's Section 4."""
    inner = [
        (depth, estimate.mean)
        for depth, estimate in enumerate(estimates)
        if estimate is not None and 0 < depth < len(estimates) - 1
    ]
    depths, means = np.array(inner).reshape(-1, 2).T
    if len(inner) < FEWEST_LAYERS or np.ptp(means) < CONSTANT:
        return Correlation(r=None, layers=len(inner))
    r = np.vecdot(unit_deviation(depths), unit_deviation(means))
    return Correlation(r=float(np.clip(r, -1, 1)), layers=len(inner))


def unit_deviation(values: np.ndarray) -> np.ndarray:
    """Deviations from the mean, scaled to length 1."""
    deviation = values - values.mean()
    largest = np.abs(deviation).max()
    return deviation / (largest * np.sqrt(np.square(deviation / largest).sum()))  # neither overflows nor underflows


def intervals(block: Sequence[Sequence[Tensor]], mlp: Sequence[Sequence[Tensor]]) -> Intervals:
    """Intervals of r from per-token cosines: for each layer, one (tokens,) tensor a window, or none without an MLP."""
    pieces = [piece.numel() for window in block[0] for piece in window.split(BLOCK_TOKENS)] if block else []
    if len(pieces) < MIN_BLOCKS:
        return Intervals(block=None, mlp=None, difference=None)
    # All layers and both kinds of ρ use the same resamples, because their noise is shared.
    count = len(pieces)
    draws = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
    draws = np.vstack([np.ones(count), draws])  # the first row is the text itself
    weights = draws / (draws @ np.array(pieces, dtype=float))[:, None]
    of_block, of_mlp = (resampled_correlation(cosines, weights) for cosines in (block, mlp))
    difference = None if of_block is None or of_mlp is None else student_interval(of_mlp - of_block, count)
    return Intervals(
        block=correlation_interval(of_block, count), mlp=correlation_interval(of_mlp, count), difference=difference
    )


def resampled_correlation(cosines: Sequence[Sequence[Tensor]], weights: np.ndarray) -> np.ndarray | None:
    """r in each resample, (resamples,). `weights` (resamples, blocks) convert a layer's block sums to its mean."""
    inner = [depth for depth, windows in enumerate(cosines) if windows and 0 < depth < len(cosines) - 1]
    if len(inner) < FEWEST_LAYERS:
        return None
    sums = [[float(part.sum()) for window in cosines[depth] for part in window.split(BLOCK_TOKENS)] for depth in inner]
    means = weights @ np.array(sums).T  # (resamples, layers)
    if np.ptp(means, axis=1).min() < CONSTANT:
        return None
    position, centred = np.array(inner) - np.mean(inner), means - means.mean(axis=1, keepdims=True)
    return np.asarray(centred @ position / (np.linalg.norm(centred, axis=1) * np.linalg.norm(position)))


def correlation_interval(values: np.ndarray | None, blocks: int) -> Bounds | None:
    """The interval of r, computed on Fisher's scale artanh r, where it is nearly symmetric."""
    if values is None:
        return None
    low, high = student_interval(np.arctanh(np.clip(values, -1 + CONSTANT, 1 - CONSTANT)), blocks)
    return math.tanh(low), math.tanh(high)


def student_interval(values: np.ndarray, blocks: int) -> Bounds:
    """Student's interval from a value and its resamples, corrected for their bias (Efron and Tibshirani 1993).

    Quantiles of the resamples would be too narrow with so few blocks.
    """
    value, resamples = float(values[0]), values[1:]
    spread = float(resamples.std()) * math.sqrt(blocks / (blocks - 1))
    half = student_quantile((1 + COVERAGE) / 2, blocks - 1) * spread
    centre = 2 * value - float(resamples.mean())
    return centre - half, centre + half
