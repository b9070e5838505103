"""Samples: prompts of `tasks`, filled with `haystack` to a length in tokens, each from its own seed; one product.

A prompt and the tokens generated after it fit the length, and would not with one more sentence. A sample is a function
of (generator version, task, length, index), the tokenizer and the text. It doesn't depend on other samples.
"""

import json
import random
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tqdm import tqdm

from tlm_repro.artifacts.files import check_folder_is_ours, staging
from tlm_repro.artifacts.fingerprint import fingerprint
from tlm_repro.data.readers.base import Document
from tlm_repro.errors import ArtifactError, ConfigError, EvaluationError
from tlm_repro.evaluation.needle import haystack
from tlm_repro.evaluation.needle.haystack import Haystack
from tlm_repro.evaluation.needle.tasks import NEEDLE_TASKS, draw_pairs, needle, prompt
from tlm_repro.evaluation.progress_bars import bars_as_lines
from tlm_repro.records.manifests import SamplesManifest
from tlm_repro.spec.evaluation import NeedleSamplesSpec, NeedleTaskName

GENERATOR_VERSION = 1
# Nominal depths are 0, 0.1 … 1. Sample i has depth number 5 + 4i modulo 11, so consecutive samples spread over all
# depths.
DEPTHS, FIRST_DEPTH, STRIDE = 11, 5, 4
LISTS = ("keys", "values", "depths")
PRODUCT_FILES = ("manifest.json", *(f"{task}_*.parquet" for task in NEEDLE_TASKS))


@dataclass(frozen=True)
class NeedleSample:
    """One prompt of `tokens` tokens. `values` answer `keys` and are hidden at `depths` (0…1), in the same order."""

    task: NeedleTaskName
    length: int
    index: int
    prompt: str
    tokens: int
    keys: tuple[str, ...]
    values: tuple[str, ...]
    depths: tuple[float, ...]


class Generator:
    """Makes samples for one tokenizer and one text.

    Args:
        tokenizer: a Hugging Face tokenizer. Prompts are encoded without special tokens, as models are trained here.
        texts: the documents of the essays, which are read only as far as the longest sample needs.
        longest: the greatest length of a sample.
        generated_tokens: tokens reserved for the answer.
    """

    def __init__(
        self, tokenizer: Any, texts: Callable[[], Iterable[Document]], *, longest: int, generated_tokens: int
    ) -> None:
        self.tokenizer, self.texts = tokenizer, texts
        self.longest, self.generated_tokens = longest, generated_tokens
        self._haystacks: dict[str, Haystack] = {}

    def haystack(self, kind: str) -> Haystack:
        if kind not in self._haystacks:
            counts, tokens = self._counts, self.longest
            self._haystacks[kind] = (
                haystack.noise(counts, tokens) if kind == "noise" else haystack.essays(self.texts(), counts, tokens)
            )
        return self._haystacks[kind]

    def sample(self, name: NeedleTaskName, length: int, index: int) -> NeedleSample:
        """The sample with this index.

        Raises:
            EvaluationError: one sentence of haystack doesn't fit, or the needle can't be decoded from its tokens.
        """
        task = NEEDLE_TASKS[name]
        source = random.Random(f"needle {GENERATOR_VERSION} {name} {length} {index}")
        pairs = draw_pairs(task, source)
        depths = needle_depths(task.needles, index)
        source.shuffle(depths)  # the order of the keys in the query must not reveal their depths
        keys = [key for key, _ in pairs]
        needles = [needle(task, key, value) for key, value in pairs]
        hay = self.haystack(task.haystack)
        limit = length - self.generated_tokens

        @cache
        def prompt_of(pieces: int) -> tuple[str, list[int]]:
            text = prompt(task, hay.context(pieces, needles, depths), keys)
            return text, self._ids(text)

        def fits(pieces: int) -> bool:
            return len(prompt_of(pieces)[1]) <= limit

        guess = self._guess(hay, limit, lambda pieces: len(prompt_of(pieces)[1]))
        pieces = largest_fitting(fits, guess, len(hay.pieces))
        if pieces == 0:
            raise EvaluationError(
                f"no sample of {name} fits {length} tokens: the prompt with one sentence of haystack has "
                f"{len(prompt_of(1)[1])} tokens and the answer {self.generated_tokens}; set a length of at least "
                f"{len(prompt_of(1)[1]) + self.generated_tokens}"
            )
        text, ids = prompt_of(pieces)
        values = [value for _, value in pairs]
        self._check(name, ids, needles, values)
        return NeedleSample(name, length, index, text, len(ids), tuple(keys), tuple(values), tuple(depths))

    def _guess(self, hay: Haystack, limit: int, measure: Callable[[int], int]) -> int:
        """An estimate of the pieces that fill `limit` tokens, from one measured prompt and the pieces' own counts."""
        first = hay.pieces_within(limit) // 2
        return hay.pieces_within(limit - measure(first) + hay.tokens[first]) if first else 1

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]

    def _counts(self, texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in self.tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]]

    def _check(self, name: str, ids: list[int], needles: Sequence[str], values: Sequence[str]) -> None:
        decoded = self.tokenizer.decode(ids)
        for sentence, value in zip(needles, values, strict=True):
            # Some tokenizers lose white space or case. A value must be decoded as the scorer searches for it.
            if normalised(sentence) not in normalised(decoded) or value.lower() not in decoded.lower():
                raise EvaluationError(
                    f"the needle {sentence!r} of {name} can't be decoded from its tokens, because the tokenizer lacks "
                    "tokens for it: remove the task, or use another tokenizer"
                )


