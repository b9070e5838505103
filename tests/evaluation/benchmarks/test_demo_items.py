"""The demo's items: whole, in their schemas, balanced, and pinned to their version."""

import csv
import importlib.resources
import json
import re
from collections import Counter
from typing import Any, get_args

import pytest

from tlm_repro.artifacts.checksums import sha256_file
from tlm_repro.artifacts.fingerprint import fingerprint
from tlm_repro.data.readers.base import Document
from tlm_repro.evaluation.benchmarks.demo_items import (
    DEMO_ITEMS,
    DEMO_PAGE_CHARACTERS,
    DEMO_PAGES,
    ITEMS_VERSION,
    demo_pages,
)
from tlm_repro.spec.benchmarks import PAPER_BENCHMARKS, PAPER_TASKS
from tlm_repro.spec.evaluation import ZeroShotTask

# What version 1 of the items is. A change here goes with a higher `items_version` default in ZeroShotSpec.
PINNED = {1: "fb68f8ee40d54eb7"}

FIELDS: dict[str, dict[str, type]] = {
    "lambada_openai": {"text": str},
    "piqa": {"goal": str, "sol1": str, "sol2": str, "label": int},
    "hellaswag": {
        "ind": int,
        "activity_label": str,
        "ctx_a": str,
        "ctx_b": str,
        "ctx": str,
        "endings": list,
        "source_id": str,
        "split": str,
        "split_type": str,
        "label": str,
    },
    "winogrande": {"sentence": str, "option1": str, "option2": str, "answer": str},
    "arc_easy": {"id": str, "question": str, "choices": dict, "answerKey": str},
    "arc_challenge": {"id": str, "question": str, "choices": dict, "answerKey": str},
    "social_iqa": {"context": str, "question": str, "answerA": str, "answerB": str, "answerC": str, "label": str},
    "boolq": {"question": str, "passage": str, "idx": int, "label": int},
}


def items(task: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DEMO_ITEMS / f"{task}.jsonl").read_text(encoding="utf-8").splitlines()]


def items_fingerprint() -> str:
    """Fingerprint of everything that `ITEMS_VERSION` stands for."""
    files = {path.name: sha256_file(path) for path in sorted(DEMO_ITEMS.glob("*.jsonl"))}
    return fingerprint({"files": files, "pages": DEMO_PAGES, "page_characters": DEMO_PAGE_CHARACTERS}, length=16)


def answers(task: str, item: dict[str, Any]) -> tuple[list[str], int]:
    """The choices of an item and the place of the right one."""
    match task:
        case "piqa":
            return [item["sol1"], item["sol2"]], item["label"]
        case "hellaswag":
            return item["endings"], ["0", "1", "2", "3"].index(item["label"])
        case "winogrande":
            return [item["option1"], item["option2"]], ["1", "2"].index(item["answer"])
        case "arc_easy" | "arc_challenge":
            return item["choices"]["text"], item["choices"]["label"].index(item["answerKey"])
        case "social_iqa":
            return [item["answerA"], item["answerB"], item["answerC"]], ["1", "2", "3"].index(item["label"])
        case _:
            return ["no", "yes"], item["label"]


def strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [text for part in (value.values() if isinstance(value, dict) else value) for text in strings(part)]


def test_items_are_those_of_their_version() -> None:
    assert items_fingerprint() == PINNED[ITEMS_VERSION], "an item has changed: raise items_version in ZeroShotSpec"


def test_every_benchmark_but_wikitext_has_items() -> None:
    assert {path.stem for path in DEMO_ITEMS.glob("*.jsonl")} == set(PAPER_TASKS) - {"wikitext"} == set(FIELDS)


@pytest.mark.parametrize("task", FIELDS)
def test_items_have_their_schema_and_no_twin(task: str) -> None:
    found = items(task)
    assert len(found) >= 30
    assert len({json.dumps(item.get("choices", item), sort_keys=True) for item in found}) == len(found)
    for item in found:
        assert {name: type(value) for name, value in item.items()} == FIELDS[task]
        for text in strings({name: value for name, value in item.items() if isinstance(value, str | list | dict)}):
            assert text == text.strip() != ""
            assert "  " not in text


@pytest.mark.parametrize("task", [task for task in FIELDS if task != "lambada_openai"])
def test_right_answers_are_spread_over_the_places(task: str) -> None:
    found = [answers(task, item) for item in items(task)]
    sizes = {len(choices) for choices, _ in found}
    assert len(sizes) == 1
    places = Counter(right for _, right in found)
    assert set(places) == set(range(*sizes))
    assert max(places.values()) - min(places.values()) <= 1
    assert all(len(set(choices)) == len(choices) for choices, _ in found)


@pytest.mark.parametrize("task", ["piqa", "hellaswag", "arc_easy", "arc_challenge", "social_iqa"])
@pytest.mark.parametrize("pick", [min, max])
def test_length_does_not_give_the_answer_away(task: str, pick: Any) -> None:
    found = [answers(task, item) for item in items(task)]
    score = 0.0
    for choices, right in found:
        lengths = [len(choice) for choice in choices]
        score += (lengths[right] == pick(lengths)) / lengths.count(pick(lengths))
    assert score / len(found) == pytest.approx(1 / len(choices), abs=0.12)


def test_winogrande_sentences_have_one_gap_and_name_both_words() -> None:
    for item in items("winogrande"):
        assert item["sentence"].count("_") == 1
        before = item["sentence"].split("_")[0].lower()
        assert item["option1"].lower() in before
        assert item["option2"].lower() in before


def test_lambada_targets_are_single_words_without_a_stop() -> None:
    for item in items("lambada_openai"):
        *context, target = item["text"].split(" ")
        assert re.fullmatch("[a-z]+", target)
        assert len(context) >= 30


def test_boolq_questions_have_neither_capitals_nor_marks() -> None:
    assert all(re.fullmatch("[a-z0-9 ]+", item["question"]) for item in items("boolq"))


def test_columns_are_those_of_the_published_table() -> None:
    table = importlib.resources.files("tlm_repro.reporting") / "reference" / "table2_main.csv"
    header = next(csv.reader(table.read_text(encoding="utf-8").splitlines()))
    columns = [benchmark.column for benchmark in PAPER_BENCHMARKS]
    assert len(columns) == len(set(columns)) == 10
    assert set(columns) <= set(header)


def test_spec_takes_exactly_the_benchmarks() -> None:
    assert get_args(ZeroShotTask) == PAPER_TASKS


def test_demo_pages_are_cut_at_a_space_and_counted() -> None:
    words = "word " * DEMO_PAGE_CHARACTERS
    documents = [
        Document("long", words),
        Document("empty", "  \n "),
        *[Document(f"d{n}", f" text {n} ") for n in range(99)],
    ]
    pages = [page["page"] for page in demo_pages(documents)]
    assert len(pages) == DEMO_PAGES
    assert pages[0] == ("word " * (DEMO_PAGE_CHARACTERS // 5)).strip()
    assert pages[1:3] == ["text 0", "text 1"]
