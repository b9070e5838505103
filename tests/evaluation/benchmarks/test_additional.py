"""Tasks beside the paper's: from a configuration to the scores in an evaluation file, on local items."""

import json
import math
import random
import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from small_study import study
from typer.testing import CliRunner

from tlm_repro import cli
from tlm_repro.artifacts.checksums import sha256_file
from tlm_repro.artifacts.manifest import read_manifest
from tlm_repro.config.loading import parse
from tlm_repro.data import tokenizer as tokenizers
from tlm_repro.errors import EvaluationError
from tlm_repro.evaluation.benchmarks.fetch import fetch
from tlm_repro.evaluation.benchmarks.folder import items_fingerprint, read_sources
from tlm_repro.evaluation.benchmarks.harness import zero_shot
from tlm_repro.evaluation.benchmarks.items import check_items, load_tasks
from tlm_repro.evaluation.benchmarks.lm_eval_tasks import lm_eval_task
from tlm_repro.evaluation.inputs import ItemFiles
from tlm_repro.evaluation.scoring import jackknife_stderr
from tlm_repro.evaluation.suites import Inputs, evaluate
from tlm_repro.spec.data import TrainedTokenizer
from tlm_repro.spec.evaluation import AdditionalTask, ZeroShotSpec
from tlm_repro.statistics.intervals import ratio_stderr
from tlm_repro.study.grid import expand

QUESTIONS = [
    ("A plant needs light to", ["grow", "swim", "read a book", "fall asleep"], 0),
    ("Ice left in the sun will", ["burn", "melt", "turn into a stone", "sing"], 1),
    ("A magnet attracts", ["wood", "paper and glass", "iron", "rain"], 2),
    ("The moon goes around", ["a tree", "the sea", "its own shadow", "the earth"], 3),
    ("Birds lay", ["eggs", "milk", "letters on a table", "wool"], 0),
]


def write_items(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def openbookqa_rows() -> list[dict[str, Any]]:
    """Items in the schema of `allenai/openbookqa`."""
    return [
        {
            "id": str(n),
            "question_stem": stem,
            "choices": {"text": texts, "label": list("ABCD")},
            "answerKey": "ABCD"[right],
        }
        for n, (stem, texts, right) in enumerate(QUESTIONS)
    ]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with random weights, as Hugging Face saves it."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=300, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizers.train([" ".join(stem for stem, *_ in QUESTIONS)], TrainedTokenizer(vocab_size=300)).save_pretrained(
        folder
    )
    return folder


@pytest.fixture(scope="module")
def model(model_folder: Path) -> tuple[Any, Any]:
    return (
        transformers.AutoModelForCausalLM.from_pretrained(model_folder),
        transformers.AutoTokenizer.from_pretrained(model_folder),
    )


def extra(task: str, metric: str, column: str = "extra", items: Path | None = None) -> AdditionalTask:
    return AdditionalTask(column=column, task=task, metric=metric, items=items and sha256_file(items))


def demo_spec(*additional: AdditionalTask, max_length: int = 64, limit: int | None = None) -> ZeroShotSpec:
    return ZeroShotSpec(source="demo", tasks=("piqa",), max_length=max_length, limit=limit, additional=additional)


def normalised_accuracy(model: Any, tokenizer: Any) -> list[float]:
    """1 for each question whose right answer has the highest log-likelihood per character, by plain torch."""
    hits = []
    for stem, texts, right in QUESTIONS:
        scores = []
        for text in texts:
            start, whole = tokenizer.encode(stem), tokenizer.encode(f"{stem} {text}")
            with torch.no_grad():
                logits = model(torch.tensor([whole])).logits[0].double().log_softmax(-1)
            total = sum(logits[place - 1, whole[place]].item() for place in range(len(start), len(whole)))
            scores.append(total / len(text))
        hits.append(float(scores.index(max(scores)) == right))
    return hits