def normalised(text: str) -> str:
    """The text without white space and case."""
    return "".join(text.split()).casefold()


def needle_depths(needles: int, index: int) -> list[float]:
    """Nominal depths of the needles of sample `index`, evenly spaced on a grid of `DEPTHS` depths from 0 to 1.

    In `DEPTHS` consecutive samples each needle is at each depth once.
    """
    base = FIRST_DEPTH + STRIDE * index
    return [(base + round(number * DEPTHS / needles)) % DEPTHS / (DEPTHS - 1) for number in range(needles)]


def largest_fitting(fits: Callable[[int], bool], guess: int, maximum: int) -> int:
    """The largest number below `maximum` that fits while the next doesn't, searched from `guess`; 0 if none fits.

    Raises:
        EvaluationError: even `maximum` fits.
    """
    low, high, step = 0, maximum + 1, 1
    probe = min(max(guess, 1), maximum)
    while high - low > 1:
        if fits(probe):
            low = probe
        else:
            high = probe
        if low > 0 and high <= maximum:
            probe = (low + high) // 2
        else:
            probe = min(low + step, maximum) if low > 0 else max(high - step, 1)
            step *= 2
    if low == maximum:
        raise EvaluationError(
            f"{maximum} pieces of haystack don't fill a sample, because joined they have far fewer tokens than alone: "
            "use another tokenizer"
        )
    return low


def metric_name(task: str, length: int) -> str:
    """The name of a task at a length in results."""
    return f"niah_{task}_{length}"


