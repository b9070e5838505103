"""Speed of a training step (forward, backward, AdamW), beside Hugging Face's Llama of equal size and shape.

The contenders take turns in one process, so that a slow spell of a shared machine falls on all of them. Each round
times a few steps of each; what is compared is the median over rounds, ratios within a round. `--compile` compiles each
layer of all of them, Llama's too, and adds uniform uncompiled; `--checkpointing` adds uniform and Llama with activation
checkpointing.

    python benchmarks/training.py --threads 2 --rounds 20
    python benchmarks/training.py --threads 1 --rounds 10 --compile --checkpointing
    python benchmarks/training.py --device cuda --precision bf16 --compile --scale 440m 760m 1.3b

`--scale` takes shapes, sequence length and micro-batch from config/paper.yaml; where the device's peak is known, MFU is
printed with tokens/s of the one device.
"""

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from tlm_repro.allocation.widths import layer_widths
from tlm_repro.architectures.accounting import training_flops
from tlm_repro.config.experiments import AllocationConfig
from tlm_repro.config.loading import load
from tlm_repro.devices import arithmetic_of, device_name, utilisation
from tlm_repro.models.hugging_face.configuration import TLMConfig
from tlm_repro.models.hugging_face.decoder import TLMForCausalLM
from tlm_repro.spec.run import ModelSpec
from tlm_repro.study.grid import model_spec
from tlm_repro.training.compilation import compile_layers

Step = Callable[[], None]
PAPER = Path(__file__).parents[1] / "config" / "paper.yaml"
WARM = 2  # rounds that aren't counted


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", nargs="*", default=[], help="shapes of config/paper.yaml; else the numbers below")
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--width", type=int, default=128, help="model width")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--intermediate", type=int, default=384, help="mean MLP width, a multiple of 128")
    parser.add_argument("--sequence", type=int, default=256, help="tokens in a sequence")
    parser.add_argument("--batch", type=int, help="sequences in a step; 16, or a scale's own")
    parser.add_argument("--architecture", default="transformer")
    parser.add_argument("--contenders", nargs="+", default=["llama", "uniform", "tapered"], help="which of the three")
    parser.add_argument("--compile", action="store_true", help="torch.compile, layer by layer")
    parser.add_argument("--checkpointing", action="store_true", help="measure activation checkpointing too")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=1, help="steps of each contender in a round")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error(f"--rounds {options.rounds}: quartiles need 2 or more")
    if unknown := set(options.contenders) - {"llama", "uniform", "tapered"}:
        parser.error(f"--contenders {' '.join(unknown)}: choose among llama, uniform, tapered")
    return options


def shapes(options: argparse.Namespace) -> dict[str, tuple[dict[str, ModelSpec], int]]:
    """Title → (our two models, sequences in a step)."""
    allocations = {
        "uniform": AllocationConfig(schedule="uniform"),
        "tapered": AllocationConfig(schedule="cosine", start=1.5, end=0.5),
    }
    if options.scale:
        paper = load(PAPER)
        return {
            scale: (
                {name: model_spec(paper, options.architecture, scale, each) for name, each in allocations.items()},
                options.batch or paper.scales[scale].hardware.micro_batch_sequences or 1,
            )
            for scale in options.scale
        }
    plain = {
        name: ModelSpec(
            architecture=options.architecture,
            layers=options.layers,
            model_width=options.width,
            heads=options.heads,
            intermediate_sizes=layer_widths(each.schedule, options.layers, options.intermediate, **each.parameters()),
            vocab_size=options.vocab,
            sequence_length=options.sequence,
            tied_embeddings=False,
            rope_theta=10_000.0,
            norm_eps=1e-5,
            initializer_range=0.02,
        )
        for name, each in allocations.items()
    }
    return {"small": (plain, options.batch or 16)}


