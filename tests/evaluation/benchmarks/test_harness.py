"""Zero-shot scores against plain torch, prompts written out here, and language models that know the answers."""

import copy
import json
import math
import re
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tlm_repro.data import tokenizer as tokenizers
from tlm_repro.data.readers.base import Document
from tlm_repro.errors import EvaluationError
from tlm_repro.evaluation.benchmarks.demo_items import DEMO_ITEMS
from tlm_repro.evaluation.benchmarks.harness import zero_shot
from tlm_repro.evaluation.benchmarks.items import load_tasks
from tlm_repro.evaluation.partial import PartialResults
from tlm_repro.evaluation.scoring import Metric, Scores
from tlm_repro.models.hugging_face.configuration import TLMConfig
from tlm_repro.models.hugging_face.decoder import TLMForCausalLM
from tlm_repro.spec.benchmarks import PAPER_TASKS
from tlm_repro.spec.data import TrainedTokenizer
from tlm_repro.spec.evaluation import ZeroShotSpec
from tlm_repro.spec.run import ModelSpec

MAX_LENGTH = 96
CHOICE_TASKS = [task for task in PAPER_TASKS if task not in ("wikitext", "lambada_openai")]
# Plain sentences: the stock task rewrites punctuation with spaces around it, which these don't have.
PAGES = [
    Document("short", "The harbour was quiet and the boats lay still."),
    Document("long", " ".join(f"On day {day} the wind came from the north and nobody went out." for day in range(40))),
    Document("other", "Bread and salt were on the table. Nobody had touched them since the morning."),
]
SPEC = ZeroShotSpec(source="demo", tasks=PAPER_TASKS, max_length=MAX_LENGTH)


def items(task: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DEMO_ITEMS / f"{task}.jsonl").read_text(encoding="utf-8").splitlines()]


def requests(task: str, item: dict[str, Any]) -> tuple[list[tuple[str, str]], int]:
    """(context, continuation) of each choice and the place of the right one, as each benchmark is usually asked."""
    match task:
        case "piqa":
            context = f"Question: {item['goal']}\nAnswer:"
            return [(context, " " + item[key]) for key in ("sol1", "sol2")], item["label"]
        case "hellaswag":
            context = f"{item['activity_label']}: {item['ctx_a']} {item['ctx_b'].capitalize()}"
            return [(context, " " + ending) for ending in item["endings"]], int(item["label"])
        case "winogrande":
            before, after = item["sentence"].split("_")
            return [(before + item[key], " " + after.strip()) for key in ("option1", "option2")], int(
                item["answer"]
            ) - 1
        case "arc_easy" | "arc_challenge":
            context = f"Question: {item['question']}\nAnswer:"
            return [(context, " " + text) for text in item["choices"]["text"]], "ABCD".index(item["answerKey"])
        case "social_iqa":
            context = f"Q: {item['context']} {item['question']}\nA:"
            return [(context, " " + item[f"answer{letter}"]) for letter in "ABC"], int(item["label"]) - 1
        case _:
            context = f"{item['passage']}\nQuestion: {item['question']}?\nAnswer:"
            return [(context, " no"), (context, " yes")], item["label"]


@pytest.fixture(scope="module")
def demo_tokenizer() -> Any:
    texts = [item["text"] for item in items("lambada_openai")]
    return tokenizers.train(texts, TrainedTokenizer(vocab_size=400))


@pytest.fixture(scope="module")
def demo_model(demo_tokenizer: Any) -> Any:
    spec = ModelSpec(
        architecture="transformer",
        layers=2,
        model_width=32,
        heads=2,
        intermediate_sizes=(64, 32),
        vocab_size=len(demo_tokenizer),
        sequence_length=MAX_LENGTH,
        tied_embeddings=True,
        rope_theta=10000.0,
        norm_eps=1e-5,
        initializer_range=0.3,
    )
    torch.manual_seed(1)
    return TLMForCausalLM(TLMConfig.from_spec(spec)).eval()


