"""Needle-in-a-haystack prompts: made to a length in tokens, each from a seed of its own, and kept as an artifact.

A prompt and the tokens generated after it fit the length that is asked for, and one more sentence wouldn't. A sample is
a function of (generator version, task, length, index), the tokenizer and the text: neither which others are made nor
their order matters.
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
from tlm_repro.evaluation.progress import plain_progress
from tlm_repro.records.manifests import SamplesManifest
from tlm_repro.spec.evaluation import NeedleSamplesSpec, NeedleTaskName

GENERATOR_VERSION = 1
# Nominal depths 0, 0.1 … 1. Sample i takes level 5 + 4i modulo 11: any few in a row are spread over all the depths.
LEVELS, FIRST_LEVEL, STRIDE = 11, 5, 4
LISTS = ("keys", "values", "depths")
OWN = ("manifest.json", *(f"{task}_*.parquet" for task in NEEDLE_TASKS))  # files of the folder of samples


@dataclass(frozen=True)
class NeedleSample:
    """One prompt of `tokens` tokens; `values` are the answers to `keys`, hidden at `depths` (0…1), in one order."""

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
        texts: what essays are read from; only as far as the longest sample needs.
        longest: the longest length that will be asked for.
        generated_tokens: what is left free for the answer.
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
            made = haystack.noise(counts, tokens) if kind == "noise" else haystack.essays(self.texts(), counts, tokens)
            self._haystacks[kind] = made
        return self._haystacks[kind]

    def sample(self, name: NeedleTaskName, length: int, index: int) -> NeedleSample:
        """The sample of that number.

        Raises:
            EvaluationError: not even one sentence fits, or the needle can't be read back from its tokens.
        """
        task = NEEDLE_TASKS[name]
        source = random.Random(f"needle {GENERATOR_VERSION} {name} {length} {index}")
        pairs = draw_pairs(task, source)
        depths = needle_depths(task.needles, index)
        source.shuffle(depths)  # which of the keys is asked for first says nothing of where it hides
        keys = [key for key, _ in pairs]
        needles = [needle(task, key, value) for key, value in pairs]
        hay = self.haystack(task.haystack)
        limit = length - self.generated_tokens

        @cache
        def filled(pieces: int) -> tuple[str, list[int]]:
            text = prompt(task, hay.context(pieces, needles, depths), keys)
            return text, self._ids(text)

        def fits(pieces: int) -> bool:
            return len(filled(pieces)[1]) <= limit

        pieces = largest(fits, self._guess(hay, limit, lambda pieces: len(filled(pieces)[1])), len(hay.pieces))
        if pieces == 0:
            raise EvaluationError(
                f"no sample of {name} fits {length} tokens: the prompt with one sentence of haystack takes "
                f"{len(filled(1)[1])} and the answer {self.generated_tokens}; ask for "
                f"{len(filled(1)[1]) + self.generated_tokens} or more"
            )
        text, ids = filled(pieces)
        values = [value for _, value in pairs]
        self._check(name, ids, needles, values)
        return NeedleSample(name, length, index, text, len(ids), tuple(keys), tuple(values), tuple(depths))

    def _guess(self, hay: Haystack, limit: int, measure: Callable[[int], int]) -> int:
        """About how many pieces fill `limit` tokens: from one measured prompt, and from the pieces' own counts."""
        first = hay.pieces_within(limit) // 2
        return hay.pieces_within(limit - measure(first) + hay.tokens[first]) if first else 1

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]

    def _counts(self, texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in self.tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]]

    def _check(self, name: str, ids: list[int], needles: Sequence[str], values: Sequence[str]) -> None:
        decoded = self.tokenizer.decode(ids)
        for sentence, value in zip(needles, values, strict=True):
            # Some tokenizers lose white space or case; a value must come back as the scorer looks for it.
            if squeezed(sentence) not in squeezed(decoded) or value.lower() not in decoded.lower():
                raise EvaluationError(
                    f"the needle {sentence!r} of {name} can't be read back from its tokens: this tokenizer has no "
                    "tokens for it, so its models can't be asked; leave the task out or take another tokenizer"
                )


def squeezed(text: str) -> str:
    return "".join(text.split()).casefold()


def needle_depths(needles: int, index: int) -> list[float]:
    """Nominal depths of the needles of sample `index`, evenly apart, on a grid of `LEVELS` depths from 0 to 1.

    Over `LEVELS` samples in a row each needle is at each depth once.
    """
    base = FIRST_LEVEL + STRIDE * index
    return [(base + round(number * LEVELS / needles)) % LEVELS / (LEVELS - 1) for number in range(needles)]


def largest(fits: Callable[[int], bool], guess: int, most: int) -> int:
    """The largest number up to `most` that fits while the next doesn't, looked for around `guess`; 0: none fits.

    Raises:
        EvaluationError: even `most` fits.
    """
    low, high, step = 0, most + 1, 1
    probe = min(max(guess, 1), most)
    while high - low > 1:
        if fits(probe):
            low = probe
        else:
            high = probe
        if low > 0 and high <= most:
            probe = (low + high) // 2
        else:
            probe = min(low + step, most) if low > 0 else max(high - step, 1)
            step *= 2
    if low == most:
        raise EvaluationError(f"{most} pieces of haystack don't fill a sample: the tokenizer counts far fewer tokens")
    return low