def llama(spec: ModelSpec) -> PreTrainedModel:
    """Of the same size as our uniform model."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=spec.vocab_size,
            hidden_size=spec.model_width,
            intermediate_size=spec.intermediate_sizes[0],
            num_hidden_layers=spec.layers,
            num_attention_heads=spec.heads,
            max_position_embeddings=spec.sequence_length,
            attn_implementation="sdpa",
            use_cache=False,
        )
    )


def contenders(specs: dict[str, ModelSpec], options: argparse.Namespace) -> dict[str, PreTrainedModel]:
    def make(name: str) -> PreTrainedModel:
        return llama(specs["uniform"]) if name == "llama" else TLMForCausalLM(TLMConfig.from_spec(specs[name]))

    models = {name: make(name) for name in options.contenders}
    if options.checkpointing:
        for name in ("llama", "uniform"):
            if name in models:
                models[f"{name} checkpointed"] = make(name)
                models[f"{name} checkpointed"].gradient_checkpointing_enable(
                    {"use_reentrant": False, "preserve_rng_state": False}
                )
    if options.compile:
        for model in models.values():
            if isinstance(model, TLMForCausalLM):
                compile_layers(model)
            else:
                for layer in model.model.layers:
                    layer.compile(dynamic=False, isolate_recompiles=True)
        if "uniform" in models:
            models["uniform uncompiled"] = make("uniform")
    return models


def training_step(model: PreTrainedModel, batch: tuple[int, int], options: argparse.Namespace) -> Step:
    """A function that takes one optimisation step on a fixed random batch (sequences, time)."""
    model = model.to(options.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(model.config.vocab_size, batch, device=options.device)
    kind = torch.device(options.device).type

    def step() -> None:
        narrow = options.precision == "bf16"
        with torch.autocast(kind, torch.bfloat16) if narrow else contextlib.nullcontext():
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def measure(steps: dict[str, Step], options: argparse.Namespace) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Seconds a step, one value a round, and peak GiB where the device counts them, for each contender.

    The order turns from round to round.
    """
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    peaks: dict[str, float] = {}
    names, counted = list(steps), options.device.startswith("cuda")
    for turn in range(options.rounds + WARM):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            if counted:
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
            start = time.perf_counter()
            for _ in range(options.steps):
                steps[name]()
            if counted:
                torch.cuda.synchronize()
            if turn >= WARM:
                seconds[name].append((time.perf_counter() - start) / options.steps)
                if counted:
                    peaks[name] = (torch.cuda.max_memory_allocated() - before) / 2**30
    return seconds, peaks


def spread(values: list[float]) -> str:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.3f} (quartiles {low:.3f} – {high:.3f})"


def report(seconds: dict[str, list[float]], over: str, under: str, text: str) -> None:
    """How many times `under` is as fast as `over`, where both were measured."""
    if over in seconds and under in seconds:
        ratios = [slow / fast for slow, fast in zip(seconds[over], seconds[under], strict=True)]
        print(f"{text}: {spread(ratios)}")


def compare(title: str, specs: dict[str, ModelSpec], sequences: int, options: argparse.Namespace) -> None:
    models = contenders(specs, options)
    length = specs["uniform"].sequence_length
    sizes = {name: sum(weight.numel() for weight in model.parameters()) for name, model in models.items()}
    steps = {name: training_step(model, (sequences, length), options) for name, model in models.items()}
    seconds, peaks = measure(steps, options)
    tokens = sequences * length
    device = device_name(torch.device(options.device))
    print(
        f"\n{title} on {device}: {options.rounds} rounds, {options.threads} threads, {sequences} × {length} tokens a "
        f"step, {options.architecture}, {options.precision}{', compiled' if options.compile else ''}"
    )
    for name, values in seconds.items():
        speed = tokens / statistics.median(values)
        share = utilisation(
            flops_per_token=training_flops(specs["uniform"], tokens) / tokens,
            tokens_per_second=speed,
            device=device,
            processes=1,
            arithmetic=arithmetic_of(options.precision),
        )
        used = f"MFU unknown: {share.note}" if share.value is None else f"MFU {share.value:.1%}"
        peak = f"  {peaks[name]:.1f} GiB beyond what lasts" if name in peaks else ""
        print(f"{name:21} {sizes[name]:>13,} parameters  {speed:>9,.0f} tokens/s  {used}{peak}")
    report(seconds, "llama", "uniform", "uniform / Llama in tokens/s")
    report(seconds, "tapered", "uniform", "tapered / uniform in time a step")
    report(seconds, "uniform uncompiled", "uniform", "compiled / uncompiled in tokens/s")
    report(seconds, "uniform checkpointed", "uniform", "uniform with checkpointed layers / without, in time a step")
    report(seconds, "llama checkpointed", "uniform checkpointed", "uniform / Llama in tokens/s, both checkpointed")


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    for title, (specs, sequences) in shapes(options).items():
        compare(title, specs, sequences, options)


if __name__ == "__main__":
    main()