@pytest.fixture(scope="module")
def demo_results(demo_model: Any, demo_tokenizer: Any) -> Scores:
    """All tasks in one run, with every connection refused and the shared caches watched."""
    import datasets

    cache = Path(datasets.config.HF_DATASETS_CACHE)
    before = sorted(cache.rglob("*"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        patch.setattr(socket, "create_connection", refuse)
        results = zero_shot(demo_model, demo_tokenizer, SPEC, held_out=PAGES, batch_size=16)
    assert sorted(cache.rglob("*")) == before
    return results


@pytest.fixture(scope="module")
def demo_scores(demo_results: Scores) -> dict[str, Metric]:
    return demo_results[0]


def refuse(*arguments: Any, **_: Any) -> None:
    raise AssertionError(f"a connection was tried: {arguments}")


def loglikelihood(model: Any, context: list[int], continuation: list[int]) -> tuple[float, bool]:
    """Sum of log-probabilities of the continuation, and whether each of its tokens is the likeliest one."""
    ids = (context + continuation)[-(MAX_LENGTH + 1) :]
    with torch.no_grad():
        logits = model(torch.tensor([ids[:-1]])).logits[0].double()[-len(continuation) :]
    scores = logits.log_softmax(-1)[range(len(continuation)), continuation]
    return scores.sum().item(), logits.argmax(-1).tolist() == continuation


def encoded_pair(tokenizer: Any, context: str, continuation: str) -> tuple[list[int], list[int]]:
    whole, start = tokenizer.encode(context + continuation), tokenizer.encode(context)
    return start, whole[len(start) :]


def mean_and_stderr(values: list[float]) -> tuple[float, float]:
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))


@pytest.mark.parametrize("task", CHOICE_TASKS)
def test_accuracy_equals_plain_torch(
    task: str, demo_scores: dict[str, Metric], demo_model: Any, demo_tokenizer: Any
) -> None:
    [(column, metric)] = SPEC.columns(task).items()
    hits = []
    for item in items(task):
        choices, right = requests(task, item)
        scores = [loglikelihood(demo_model, *encoded_pair(demo_tokenizer, *choice))[0] for choice in choices]
        if metric == "acc_norm":  # per character of the answer, without the space before it
            scores = [score / len(text[1:]) for score, (_, text) in zip(scores, choices, strict=True)]
        hits.append(float(scores.index(max(scores)) == right))
    mean, stderr = mean_and_stderr(hits)
    assert demo_scores[column].items == len(hits)
    assert demo_scores[column].value == pytest.approx(mean)
    assert demo_scores[column].stderr == pytest.approx(stderr)


def test_lambada_equals_plain_torch(demo_scores: dict[str, Metric], demo_model: Any, demo_tokenizer: Any) -> None:
    found = []
    for item in items("lambada_openai"):
        context, target = item["text"].rsplit(" ", 1)
        found.append(loglikelihood(demo_model, *encoded_pair(demo_tokenizer, context, " " + target)))
    mean, stderr = mean_and_stderr([score for score, _ in found])
    assert demo_scores["lambada_ppl"].value == pytest.approx(math.exp(-mean), rel=1e-4)
    assert demo_scores["lambada_ppl"].stderr == pytest.approx(math.exp(-mean) * stderr, rel=1e-4)
    assert demo_scores["lambada_acc"].value == pytest.approx(sum(greedy for _, greedy in found) / len(found))


def test_word_perplexity_equals_plain_torch(
    demo_scores: dict[str, Metric], demo_model: Any, demo_tokenizer: Any
) -> None:
    """Windows that don't overlap; the first is conditioned on end-of-text, each other one on the token before it."""
    total, words = 0.0, 0
    for page in PAGES:
        ids = [demo_tokenizer.eos_token_id, *demo_tokenizer.encode(page.text)]
        full = range(1, len(ids) - MAX_LENGTH + 1, MAX_LENGTH)
        for start in full:
            total += loglikelihood(demo_model, [ids[start - 1]], ids[start : start + MAX_LENGTH])[0]
        rest = ids[1 + len(full) * MAX_LENGTH :]
        if full and rest:  # the last window reaches back as far as it can
            total += loglikelihood(demo_model, ids[-MAX_LENGTH - 1 : -len(rest)], rest)[0]
        elif rest:
            total += loglikelihood(demo_model, [ids[0]], rest)[0]
        words += len(page.text.split())
    assert demo_scores["wikitext_ppl"].value == pytest.approx(math.exp(-total / words), rel=1e-4)
    assert demo_scores["wikitext_ppl"].items == len(PAGES)


