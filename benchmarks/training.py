"""Speed of a training step (forward, backward, AdamW), beside Hugging Face's Llama of equal size and shape.

The contenders take turns in one process, so that a slow spell of a shared machine falls on all of them. Each round
times a few steps of each; what is compared is the median over rounds, ratios within a round. Run:

    python benchmarks/training.py --threads 2 --rounds 20
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tlm_repro.allocation.widths import layer_widths
from tlm_repro.models.configuration import TLMConfig
from tlm_repro.models.decoder import TLMForCausalLM

Step = Callable[[], None]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--width", type=int, default=128, help="model width")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--intermediate", type=int, default=384, help="mean MLP width, a multiple of 128")
    parser.add_argument("--sequence", type=int, default=256, help="tokens in a sequence")
    parser.add_argument("--batch", type=int, default=16, help="sequences in a step")
    parser.add_argument("--architecture", default="transformer")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=1, help="steps of each contender in a round")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error(f"--rounds {options.rounds}: quartiles need 2 or more")
    return options


def decoder(options: argparse.Namespace, widths: tuple[int, ...]) -> torch.nn.Module:
    return TLMForCausalLM(
        TLMConfig(
            architecture=options.architecture,
            vocab_size=options.vocab,
            hidden_size=options.width,
            num_hidden_layers=options.layers,
            num_attention_heads=options.heads,
            intermediate_sizes=list(widths),
            max_position_embeddings=options.sequence,
        )
    )


def llama(options: argparse.Namespace) -> torch.nn.Module:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=options.vocab,
            hidden_size=options.width,
            intermediate_size=options.intermediate,
            num_hidden_layers=options.layers,
            num_attention_heads=options.heads,
            max_position_embeddings=options.sequence,
            attn_implementation="sdpa",
            use_cache=False,
        )
    )


def training_step(model: torch.nn.Module, options: argparse.Namespace) -> Step:
    """A function that takes one optimisation step on a fixed random batch."""
    model = model.to(options.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(options.vocab, (options.batch, options.sequence), device=options.device)

    def step() -> None:
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def measure(steps: dict[str, Step], options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds a step, one value a round, for each contender; the order turns from round to round."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for turn in range(options.rounds + 2):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            start = time.perf_counter()
            for _ in range(options.steps):
                steps[name]()
            if options.device != "cpu":
                torch.cuda.synchronize()
            if turn >= 2:
                seconds[name].append((time.perf_counter() - start) / options.steps)
    return seconds


def spread(values: list[float]) -> str:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.3f} (quartiles {low:.3f} – {high:.3f})"


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    models = {
        "llama": llama(options),
        "uniform": decoder(options, layer_widths("uniform", options.layers, options.intermediate)),
        "tapered": decoder(options, layer_widths("cosine", options.layers, options.intermediate)),
    }
    sizes = {name: sum(weight.numel() for weight in model.parameters()) for name, model in models.items()}
    seconds = measure({name: training_step(model, options) for name, model in models.items()}, options)
    tokens = options.batch * options.sequence
    print(f"{options.rounds} rounds, {options.threads} threads, {tokens} tokens a step, {options.architecture}")
    for name, values in seconds.items():
        print(f"{name:8} {sizes[name]:>12,} parameters  {tokens / statistics.median(values):>9,.0f} tokens/s")
    speedup = [theirs / ours for theirs, ours in zip(seconds["llama"], seconds["uniform"], strict=True)]
    taper = [ours / plain for ours, plain in zip(seconds["tapered"], seconds["uniform"], strict=True)]
    print(f"uniform / Llama in tokens/s: {spread(speedup)}")
    print(f"tapered / uniform in time a step: {spread(taper)}")


if __name__ == "__main__":
    main()
