"""Answers against token-by-token choices of whole forward passes, for every architecture and a Llama."""

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.modeling_outputs import CausalLMOutputWithPast

from tlm_repro.architectures.registry import SHIPPED
from tlm_repro.errors import EvaluationError
from tlm_repro.evaluation.needle.answers import Question, batches, generate_answers
from tlm_repro.models.hugging_face.configuration import TLMConfig
from tlm_repro.models.hugging_face.decoder import TLMForCausalLM

NEW = 4
LETTERS = "~abcdefghijklmnopqrstuvwxyz0123456789 "
OPTIONS = {"titans": {"memory_head_dim": 8, "expansion": 2, "chunk": 4, "window": 6, "persistent": 3}}


@pytest.fixture(scope="module")
def letters() -> PreTrainedTokenizerFast:
    """A token a character; `~` ends a text."""
    built = Tokenizer(models.WordLevel({letter: number for number, letter in enumerate(LETTERS)}, unk_token="~"))
    built.pre_tokenizer, built.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=built, eos_token="~")


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(LETTERS),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        initializer_range=0.3,
        eos_token_id=0,
    )
    return LlamaForCausalLM(config).double().eval()


def build(name: str) -> Any:
    if name == "llama":
        return llama()
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": len(LETTERS)}
    shape |= {"intermediate_sizes": (48, 16), "initializer_range": 0.2}
    return TLMForCausalLM(TLMConfig(**shape, architecture=name, mixer=OPTIONS.get(name, {}))).double().eval()


def questions(values=("never",)) -> list[Question]:
    generator = torch.Generator().manual_seed(1)
    lengths = (24, 11, 17, 24, 9)
    return [
        Question(torch.randint(1, len(LETTERS), (length,), generator=generator).tolist(), values) for length in lengths
    ]


@torch.no_grad()
def slow_answer(model: Any, ids: list[int], tokenizer: Any) -> str:
    """The definition: the likeliest token after a forward pass over everything so far, until the end of the text."""
    whole = list(ids)
    for _ in range(NEW):
        following = int(model(torch.tensor([whole])).logits[0, -1].argmax())
        if following == 0:
            break
        whole.append(following)
    return tokenizer.decode(whole[len(ids) :])


@pytest.mark.parametrize("name", [*SHIPPED, "llama"])
@pytest.mark.parametrize(
    "how",
    [
        {"batch_size": 1},
        {"batch_size": 5},
        {"batch_size": 2, "prefill_tokens": 7},
        {"batch_size": 8, "batch_tokens": 50},
    ],
    ids=["alone", "one batch", "pieces", "by tokens"],
)
def test_answers_are_those_of_whole_forward_passes(name, how, letters):
    model, asked = build(name), questions()
    expected = [slow_answer(model, question.ids, letters) for question in asked]
    assert len(set(expected)) > 1
    assert generate_answers(model, letters, asked, new_tokens=NEW, **how) == expected


class Scripted(LlamaForCausalLM):
    """Says what it is told to, whatever it reads."""

    def say(self, texts: list[list[int]], prompt: int) -> "Scripted":
        self.texts, self.prompt, self.passes = texts, prompt, 0
        return self

    def forward(self, input_ids=None, attention_mask=None, **other) -> CausalLMOutputWithPast:  # type: ignore[override]
        self.passes += 1
        place = other["cache"].get_seq_length() + input_ids.shape[1] - self.prompt
        output = super().forward(input_ids=input_ids, attention_mask=attention_mask, **other)
        if place >= 0:
            for row, text in enumerate(self.texts):
                output.logits[row, -1] = 0
                output.logits[row, -1, text[place] if place < len(text) else 1] = 1
        return output


@pytest.fixture
def scripted() -> Scripted:
    return Scripted(llama().config).eval()


def said(letters: Any, model: Scripted, texts: list[str], values: list[tuple[str, ...]], new: int = 20) -> list[str]:
    ids = [letters(text, add_special_tokens=False)["input_ids"] for text in texts]
    asked = [Question([5] * 12, value) for value in values]
    return generate_answers(model.say(ids, 12), letters, asked, new_tokens=new, batch_size=8, prefill_tokens=5)


def test_generation_stops_when_every_value_of_every_row_is_there(letters, scripted):
    texts, values = ["it is 123 and so on", "4567 89"], [("123",), ("89", "45")]
    answers = said(letters, scripted, texts, values)
    assert answers == ["it is 123", "4567 89"]
    # 3 pieces of prompt, whose last gives the first of the longest answer's 9 characters, then a pass for each other.
    assert scripted.passes == 3 + 8


def test_a_value_that_isn_t_found_takes_all_the_tokens(letters, scripted):
    answers = said(letters, scripted, ["abc def ghi jkl mno pqr", "12"], [("9",), ("12",)])
    assert answers == ["abc def ghi jkl mno ", "12"]
    assert scripted.passes == 3 + 19


def test_nothing_after_the_end_of_the_text_counts(letters, scripted):
    assert said(letters, scripted, ["ab~123"], [("123",)]) == ["ab"]
    assert scripted.passes == 3 + 2


def test_the_model_s_own_settings_for_sampling_have_no_part(letters):
    model, asked = build("llama"), questions()
    expected = generate_answers(model, letters, asked, new_tokens=NEW, batch_size=5)
    model.generation_config.update(do_sample=True, temperature=9.0, repetition_penalty=5.0, min_new_tokens=4)
    own = model.generation_config
    assert generate_answers(model, letters, asked, new_tokens=NEW, batch_size=5) == expected
    assert model.generation_config is own


def test_batches_hold_their_tokens_and_begin_with_the_longest():
    lengths = [10, 50, 20, 20, 5, 45]
    made = list(batches(lengths, 3, 100))
    assert sorted(number for rows in made for number in rows) == list(range(6))
    assert made == [[1, 5], [2, 3, 0], [4]]
    assert list(batches([70, 80], 3, 50)) == [[1], [0]]


def test_progress_counts_every_question(letters):
    counts: list[int] = []
    generate_answers(build("llama"), letters, questions(), new_tokens=2, batch_size=2, advance=counts.append)
    assert counts == [2, 2, 1]


def test_a_tokenizer_without_an_end_is_refused(letters):
    nameless = PreTrainedTokenizerFast(tokenizer_object=letters.backend_tokenizer)
    model = build("transformer")
    with pytest.raises(EvaluationError, match="no end-of-text token"):
        generate_answers(model, nameless, questions(), new_tokens=2, batch_size=2)


def test_logits_that_overflow_are_no_answer(letters: PreTrainedTokenizerFast) -> None:
    model = llama().float()
    model.lm_head.weight.data.fill_(3e38)[::2].neg_()  # finite; their sums are not, and ∞ − ∞ is no number
    with pytest.raises(EvaluationError, match="is not a number"):
        generate_answers(model, letters, questions(), new_tokens=NEW, batch_size=2)