def test_uniform_model_has_the_word_perplexity_of_its_vocabulary(demo_model: Any, demo_tokenizer: Any) -> None:
    uniform = copy.deepcopy(demo_model)
    for parameter in uniform.parameters():
        parameter.data.zero_()
    spec = SPEC.model_copy(update={"tasks": ("wikitext",)})
    score = zero_shot(uniform, demo_tokenizer, spec, held_out=PAGES, batch_size=4)[0]["wikitext_ppl"]
    tokens = sum(len(demo_tokenizer.encode(page.text)) for page in PAGES)
    words = sum(len(page.text.split()) for page in PAGES)
    assert score.value == pytest.approx(len(demo_tokenizer) ** (tokens / words), rel=1e-4)


def test_labels_agree_with_a_model_that_knows_the_answers(tmp_path: Path) -> None:
    """One that finds each gold continuation the likeliest scores 1 everywhere, one that finds it the least likely 0."""
    from lm_eval import evaluate
    from lm_eval.api.model import LM

    gold = set()
    for task in CHOICE_TASKS:
        for item in items(task):
            choices, right = requests(task, item)
            gold.add(choices[right])
    gold |= {
        (" ".join(words[:-1]), " " + words[-1])
        for item in items("lambada_openai")
        for words in [item["text"].split(" ")]
    }

    class Oracle(LM):
        def __init__(self, gold_score: float) -> None:
            super().__init__()
            self.gold_score = gold_score

        def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:  # type: ignore[override]
            is_gold = [request.args in gold for request in requests]
            return [(self.gold_score if right else -0.1, right and self.gold_score == 0) for right in is_gold]

        def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:  # type: ignore[override]
            return [0.0 for _ in requests]

        def generate_until(self, requests: list[Any]) -> list[str]:  # type: ignore[override]
            raise NotImplementedError

    for gold_score, accuracy in ((0.0, 1.0), (-600.0, 0.0)):
        tasks = load_tasks(SPEC, held_out=PAGES, folder=tmp_path)
        results = evaluate(Oracle(gold_score), {"tasks": tasks}, bootstrap_iters=0)["results"]
        for task in [*CHOICE_TASKS, "lambada_openai"]:
            for metric in SPEC.columns(task).values():
                if metric.startswith("acc"):
                    assert results[task][f"{metric},none"] == accuracy, task


def test_limit_counts_items(demo_model: Any, demo_tokenizer: Any) -> None:
    spec = ZeroShotSpec(source="demo", tasks=("wikitext", "boolq"), max_length=MAX_LENGTH, limit=1)
    scores, _ = zero_shot(demo_model, demo_tokenizer, spec, held_out=PAGES, batch_size=2)
    assert {name: (score.items, score.stderr) for name, score in scores.items()} == {
        "wikitext_ppl": (1, None),
        "boolq": (1, None),
    }


def test_details_name_what_a_score_depends_on(demo_results: Scores, demo_tokenizer: Any) -> None:
    details = demo_results[1]
    assert details["task_versions"] | {"wikitext": 2.0, "arc_challenge": 1.0, "boolq": 2.0} == details["task_versions"]
    assert (details["source"], details["items_version"]) == ("demo", 1)
    assert (details["max_length"], details["batch_size"]) == (MAX_LENGTH, 16)
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", details["lm_eval"])
    assert details["bos_policy"] == {
        "add_bos": False,
        "prefix_token": demo_tokenizer.eos_token,
        "prefix_token_id": demo_tokenizer.eos_token_id,
    }
    assert re.fullmatch(r"[0-9a-f]{16}", details["tokenizer"])


def test_work_is_reported_for_each_task(demo_results: Scores) -> None:
    work = demo_results[1]["work"]
    assert {task: work[task]["requests"] for task in ("wikitext", "lambada_openai", "boolq", "piqa")} == {
        "wikitext": len(PAGES),
        "lambada_openai": len(items("lambada_openai")),
        "boolq": 2 * len(items("boolq")),
        "piqa": 2 * len(items("piqa")),
    }
    assert work["arc_easy"]["tokens_shared"] > 0.3  # four answers to a question
    assert all(0 <= each["padding_waste"] < 0.5 and each["requests_per_s"] > 0 for each in work.values())