def test_a_tenth_benchmark_from_the_configuration_to_its_score(
    model_folder: Path, model: tuple[Any, Any], tmp_path: Path
) -> None:
    items = write_items(tmp_path / "openbookqa.jsonl", openbookqa_rows())
    raw = study()
    entry = {"task": "openbookqa", "metric": "acc_norm", "title": "OpenBookQA", "direction": "higher"}
    raw["evaluation"]["zero_shot"] |= {"tasks": ["piqa"], "limit": 8, "additional": [entry | {"items": str(items)}]}
    grid = expand(parse(raw, "mine.yaml"))
    [text] = {
        suite.to_json() for suites in grid.suites.values() for suite in suites.values() if suite.suite == "zero_shot"
    }
    spec = ZeroShotSpec.from_json(text)

    files = ItemFiles(own={"openbookqa": items})
    result = evaluate(spec, model=str(model_folder), inputs=Inputs(items=files, batch_size=4, device="cpu")).content()

    hits = normalised_accuracy(*model)
    assert list(result["metrics"]) == ["piqa", "openbookqa"]
    assert result["metrics"]["openbookqa"] == {
        "value": pytest.approx(statistics.fmean(hits)),
        "stderr": pytest.approx(statistics.stdev(hits) / math.sqrt(len(hits))),
        "items": len(QUESTIONS),
    }
    assert result["spec"]["additional"][0]["items"] == sha256_file(items)
    assert result["details"]["task_versions"] == {"piqa": 1.0, "openbookqa": 1.0}
    assert result["details"]["data"] == {"openbookqa": {"sha256": sha256_file(items)}}
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_a_second_metric_of_a_task_takes_no_second_run(model: tuple[Any, Any]) -> None:
    spec = demo_spec(extra("piqa", "acc_norm", "piqa_norm"), limit=3)
    scores, details = zero_shot(*model, spec, batch_size=4)
    assert list(scores) == ["piqa", "piqa_norm"]
    assert {task: work["requests"] for task, work in details["work"].items()} == {"piqa": 6}


def test_a_task_that_generates_is_scored_without_examples(model: tuple[Any, Any], tmp_path: Path) -> None:
    rows = [{"question": f"Ann has {n} pens and buys 1. How many?", "answer": f"#### {n + 1}"} for n in range(2)]
    items = write_items(tmp_path / "gsm8k.jsonl", rows)
    spec = demo_spec(extra("gsm8k", "exact_match,flexible-extract", items=items), max_length=320, limit=2)
    files = ItemFiles(own={"gsm8k": items})
    scores, details = zero_shot(*model, spec, batch_size=2, files=files)
    assert (scores["extra"].value, scores["extra"].items) == (0.0, 2)
    assert details["work"]["gsm8k"]["requests"] == 2
    task = load_tasks(spec, files=files, folder=tmp_path)["gsm8k"]
    task.build_all_requests(rank=0, world_size=1)
    assert [instance.args[0] for instance in task.instances] == [
        f"Question: {row['question']}\nAnswer:" for row in rows
    ]


def test_a_metric_over_all_items_has_a_jackknife_s_standard_error(model: tuple[Any, Any], tmp_path: Path) -> None:
    rows = [{"sentence": f"The {word} sat on the mat.", "label": n % 2} for n, (word, *_) in enumerate(QUESTIONS * 2)]
    items = write_items(tmp_path / "cola.jsonl", rows)
    spec = demo_spec(extra("cola", "mcc", items=items), limit=len(rows))
    scores, _ = zero_shot(*model, spec, batch_size=4, files=ItemFiles(own={"cola": items}))
    assert -1 <= scores["extra"].value <= 1
    assert scores["extra"].items == len(rows)
    assert scores["extra"].stderr is not None


