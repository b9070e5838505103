"""Speed and memory of a training step of each architecture at equal size, beside the Transformer and titans-pytorch.

Equal size is equal parameters: the MLPs of richer mixers are narrower, by the closed forms of the cost model. The
contenders take turns in one process, as in `training.py`; what is compared are ratios within a round. Run:

    python benchmarks/mixers.py --sequence 512 2048 8192 --chunk 16 32 64 --json mixers.json
    python benchmarks/mixers.py --architectures titans:variant=lmm hope_attention:update=in_context

Peak memory is the most bytes that tensors hold at once during a step beyond those held before it (weights and AdamW's
moments): activations, gradients, temporaries. On a CPU it's the running sum over the profiler's record of each
allocation, on a GPU the allocator's own peak. Libraries' scratch space and fragmentation aren't in it.

The peer runs where titans-pytorch is (`pip install -c constraints.txt '.[bench]'`). Its NeuralMemory stands as
the mixer of our own decoder, with gradients renewed each chunk, as in the paper, or all taken at the sequence's start,
as it does by default; and its MemoryAsContextTransformer has a memory in every layer. Of ours, `lmm` is the nearest to
the first two and `mac` to the last.
"""

import argparse
import itertools
import json
import os
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import peers
import torch
import yaml
from torch import Tensor, nn

from tlm_repro.allocation.widths import layer_widths
from tlm_repro.architectures.accounting import parameters, training_flops
from tlm_repro.architectures.registry import architecture
from tlm_repro.errors import TLMError
from tlm_repro.models.hugging_face.configuration import TLMConfig
from tlm_repro.models.hugging_face.decoder import TLMForCausalLM
from tlm_repro.spec.run import ModelSpec
from tlm_repro.training.optimizers.adamw import PeriodicAdamW
from tlm_repro.training.optimizers.periodic import parameter_groups
from training import measure, spread

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own chatter
TOLERANCE = 0.02  # of the Transformer's parameters
WIDTH_UNIT = 16
LEARNING_RATE = 1e-4
REFERENCE = "transformer"
PEERS = ("renewed", "default", "mac")
MIB = 2**20


@dataclass(eq=False)
class Contender:
    """A model and the way to its loss; `step` takes one optimisation step on a fixed random batch."""

    name: str
    model: nn.Module
    loss: Callable[[], Tensor]
    autocast: Callable[[], Any]
    flops: int | None = None  # of one step; None: not known in closed form
    chunk: int | None = None
    tapered: bool = False
    peak: list[int] = field(default_factory=list)  # bytes, one entry a step

    def __post_init__(self) -> None:
        self.size = size(self.model)
        self.optimizer = PeriodicAdamW(parameter_groups(self.model, 0.1), lr=LEARNING_RATE, fused=True)
        self.steps = 0
        self.losses: list[Tensor] = []

    def step(self) -> None:
        self.steps += 1
        with self.autocast():
            loss = self.loss()
        loss.backward()
        self.optimizer.take_step(self.steps, LEARNING_RATE)
        self.losses.append(loss.detach())

    @property
    def finite(self) -> bool:
        return bool(torch.stack(self.losses).isfinite().all())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add(
        "--architectures",
        nargs="+",
        default=["gated_attention", "titans", "titans:variant=lmm", "hope_attention"],
        metavar="NAME[:KEY=VALUE,…]",
        help="beside the Transformer, each with options of its own if need be",
    )
    add("--peers", nargs="*", choices=PEERS, default=list(PEERS), help="of titans-pytorch; none: leave it out")
    add("--sequence", type=int, nargs="+", default=[512, 1024], help="tokens in a sequence")
    add("--chunk", type=int, nargs="+", default=[64], help="tokens in a memory's chunk")
    add("--tokens", type=int, default=1024, help="tokens in a step, at least one sequence")
    add("--vocab", type=int, default=1024)
    add("--width", type=int, default=128, help="model width")
    add("--layers", type=int, default=4)
    add("--heads", type=int, default=2)
    add("--intermediate", type=int, default=768, help="mean MLP width of the Transformer")
    add("--threads", type=int, default=2)
    add("--rounds", type=int, default=5)
    add("--steps", type=int, default=1, help="steps of each contender in a round")
    add("--device", default="cpu")
    add("--precision", choices=("fp32", "bf16"), default="fp32", help="bf16: autocast")
    add("--compile", action="store_true", help="torch.compile for the models of this package")
    add("--peak-tflops", type=float, help="the device's, at this precision: reports model FLOPs utilisation")
    add("--json", type=Path, metavar="FILE", help="every sample, for later use")
    options = parser.parse_args()
    if options.rounds < 3:
        parser.error(f"--rounds {options.rounds}: quartiles need 3 or more")
    if options.width % peers.MEMORY_HEAD:
        parser.error(f"--width {options.width}: give a multiple of {peers.MEMORY_HEAD}, the width of a memory's head")
    return options


