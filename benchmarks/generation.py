"""Speed of generating token by token: with the cache beside without it, and after contexts of several lengths.

The contenders take turns in one process, as in `training.py`: each round times a few new tokens of each, and ratios are
taken within a round. A context is random tokens, read in pieces before the clock starts; a new token is one forward
pass of the model and the choice of the likeliest. Run:

    python benchmarks/generation.py --threads 2 --rounds 7
    python benchmarks/generation.py --architectures titans:variant=lmm titans:variant=mag hope_attention
"""

import argparse
import time
from dataclasses import dataclass
from functools import cached_property

import torch
import yaml
from torch import Tensor
from transformers import DynamicCache

from tlm_repro.errors import TLMError
from tlm_repro.models.hugging_face.configuration import TLMConfig
from tlm_repro.models.hugging_face.decoder import TLMForCausalLM
from training import spread

PIECE = 1024  # tokens of a context that are read at once


@dataclass(eq=False)
class Contender:
    """One model after one context, going on with or without a cache."""

    name: str
    model: TLMForCausalLM
    tokens: Tensor  # (1, context)
    cached: bool

    @cached_property
    def cache(self) -> DynamicCache:
        cache = DynamicCache(config=self.model.config)
        for piece in self.tokens.split(PIECE, dim=1):
            self.model(piece, cache=cache, use_cache=True, logits_to_keep=1)
        return cache

    def seconds(self, steps: int) -> float:
        """Time per new token over `steps` of them. Without a cache the context stays as long as it was."""
        token, device = self.tokens[:, -1:], self.tokens.device.type
        cache = self.cache if self.cached else None
        start = time.perf_counter()
        for _ in range(steps):
            inputs = token if self.cached else torch.cat((self.tokens[:, 1:], token), dim=1)
            logits = self.model(inputs, cache=cache, use_cache=self.cached, logits_to_keep=1).logits
            token = logits[:, -1].argmax(dim=-1, keepdim=True)
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / steps


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add(
        "--architectures",
        nargs="+",
        default=["transformer", "gated_attention"],
        metavar="NAME[:KEY=VALUE,…]",
        help="each with options of its own if need be",
    )
    add("--contexts", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192], help="tokens before the new ones")
    add("--uncached", type=int, default=4096, help="the context after which generating without a cache is timed too")
    add("--vocab", type=int, default=4096)
    add("--width", type=int, default=128, help="model width")
    add("--layers", type=int, default=8)
    add("--heads", type=int, default=4)
    add("--intermediate", type=int, default=384, help="MLP width of every layer")
    add("--threads", type=int, default=2)
    add("--rounds", type=int, default=7)
    add("--steps", type=int, default=8, help="new tokens of each contender in a round; without a cache it is one")
    add("--device", default="cpu")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error(f"--rounds {options.rounds}: quartiles need 2 or more")
    if min(*options.contexts, options.uncached) < 1:
        parser.error("a context of no token: give 1 or more")
    return options


def decoder(options: argparse.Namespace, argument: str) -> TLMForCausalLM:
    name, _, given = argument.partition(":")
    pairs = (pair.partition("=") for pair in given.split(",") if pair)
    config = TLMConfig(
        architecture=name,
        mixer={key: yaml.safe_load(value) for key, _, value in pairs},
        vocab_size=options.vocab,
        hidden_size=options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        intermediate_sizes=[options.intermediate] * options.layers,
        max_position_embeddings=max(options.contexts),
    )
    return TLMForCausalLM(config).to(options.device).eval()


def contenders(options: argparse.Namespace) -> list[Contender]:
    found = []
    for argument in options.architectures:
        model = decoder(options, argument)
        for context in sorted({*options.contexts, options.uncached}):
            tokens = torch.randint(options.vocab, (1, context), device=options.device)
            found.append(Contender(argument, model, tokens, cached=True))
            if context == options.uncached:
                found.append(Contender(argument, model, tokens, cached=False))
    return found


def measure(found: list[Contender], options: argparse.Namespace) -> dict[Contender, list[float]]:
    """Seconds a new token, one value a round, for each contender; the order turns from round to round."""
    seconds: dict[Contender, list[float]] = {contender: [] for contender in found}
    for turn in range(options.rounds + 1):
        first = turn % len(found)
        for contender in found[first:] + found[:first]:
            taken = contender.seconds(options.steps if contender.cached else 1)
            if turn:
                seconds[contender].append(taken)
    return seconds


def report(seconds: dict[Contender, list[float]], name: str, uncached: int) -> None:
    lengths = {each.tokens.shape[1]: values for each, values in seconds.items() if each.name == name and each.cached}
    shortest = min(lengths)
    print(f"\n{name}\ncontext, milliseconds a new token (quartiles), beside {shortest} tokens (quartiles)")
    for context, values in lengths.items():
        beside = [one / other for one, other in zip(values, lengths[shortest], strict=True)]
        print(f"{context:>7}  {spread([1e3 * value for value in values])}  {spread(beside)}")
    (without,) = (values for each, values in seconds.items() if each.name == name and not each.cached)
    gain = [slow / fast for slow, fast in zip(without, lengths[uncached], strict=True)]
    print(f"{uncached} tokens without the cache: {spread([1e3 * value for value in without])} ms")
    print(f"tokens/s with the cache / without, at {uncached} tokens: {spread(gain)}")


@torch.inference_mode()
def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    seconds = measure(contenders(options), options)
    print(f"{options.rounds} rounds of {options.steps} tokens, {options.threads} threads, {options.device}")
    for name in options.architectures:
        report(seconds, name, options.uncached)


if __name__ == "__main__":
    try:
        main()
    except TLMError as error:
        raise SystemExit(f"error: {error}") from None