def test_the_jackknife_of_a_mean_is_its_standard_error() -> None:
    values = [0.3, 1.2, -0.7, 0.9, 2.5, 0.0, 0.4]
    assert jackknife_stderr(values, statistics.fmean) == pytest.approx(ratio_stderr(values, [1] * len(values)))
    assert jackknife_stderr(values[:1], statistics.fmean) is None
    assert jackknife_stderr(values[:2], statistics.stdev) is None  # of one value there is none
    chance = random.Random(0)
    many = [chance.gauss(0, 1) for _ in range(320)]
    assert jackknife_stderr(many, statistics.fmean) == pytest.approx(ratio_stderr(many, [1] * len(many)), rel=0.5)


@pytest.mark.parametrize(
    ("task", "metric", "message"),
    [
        ("openbookq", "acc", r"lm-eval \S+ has no task 'openbookq'\. Close to it: openbookqa"),
        ("openbookqa", "accuracy", "'openbookqa' has no metric 'accuracy'. It has acc, acc_norm. Choose one"),
        ("openbookqa", "acc,strict-match", "has no metric 'acc,strict-match'. It has acc, acc_norm"),
        ("gsm8k", "exact_match", "It has exact_match,strict-match, exact_match,flexible-extract. Choose one"),
        (
            "ai2_arc",
            "acc",
            "'ai2_arc' can't be run: it stands for several tasks. Name one of these: arc_challenge, arc_",
        ),
        ("mmlu", "acc", "'mmlu' can't be run: it stands for several tasks. Name one of these: mmlu_stem"),
        ("squadv2", "f1", "'squadv2' can't be run: it is a Python class"),
        ("humaneval", "pass@1", "'humaneval' can't be run: it runs code that a model has written"),
        ("mmmu_val_art", "acc", "'mmmu_val_art' can't be run: it reads images or sound"),
        ("niah_single_1", "4096", "'niah_single_1' can't be run: it makes its own items"),
    ],
)
def test_tasks_and_metrics_that_do_not_exist_are_named_before_a_model_is_loaded(
    task: str, metric: str, message: str
) -> None:
    spec = ZeroShotSpec(source="hub", tasks=("piqa",), max_length=64, additional=(extra(task, metric),))
    with pytest.raises(EvaluationError, match=message):
        check_items(spec, ItemFiles())


def test_a_single_filter_needs_no_name() -> None:
    assert lm_eval_task("nq_open").score("exact_match") == "exact_match,remove_whitespace"
    assert lm_eval_task("nq_open").score("exact_match,remove_whitespace") == "exact_match,remove_whitespace"
    assert lm_eval_task("openbookqa").score("acc,none") == lm_eval_task("openbookqa").score("acc") == "acc,none"


def test_examples_of_a_split_that_is_not_there_are_left_out(tmp_path: Path) -> None:
    """MMLU's stock tasks take solved examples from a split of their own, which a local file doesn't have."""
    rows = [{"question": stem, "choices": texts, "answer": right} for stem, texts, right in QUESTIONS]
    items = write_items(tmp_path / "mmlu.jsonl", rows)
    spec = demo_spec(extra("mmlu_anatomy", "acc", items=items))
    task = load_tasks(spec, files=ItemFiles(own={"mmlu_anatomy": items}), folder=tmp_path)["mmlu_anatomy"]
    task.build_all_requests(rank=0, world_size=1)
    prompt = task.instances[0].args[0]
    assert prompt.count("Answer:") == 1
    assert QUESTIONS[0][0] in prompt


def test_other_items_than_the_spec_s_are_refused(tmp_path: Path) -> None:
    items = write_items(tmp_path / "items.jsonl", openbookqa_rows())
    spec = demo_spec(extra("openbookqa", "acc", items=items))
    with pytest.raises(
        EvaluationError, match=r"items of its own for 'openbookqa'\. Pass --items openbookqa=<JSONL file>"
    ):
        check_items(spec, ItemFiles())
    with pytest.raises(EvaluationError, match=r"--items openbookqa=.*none: it can't be read \(No such file"):
        check_items(spec, ItemFiles(own={"openbookqa": tmp_path / "none"}))
    check_items(spec, ItemFiles(own={"openbookqa": items}))
    items.write_text(items.read_text() + "\n")
    with pytest.raises(
        EvaluationError, match=r"its sha256 is .*, the spec asks for .*Pass the file that the spec was made"
    ):
        check_items(spec, ItemFiles(own={"openbookqa": items}))


