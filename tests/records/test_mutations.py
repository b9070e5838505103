"""Every value of every record, changed one at a time: refused by the file's name and a key, or free for a reason."""

import copy
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tlm_repro.errors import ArtifactError
from tlm_repro.records.attempt import Attempt
from tlm_repro.records.base import Record
from tlm_repro.records.claims import Claims
from tlm_repro.records.evaluation import Evaluation
from tlm_repro.records.manifests import DataManifest, ModelManifest, SamplesManifest
from tlm_repro.records.novelty import Novelty
from tlm_repro.records.view import View

FIXTURES = Path(__file__).parent / "fixtures/results"  # what the first release wrote in the demo
RECORDS: dict[str, type[Record]] = {
    "evaluations/*/validation-*.json": Evaluation,
    "evaluations/*/zero_shot-*.json": Evaluation,
    "evaluations/*/niah-*.json": Evaluation,
    "novelty/*_s0-*.json": Novelty,
    "novelty/smollm2-*.json": Novelty,
    "data/*/manifest.json": DataManifest,
    "models/*/manifest.json": ModelManifest,
    "needles/*/manifest.json": SamplesManifest,
    "checkpoints/*/attempt.json": Attempt,
    "views/motivation-*.json": View,
    "claims.json": Claims,
}
PATHS = {pattern: next(FIXTURES.glob(pattern)) for pattern in RECORDS}

ENVIRONMENT = "it describes the machine and its software, of which nothing else in the file depends"
ELSEWHERE = "it follows from the run's spec, which is in the model's manifest and not in this file"
MEASURED = "it was measured: nothing else in the file depends on it"
LATER = "files of the first version lack it"
ON_DISK = "it is compared with the files of the product when the manifest is read"

# Keys, as patterns, whose values may change unseen. Any may still be refused for its type or range.
FREE: dict[str, dict[str, str]] = {
    "": {r"versions(\..+)?": ENVIRONMENT, r"device": ENVIRONMENT, r"wall_time_s": MEASURED},
    "evaluations": {
        r"model\.(parameters|model_width|intermediate_sizes\.\d+)": ELSEWHERE,
        r"details\.batch_size": "it bounds memory and moves no score",
        r"details\.(blocks|curve|training|training\.device_seconds)": LATER,
        r"details\.blocks\.data": "it is the id of the run's data set, which the file doesn't have",
        r"details\.curve\.(validation\.)?loss\.\d+": MEASURED,
        r"details\.training\.\w+": MEASURED,
        r"metrics\.(wikitext|lambada)_ppl\.(value|stderr)": MEASURED,
        r"metrics\.wikitext_ppl\.items": "the number of pages depends on the items, which the file doesn't have",
        r"details\.task_versions\.\w+": "it is lm-eval's",
        r"details\.batch_tokens": "it bounds memory and moves no score",
        r"details\.bos_policy\.\w+": "it is the tokenizer's",
        r"details\.work\.\w+\.\w+": MEASURED,
        r"details\.needles\.\w+\.\d+\.depth": "the depths are those of the samples, which are another product",
        r"details\.prompt_tokens\.\w+\.\d+": "the prompts are another product",
        r"details\.training_length": "positions are scaled by it, and here they aren't scaled",
    },
    "novelty": {
        r"model\.parameters": ELSEWHERE,
        r"(block|mlp)\.(first|last)\.mean": "the correlation leaves out the first and the last layer",
        r"(block|mlp|norm_ratio)\.\w+\.stderr": MEASURED,
        r"norm_ratio\.\w+\.mean": MEASURED,
        r"norm_ratio|intervals": LATER,
        r"intervals\.\w+\.\d+": "it comes from resampled tokens, which the file doesn't have",
    },
    "data": {
        r"summary\.eos_token_id": "it is the tokenizer's",
        r"summary\.(train|validation)\.(documents|bytes)": MEASURED,
        r"files\.[^:]+": ON_DISK,
    },
    "models": {
        r"summary\.(final_loss|validation_loss|tokens_per_second)": MEASURED,
        r"summary\.device_seconds": LATER,
        r"files\.[^:]+": ON_DISK,
    },
    "needles": {r"files\.[^:]+": ON_DISK, r"summary\.cells\.\w+\.tokens\.\d+": "the prompts are in the files"},
    "views": {},
    "claims.json": {
        r"config": "it is the configuration's name for itself",
        r"claims\.\d+\.(statement|source|paper|ours|uncertainty|reason)": "it is for people to read",
        r"claims": "a version may have more claims than another",
    },
    "checkpoints": {r"device|processes|arithmetic|host|pid|started": ENVIRONMENT},
}
ABSENT = object()