def fitted(count: Callable[[int], int], target: int) -> int:
    """The multiple of 16 whose `count` of parameters, affine in it, is nearest to `target` and within 2 % of it."""
    low, high = count(128), count(256)
    width = max(WIDTH_UNIT, WIDTH_UNIT * round((128 + 128 * (target - low) / (high - low)) / WIDTH_UNIT))
    if abs(count(width) - target) > TOLERANCE * target:
        raise SystemExit(
            f"no MLP width brings a contender within {TOLERANCE:.0%} of the Transformer's {target:,} parameters "
            f"(width {width}: {count(width):,}): make --intermediate larger"
        )
    return width


def model_spec(
    options: argparse.Namespace, name: str, mixer: dict[str, Any], sequence: int, widths: tuple[int, ...]
) -> ModelSpec:
    return ModelSpec(
        architecture=name,
        layers=options.layers,
        model_width=options.width,
        heads=options.heads,
        intermediate_sizes=widths,
        vocab_size=options.vocab,
        sequence_length=sequence,
        tied_embeddings=False,
        rope_theta=10000.0,
        norm_eps=1e-5,
        initializer_range=0.02,
        mixer=mixer,
    )


def tokens(options: argparse.Namespace, sequence: int) -> Tensor:
    batch = max(1, options.tokens // sequence)
    return torch.randint(options.vocab, (batch, sequence), device=options.device)


def autocast(options: argparse.Namespace) -> Callable[[], Any]:
    enabled = options.precision == "bf16"
    return lambda: torch.autocast(torch.device(options.device).type, dtype=torch.bfloat16, enabled=enabled)


def ours(
    options: argparse.Namespace, argument: str, sequence: int, chunk: int | None, target: int
) -> Iterator[Contender]:
    """One architecture, uniform and tapered."""
    name, _, given = argument.partition(":")
    mixer = dict(pair.split("=", 1) for pair in given.split(",") if pair)
    mixer = {key: yaml.safe_load(value) for key, value in mixer.items()}
    if chunk is not None:
        mixer["chunk"] = chunk
    architecture(name).options.from_values(mixer, source=argument)

    def count(width: int) -> int:
        return parameters(model_spec(options, name, mixer, sequence, (width,) * options.layers)).total

    batch = tokens(options, sequence)
    for schedule in ("uniform", "cosine"):
        widths = layer_widths(schedule, options.layers, fitted(count, target))
        spec = model_spec(options, name, mixer, sequence, widths)
        model = TLMForCausalLM(TLMConfig.from_spec(spec)).to(options.device).train()
        run = torch.compile(model) if options.compile else model
        yield Contender(
            label(argument, chunk),
            model,
            lambda run=run: run(input_ids=batch, labels=batch).loss,
            autocast(options),
            flops=training_flops(spec, batch.numel()),
            chunk=chunk,
            tapered=schedule != "uniform",
        )


def label(name: str, chunk: int | None) -> str:
    return name if chunk is None else f"{name} C={chunk}"


def peer(options: argparse.Namespace, kind: str, sequence: int, chunk: int, target: int) -> Contender:
    """titans-pytorch's memory in our decoder, or its own memory-as-context Transformer."""
    batch = tokens(options, sequence)

    def whole(width: int) -> nn.Module:
        return peers.context_transformer(
            vocab=options.vocab,
            width=options.width,
            layers=options.layers,
            heads=options.heads,
            intermediate=width,
            sequence=sequence,
            chunk=chunk,
        )

    def decoder(width: int) -> nn.Module:
        spec = model_spec(options, REFERENCE, {}, sequence, (width,) * options.layers)
        built = TLMForCausalLM(TLMConfig.from_spec(spec))
        for layer in built.model.layers:
            layer.mixer = peers.PeerMixer(options.width, chunk, renewed=kind == "renewed")
        return built

    build = whole if kind == "mac" else decoder

    def count(width: int) -> int:
        with torch.device("meta"):
            return size(build(width))

    model = build(fitted(count, target)).to(options.device).train()
    longer = torch.cat([batch, batch[:, :1]], dim=1)

    def loss() -> Tensor:
        return model(longer, return_loss=True) if kind == "mac" else model(input_ids=batch, labels=batch).loss

    return Contender(label(f"titans-pytorch {kind}", chunk), model, loss, autocast(options), chunk=chunk)


def size(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


def contenders(options: argparse.Namespace, sequence: int) -> list[Contender]:
    uniform = (options.intermediate,) * options.layers
    target = parameters(model_spec(options, REFERENCE, {}, sequence, uniform)).total
    found = list(ours(options, REFERENCE, sequence, None, target))
    for argument in options.architectures:
        chunked = "chunk" in architecture(argument.partition(":")[0]).options.model_fields
        for chunk in options.chunk if chunked else [None]:
            found += ours(options, argument, sequence, chunk, target)
    if peers.installed():
        for kind, chunk in itertools.product(options.peers, options.chunk):
            found.append(peer(options, kind, sequence, chunk, target))
    return found


def peak_bytes(step: Callable[[], None], device: str) -> int:
    """The most that tensors hold at once during `step`, beyond what they held before it."""
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    sizes = (event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
    return max(itertools.accumulate(sizes), default=0)


def key(contender: Contender) -> str:
    return f"{contender.name}, tapered" if contender.tapered else contender.name


def row(contender: Contender, seconds: list[float], reference: list[float], options: argparse.Namespace, n: int) -> str:
    """One line of the table: median and quartiles of tokens/s, of time beside the Transformer's, and peak memory."""
    low, middle, high = statistics.quantiles([n / second for second in seconds], n=4)
    ratio = spread([one / other for one, other in zip(seconds, reference, strict=True)])
    least, most = min(contender.peak) / MIB, max(contender.peak) / MIB
    memory = f"{most:.0f}" if round(least) == round(most) else f"{least:.0f} – {most:.0f}"
    text = (
        f"{key(contender):34} {contender.size:>11,}  {middle:>9,.0f} ({low:,.0f} – {high:,.0f})  {ratio}  {memory} MiB"
    )
    if options.peak_tflops and contender.flops:
        used = [contender.flops / second / options.peak_tflops / 1e12 for second in seconds]
        text += f"  MFU {spread(used)}"
    return text if contender.finite else f"{text}  loss not finite"


def report(found: list[Contender], seconds: dict[str, list[float]], options: argparse.Namespace, sequence: int) -> None:
    n = tokens(options, sequence).numel()
    print(f"\nsequence {sequence}, {n // sequence} of them a step; {options.rounds} rounds, {options.threads} threads")
    print("contender, parameters, tokens/s (quartiles), time / Transformer's (quartiles), peak memory of a step")
    for contender in found:
        print(row(contender, seconds[key(contender)], seconds[REFERENCE], options, n))
    for contender in found:
        if contender.tapered:
            pairs = zip(seconds[key(contender)], seconds[contender.name], strict=True)
            print(f"tapered / uniform in time, {contender.name}: {spread([one / other for one, other in pairs])}")
    for mine, theirs in itertools.product(found, found):
        same = mine.chunk is not None and mine.chunk == theirs.chunk
        if same and not mine.tapered and mine.flops and not theirs.flops:
            pairs = zip(seconds[key(mine)], seconds[key(theirs)], strict=True)
            print(f"{mine.name} / {theirs.name} in tokens/s: {spread([other / one for one, other in pairs])}")


def record(found: list[Contender], seconds: dict[str, list[float]], sequence: int) -> list[dict[str, Any]]:
    return [
        {
            "contender": contender.name,
            "tapered": contender.tapered,
            "chunk": contender.chunk,
            "sequence": sequence,
            "parameters": contender.size,
            "flops_per_step": contender.flops,
            "seconds_per_step": seconds[key(contender)],
            "peak_bytes": contender.peak,
            "finite": contender.finite,
        }
        for contender in found
    ]


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    if options.peers and not peers.installed():
        print("titans-pytorch is not installed: left out (pip install -c constraints.txt '.[bench]')")
    rows: list[dict[str, Any]] = []
    for sequence in options.sequence:
        found = contenders(options, sequence)
        seconds = measure({key(contender): contender.step for contender in found}, options)
        for contender, _ in itertools.product(found, range(2)):
            contender.peak.append(peak_bytes(contender.step, options.device))
        report(found, seconds, options, sequence)
        rows += record(found, seconds, sequence)
        if options.json:
            contents = {"settings": vars(options), "torch": torch.__version__, "rows": rows}
            options.json.write_text(json.dumps(contents, indent=1, default=str))


if __name__ == "__main__":
    try:
        main()
    except TLMError as error:
        raise SystemExit(f"error: {error}") from None