def test_items_in_another_schema_are_named_with_the_one_that_fits(model: tuple[Any, Any], tmp_path: Path) -> None:
    items = write_items(tmp_path / "items.jsonl", [{"question": "Which?", "answer": 1}])
    spec = demo_spec(extra("openbookqa", "acc", items=items), limit=2)
    message = (
        r"1 of 2 tasks failed: 'openbookqa' \(--items openbookqa=.*items.jsonl: lm-eval's task can't read it \(.*It "
        r"must hold one JSON object a line, in the schema of allenai/openbookqa \(main, test\)\)"
    )
    with pytest.raises(EvaluationError, match=message):
        zero_shot(*model, spec, batch_size=2, files=ItemFiles(own={"openbookqa": items}))


def test_items_of_any_task_can_be_fetched(mirror: Path, tmp_path: Path) -> None:
    import datasets

    copy = Path(shutil.copytree(mirror / "baber", tmp_path / "mirror" / "baber")).parent
    (copy / "allenai" / "openbookqa" / "main").mkdir(parents=True)
    for split in ("validation", "test"):
        rows = datasets.Dataset.from_list(openbookqa_rows()[: 5 if split == "test" else 1])
        rows.to_parquet(copy / "allenai" / "openbookqa" / "main" / f"{split}.parquet")
    lines = [f"  - split: {split}\n    path: main/{split}.parquet" for split in ("validation", "test")]
    card = "\n".join(["---", "configs:", "- config_name: main\n  data_files:", *lines, "---", ""])
    (copy / "allenai" / "openbookqa" / "README.md").write_text(card)

    report: list[str] = []
    folder = tmp_path / "items"
    fetch(folder, ("openbookqa", "piqa"), mirror=copy, report=report.append)
    assert report[0] == "openbookqa: 5 items of allenai/openbookqa (main, test) from a mirror"
    assert list(read_manifest(folder / "manifest.json").summary["tasks"]) == ["piqa", "openbookqa"]
    fetch(folder, ("piqa",), mirror=copy, report=report.append)
    assert list(read_manifest(folder / "manifest.json").summary["tasks"]) == ["piqa", "openbookqa"]

    sources = read_sources(folder, ("piqa", "openbookqa"))
    spec = ZeroShotSpec(
        source="path",
        tasks=("piqa",),
        max_length=64,
        items=items_fingerprint(sources),
        additional=(extra("openbookqa", "acc"),),
    )
    task = load_tasks(spec, files=ItemFiles(folder), folder=tmp_path)["openbookqa"]
    task.build_all_requests(rank=0, world_size=1)
    assert [instance.args for instance in task.instances][:2] == [
        ("A plant needs light to", " grow"),
        ("A plant needs light to", " swim"),
    ]


def test_the_command_says_what_a_task_measures() -> None:
    done = CliRunner().invoke(cli.app, ["lm-eval-tasks", "openbookqa", "gsm8k"])
    assert done.output.splitlines() == [
        "openbookqa: multiple_choice; metrics acc, acc_norm; items allenai/openbookqa (main, test)",
        "gsm8k: generate_until; metrics exact_match,strict-match, exact_match,flexible-extract; "
        "items openai/gsm8k (main, test)",
    ]


def test_an_item_file_needs_its_task() -> None:
    done = CliRunner().invoke(cli.app, ["evaluate", "--spec", "{}", "--model", "x", "--out", "o", "--items", "x.jsonl"])
    assert str(done.exception) == "--items x.jsonl: give TASK=FILE, such as openbookqa=items.jsonl"