def test_batch_sizes_agree(demo_scores: dict[str, Metric], demo_model: Any, demo_tokenizer: Any) -> None:
    """On the perplexities: they keep every log-likelihood's last digits."""
    spec = SPEC.model_copy(update={"tasks": ("wikitext", "lambada_openai")})
    one, eight = (zero_shot(demo_model, demo_tokenizer, spec, held_out=PAGES, batch_size=size)[0] for size in (1, 8))
    for name in ("wikitext_ppl", "lambada_ppl"):
        assert math.log(one[name].value) == pytest.approx(math.log(eight[name].value), abs=1e-4)
        assert math.log(one[name].value) == pytest.approx(math.log(demo_scores[name].value), abs=1e-4)


def test_a_failed_task_is_retried_alone(
    demo_scores: dict[str, Metric],
    demo_model: Any,
    demo_tokenizer: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from tlm_repro.evaluation.benchmarks import harness

    asked: list[str] = []
    real = harness.score_task

    def scored(lm: Any, task: str, tasks: Any) -> dict[str, Any]:
        asked.append(task)
        if task == "piqa" and asked.count("piqa") == 1:
            raise RuntimeError("out of memory")
        return real(lm, task, tasks)

    monkeypatch.setattr(harness, "score_task", scored)
    spec = SPEC.model_copy(update={"tasks": ("boolq", "piqa", "arc_easy")})
    partial = PartialResults(tmp_path, {"model": "one"})
    with pytest.raises(EvaluationError, match=r"1 of 3 tasks failed: 'piqa' \(RuntimeError: out of memory\).*boolq, a"):
        zero_shot(demo_model, demo_tokenizer, spec, batch_size=16, partial=partial)
    assert "task 'piqa' failed" in capsys.readouterr().err
    scores, _ = zero_shot(demo_model, demo_tokenizer, spec, batch_size=16, partial=partial)
    assert asked == ["boolq", "piqa", "arc_easy", "piqa"]
    assert scores == {name: demo_scores[name] for name in ("boolq", "piqa", "arc_easy")}
    zero_shot(demo_model, demo_tokenizer, spec, batch_size=16, partial=PartialResults(tmp_path, {"model": "another"}))
    assert asked[4:] == ["boolq", "piqa", "arc_easy"]


def test_broken_weights_are_an_error(demo_model: Any, demo_tokenizer: Any) -> None:
    broken = copy.deepcopy(demo_model)
    for parameter in broken.parameters():
        parameter.data.fill_(math.nan)
    spec = SPEC.model_copy(update={"tasks": ("boolq",), "limit": 2})
    with pytest.raises(EvaluationError, match=r"boolq.*weights"):
        zero_shot(broken, demo_tokenizer, spec, held_out=PAGES, batch_size=2)


def test_more_tokens_than_learned_positions_are_refused_before_any_work(demo_tokenizer: Any, monkeypatch) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=len(demo_tokenizer), n_positions=64, n_embd=16, n_layer=1, n_head=2)
    monkeypatch.setattr(GPT2LMHeadModel, "forward", refuse)
    spec = SPEC.model_copy(update={"max_length": 65})
    with pytest.raises(EvaluationError, match="learned positions for 64 tokens, but 65 are needed"):
        zero_shot(GPT2LMHeadModel(config), demo_tokenizer, spec, batch_size=1)


def test_stale_item_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="version 99"):
        load_tasks(SPEC.model_copy(update={"items_version": 99}), held_out=PAGES, folder=tmp_path)


def test_word_perplexity_needs_a_document(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="validation_fraction"):
        load_tasks(SPEC, held_out=[Document("empty", " ")], folder=tmp_path)


def test_hub_failure_names_the_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import lm_eval.api.task

    def unreachable(**_: Any) -> None:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(lm_eval.api.task, "datasets", SimpleNamespace(load_dataset=unreachable, __version__="5.0.0"))
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    spec = SPEC.model_copy(update={"source": "hub", "tasks": ("piqa",)})
    with pytest.raises(EvaluationError, match=r"'piqa'.*'baber/piqa'.*no route to host.*HF_HUB_OFFLINE"):
        load_tasks(spec, folder=tmp_path)
    assert offline()  # further data sets, if they aren't cached, fail at once


def offline() -> bool:
    import datasets
    import huggingface_hub

    return datasets.config.HF_HUB_OFFLINE and huggingface_hub.constants.HF_HUB_OFFLINE