def tokenizer_hash(tokenizer: Any) -> str:
    """A hash that is equal for equal tokenizers, regardless of their source and of their padding and truncation."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    return fingerprint({**state, "padding": None, "truncation": None}, length=16)


def write_samples(
    spec: NeedleSamplesSpec, tokenizer: Any, texts: Callable[[], Iterable[Document]], folder: Path
) -> SamplesManifest:
    """Makes all samples of `spec`: `folder/<task>_<length>.parquet`, and manifest.json last.

    Args:
        texts: returns the haystack's documents from the beginning.

    Raises:
        EvaluationError: the spec has another version of the generator, or a sample can't be made.
        ArtifactError: the folder holds other files, which would be lost.
    """
    import pandas as pd

    folder = folder.resolve()  # the staged folder takes its name, and "." has none
    check_folder_is_ours(folder, PRODUCT_FILES)
    if spec.version != GENERATOR_VERSION:
        raise EvaluationError(
            f"the spec has version {spec.version} of the generator, but this package has {GENERATOR_VERSION}: "
            "make the spec again, or install the package that made it"
        )
    start = time.perf_counter()
    generator = Generator(tokenizer, texts, longest=max(spec.lengths), generated_tokens=spec.generated_tokens)
    cells = [(task, length) for task in spec.tasks for length in spec.lengths]
    summary = {}
    with staging(folder.parent, folder.name) as temporary, bars_as_lines(sys.stderr):
        files = []
        with tqdm(total=len(cells) * spec.samples, desc="samples", unit="sample") as bar:
            for task, length in cells:
                rows = []
                for index in range(spec.samples):
                    rows.append(asdict(generator.sample(task, length, index)))
                    bar.update()
                files.append(temporary / f"{task}_{length}.parquet")
                pd.DataFrame(rows).to_parquet(files[-1], compression="zstd")
                tokens = [row["tokens"] for row in rows]
                summary[metric_name(task, length)] = {"samples": len(rows), "tokens": [min(tokens), max(tokens)]}
        SamplesManifest.write_product(
            temporary,
            id=spec.name,
            spec=spec.canonical(),
            summary={"tokenizer": tokenizer_hash(tokenizer), "cells": summary},
            files=files,
            device="cpu",
            wall_time_s=time.perf_counter() - start,
        )
    return SamplesManifest.read(folder / "manifest.json")


def open_samples(path: Path, spec: NeedleSamplesSpec) -> SamplesManifest:
    """The manifest of the samples of `spec`. Raises ArtifactError as `read_samples` does."""
    manifest = SamplesManifest.read(path, verify="sha256")
    if manifest.id != spec.name:
        raise ArtifactError(
            f"{path} has the samples {manifest.id}, but the evaluation needs {spec.name}: pass the manifest of those, "
            "or make them with tlm-repro needle-samples"
        )
    return manifest


def read_samples(path: Path, spec: NeedleSamplesSpec) -> tuple[SamplesManifest, list[NeedleSample]]:
    """The samples of `spec` from the manifest at `path`.

    Raises:
        ArtifactError: the manifest describes other samples, or a file doesn't match it.
    """
    import pandas as pd

    manifest = open_samples(path, spec)
    samples = []
    for task in spec.tasks:
        for length in spec.lengths:
            table = pd.read_parquet(manifest.path(f"{task}_{length}.parquet"))
            for row in table.to_dict("records"):
                lists = {name: tuple(row[name]) for name in LISTS}
                samples.append(NeedleSample(**{str(name): value for name, value in row.items()} | lists))
    return manifest, samples


def make_samples(
    spec: NeedleSamplesSpec, folder: Path, *, data: Path | None = None, model: str | None = None
) -> SamplesManifest:
    """Makes the samples of `spec` with the tokenizer of a data set (the manifest `data`) or of a model.

    Raises:
        ConfigError: not exactly one of `data` and `model` is given, or the text is held-out documents without `data`.
        ArtifactError: `data` is another data set than the spec's.
    """
    from tlm_repro.data.corpora import documents
    from tlm_repro.data.shards import TokenData
    from tlm_repro.spec.data import HeldOut

    if (data is None) == (model is None):
        raise ConfigError("pass either --data or --model, whose tokenizer measures the samples")
    texts: Callable[[], Iterable[Document]] | None = None
    if data is not None:
        tokens = TokenData.open(data)
        if spec.data is not None and tokens.manifest.id != spec.data.name:
            raise ArtifactError(
                f"{data} describes {tokens.manifest.id}, but the spec needs {spec.data.name}: pass its manifest"
            )
        tokenizer, texts = tokens.tokenizer(), tokens.held_out
    elif spec.data is not None:
        raise ConfigError(f"the spec needs the tokenizer of data set {spec.data.name}: pass --data, not --model")
    else:
        tokenizer = external_tokenizer(str(model))
    text = spec.text
    if not isinstance(text, HeldOut):
        return write_samples(spec, tokenizer, lambda: documents(text), folder)
    if texts is None:
        raise ConfigError("the haystack needs held-out documents: pass their data set as --data, or name another text")
    return write_samples(spec, tokenizer, texts, folder)


def external_tokenizer(model: str) -> Any:
    """The tokenizer of a model trained elsewhere. `model` is as for `tlm-repro evaluate --model`."""
    from tlm_repro.models.hugging_face import pretrained

    return pretrained.load_tokenizer(pretrained.parse_reference(model))