def cell(task: str, length: int) -> str:
    """How results call a task at a length."""
    return f"niah_{task}_{length}"


def tokenizer_hash(tokenizer: Any) -> str:
    """The same for equal tokenizers, wherever they were loaded from, and whether or not they pad or cut."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    return fingerprint({**state, "padding": None, "truncation": None}, length=16)


def write_samples(
    spec: NeedleSamplesSpec, tokenizer: Any, texts: Callable[[], Iterable[Document]], folder: Path
) -> SamplesManifest:
    """Makes all samples that `spec` asks for: `folder/<task>_<length>.parquet`, and manifest.json last.

    Args:
        texts: gives the haystack's documents from the first on.

    Raises:
        EvaluationError: another version of the generator is asked for, or a sample can't be made.
        ArtifactError: the folder holds something else, which would be lost.
    """
    import pandas as pd

    folder = folder.resolve()  # "." has no name to be replaced by
    check_folder_is_ours(folder, OWN)
    if spec.version != GENERATOR_VERSION:
        raise EvaluationError(
            f"the spec asks for version {spec.version} of the generator, this package has {GENERATOR_VERSION}: "
            "make the spec anew, or install the package that made it"
        )
    start = time.perf_counter()
    generator = Generator(tokenizer, texts, longest=max(spec.lengths), generated_tokens=spec.generated_tokens)
    cells = [(task, length) for task in spec.tasks for length in spec.lengths]
    facts = {}
    with staging(folder.parent, folder.name) as temporary, plain_progress(sys.stderr):
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
                facts[cell(task, length)] = {"samples": len(rows), "tokens": [min(tokens), max(tokens)]}
        SamplesManifest.write_product(
            temporary,
            id=spec.name,
            spec=spec.canonical(),
            summary={"tokenizer": tokenizer_hash(tokenizer), "cells": facts},
            files=files,
            device="cpu",
            wall_time_s=time.perf_counter() - start,
        )
    return SamplesManifest.read(folder / "manifest.json")


def opened_samples(manifest: Path, spec: NeedleSamplesSpec) -> SamplesManifest:
    """The manifest of whole files of the samples that `spec` asks for. Raises ArtifactError as `read_samples`."""
    found = SamplesManifest.read(manifest, verify="sha256")
    if found.id != spec.name:
        raise ArtifactError(
            f"{manifest} holds the samples {found.id}, the evaluation asks for {spec.name}: pass those, or make them "
            "with tlm-repro needle-samples"
        )
    return found


def read_samples(manifest: Path, spec: NeedleSamplesSpec) -> tuple[SamplesManifest, list[NeedleSample]]:
    """The samples that `spec` asks for.

    Raises:
        ArtifactError: the manifest is of other samples, or a file differs from what it says.
    """
    import pandas as pd

    found = opened_samples(manifest, spec)
    samples = []
    for task in spec.tasks:
        for length in spec.lengths:
            table = pd.read_parquet(found.path(f"{task}_{length}.parquet"))
            for row in table.to_dict("records"):
                lists = {name: tuple(row[name]) for name in LISTS}
                samples.append(NeedleSample(**{str(name): value for name, value in row.items()} | lists))
    return found, samples


def make(
    spec: NeedleSamplesSpec, folder: Path, *, data: Path | None = None, model: str | None = None
) -> SamplesManifest:
    """The command's work: the tokenizer is that of a data set (`data`, its manifest) or of a model (`model`).

    Raises:
        ConfigError: neither or both are given, or the text is held-out documents and `data` isn't.
        ArtifactError: `data` is another data set than the spec's.
    """
    from tlm_repro.data.corpora import documents
    from tlm_repro.data.shards import TokenData
    from tlm_repro.spec.data import HeldOut

    if (data is None) == (model is None):
        raise ConfigError("pass either --data or --model: its tokenizer measures the samples")
    texts: Callable[[], Iterable[Document]] | None = None
    if data is not None:
        tokens = TokenData.open(data)
        if spec.data is not None and tokens.manifest.id != spec.data.name:
            raise ArtifactError(f"{data} is {tokens.manifest.id}, the spec asks for {spec.data.name}: pass that one")
        tokenizer, texts = tokens.tokenizer(), tokens.held_out
    elif spec.data is not None:
        raise ConfigError(f"the spec's tokenizer is that of data set {spec.data.name}: pass --data, not --model")
    else:
        tokenizer = external_tokenizer(str(model))
    text = spec.text
    if not isinstance(text, HeldOut):
        return write_samples(spec, tokenizer, lambda: documents(text), folder)
    if texts is None:
        raise ConfigError("the haystack is held-out documents, but no data set is given: pass --data or name a text")
    return write_samples(spec, tokenizer, texts, folder)


def external_tokenizer(model: str) -> Any:
    """The tokenizer of a model trained elsewhere, named as `tlm-repro evaluate --model` names it."""
    from transformers import AutoTokenizer

    from tlm_repro.models import pretrained

    spec = pretrained.reference(model)
    if spec.package is not None:
        return AutoTokenizer.from_pretrained(pretrained.gguf_file(spec).parent, gguf_file=spec.gguf)
    options = {"revision": spec.revision} | ({"gguf_file": spec.gguf} if spec.gguf else {})
    try:
        return AutoTokenizer.from_pretrained(str(spec.path), **options)
    except pretrained.UNREADABLE as error:
        raise pretrained.unreachable(spec, error) from error