def entries(value: Any, keys: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every value below the whole, with its keys."""
    if keys:
        yield keys, value
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from entries(one, (*keys, key))


def changes(value: Any) -> list[Any]:
    """Other values for one: near it, far from it, of another type."""
    if isinstance(value, bool):
        return [not value, None, "yes"]
    if isinstance(value, int):
        return [value + 1, -value - 1, str(value), None]
    if isinstance(value, float):
        return [value * 1.01 + 0.01, -value - 1, str(value), None]
    if isinstance(value, str):
        return [value + "x", "", 1, None]
    if isinstance(value, list):
        return [value[:-1], value + value[-1:], None, {}]
    return [{}, None, []] if isinstance(value, dict) else [1, "x"]


def changed(content: Any, keys: tuple[str | int, ...], value: Any) -> Any:
    copied = copy.deepcopy(content)
    place = copied
    for key in keys[:-1]:
        place = place[key]
    if value is ABSENT:
        del place[keys[-1]]
    else:
        place[keys[-1]] = value
    return copied


def name(keys: tuple[str | int, ...], content: Any) -> str:
    """The keys in one; the first and the last layer of a profile by that name."""
    words = [str(key) for key in keys]
    if keys[0] in ("block", "mlp") and len(keys) > 1 and "novelty" in content["kind"]:
        words[1] = {0: "first", len(content["block"]) - 1: "last"}.get(int(keys[1]), words[1])
    return ".".join(words)


def refusal(kind: type[Record], content: Any, path: Path, whole: Record) -> str | None:
    """The message, or None where the record is read as another than `whole`; empty where it is read as the same."""
    try:
        return "" if kind.from_values(content, path) == whole else None
    except ArtifactError as error:
        return str(error)


@functools.cache
def unseen(pattern: str) -> frozenset[str]:
    """The keys of the record whose value can change without a refusal."""
    path, kind = PATHS[pattern], RECORDS[pattern]
    content = json.loads(path.read_text())
    whole, keys_unseen = kind.from_values(content, path), set()
    for keys, value in entries(content):
        for change in [*changes(value), *([ABSENT] if isinstance(keys[-1], str) else [])]:
            message = refusal(kind, changed(content, keys, change), path, whole)
            if message is None:
                keys_unseen.add(name(keys, {"kind": "none", **content}))
            elif message:
                assert message.startswith(f"{path}: ")
                assert len(message.splitlines()) == 1
    return frozenset(keys_unseen)


@pytest.mark.parametrize("pattern", RECORDS)
def test_a_changed_value_is_refused_by_name_or_free_for_a_reason(pattern: str) -> None:
    free = [*FREE[""], *FREE[pattern.split("/")[0]]]
    assert {key for key in unseen(pattern) if not any(re.fullmatch(one, key) for one in free)} == set()


@pytest.mark.parametrize("folder", [folder for folder in FREE if folder])
def test_what_is_free_is_so_in_fact(folder: str) -> None:
    keys = set[str]().union(*(unseen(pattern) for pattern in RECORDS if pattern.split("/")[0] == folder))
    assert [one for one in FREE[folder] if not any(re.fullmatch(one, key) for key in keys)] == []


@pytest.mark.parametrize("pattern", RECORDS)
def test_a_record_gives_the_contents_of_its_file_back(pattern: str) -> None:
    path = PATHS[pattern]
    assert RECORDS[pattern].from_values(json.loads(path.read_text()), path).content() == json.loads(path.read_text())


@pytest.mark.parametrize(
    "pattern", [pattern for pattern in RECORDS if "-" in PATHS[pattern].name or "manifest" in pattern]
)
def test_a_file_under_the_name_of_another_is_refused(pattern: str) -> None:
    path, content = PATHS[pattern], json.loads(PATHS[pattern].read_text())
    other = path.with_name(re.sub(r"[0-9a-f]{8}\.json", "01234567.json", path.name))
    if path.name == "manifest.json":
        other = path.parent.with_name(re.sub(r"[0-9a-f]{8}$", "01234567", path.parent.name)) / path.name
    with pytest.raises(ArtifactError, match="01234567"):
        RECORDS[pattern].from_values(content, other)
