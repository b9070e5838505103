"""`generate` and the cache, for every architecture in the registry, against forward passes over whole sequences."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tlm_repro.architectures.registry import SHIPPED
from tlm_repro.models.hugging_face.configuration import TLMConfig
from tlm_repro.models.hugging_face.decoder import TLMForCausalLM

VOCABULARY = 61
NEW = 8

# Chunks, segments and windows short enough that a few dozen tokens cross several; periods that don't divide each other.
TITANS = {"memory_head_dim": 8, "expansion": 2, "chunk": 4, "window": 6, "persistent": 3, "segment": 8}
OPTIONS = {
    "titans": [{**TITANS, "variant": variant} for variant in ("mag", "lmm", "mac")],
    "hope_attention": [{"update": "optimizer"}, {"update": "in_context", "periods": (3, 8, 8, 0)}],
}
CASES = [
    pytest.param(name, options, id=" ".join([name, *(value for value in options.values() if isinstance(value, str))]))
    for name in SHIPPED
    for options in OPTIONS.get(name, [{}])
]


def build(architecture, options, **other):
    """A small decoder in double precision, its initialisation wide: sharp distributions make an error visible."""
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 3, "vocab_size": VOCABULARY}
    shape |= {"intermediate_sizes": (48, 0, 16), "initializer_range": 0.2, **other}
    return TLMForCausalLM(TLMConfig(**shape, architecture=architecture, mixer=options)).double().eval()


@pytest.fixture(params=[pytest.param(case.values, id=case.id) for case in CASES])
def decoder(request):
    return build(*request.param)


@pytest.fixture
def prompts():
    """Three prompts of 40, 11 and 23 tokens, none of them token 0, which stands for padding."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(1, VOCABULARY, (length,), generator=generator) for length in (40, 11, 23)]


def left_padded(prompts):
    """Token ids and mask, both (B, longest)."""
    longest = max(len(prompt) for prompt in prompts)
    tokens = torch.stack([torch.cat((prompt.new_zeros(longest - len(prompt)), prompt)) for prompt in prompts])
    return {"input_ids": tokens, "attention_mask": (tokens > 0).long()}


@torch.no_grad()
def logits_before(decoder, sequence, new=NEW):
    """The logits (new, V) that the last `new` tokens of a sequence (T,) are chosen by, from one pass over all of it."""
    return decoder(sequence[None, :-1], logits_to_keep=new).logits[0]


def generate(decoder, inputs, **other):
    options = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0, "output_logits": True}
    return decoder.generate(**inputs, **{**options, **other}, return_dict_in_generate=True)


def assert_close(left, right):
    # `generate` hands out logits in single precision.
    torch.testing.assert_close(left, right, atol=1e-6, rtol=1e-6, check_dtype=False)


@pytest.mark.parametrize("cached", [True, False])
def test_a_left_padded_batch_is_continued_as_each_prompt_alone(decoder, prompts, cached):
    new = NEW if cached else 2
    output = generate(decoder, left_padded(prompts), use_cache=cached, max_new_tokens=new)
    for row, prompt in enumerate(prompts):
        chosen = output.sequences[row, -new:]
        logits = logits_before(decoder, torch.cat((prompt, chosen)), new)
        assert_close(torch.stack(output.logits)[:, row], logits)
        assert chosen.tolist() == logits.argmax(dim=-1).tolist()


def test_a_prompt_read_in_pieces_is_continued_as_one_read_at_once(decoder, prompts):
    # 40 tokens in pieces of 7: a row of 11 tokens begins with four pieces of nothing but padding.
    whole = generate(decoder, left_padded(prompts))
    pieces = generate(decoder, left_padded(prompts), prefill_chunk_size=7)
    assert pieces.sequences.tolist() == whole.sequences.tolist()
    assert_close(pieces.logits, whole.logits)
    assert pieces.cache.get_seq_length() == 40 + NEW - 1


def test_samples_are_drawn_from_the_distributions_of_whole_sequences(decoder, prompts):
    output = generate(decoder, left_padded(prompts[1:]), do_sample=True, top_k=0, num_return_sequences=3)
    assert len(output.sequences.unique(dim=0)) == 6
    for row, sequence in enumerate(output.sequences):
        logits = logits_before(decoder, torch.cat((prompts[1 + row // 3], sequence[-NEW:])))
        assert_close(torch.stack(output.logits)[:, row], logits)


@torch.no_grad()
def best_beams(decoder, prompt, beams):
    """Beam search from its definition: of all continuations of the kept sequences keep the likeliest.

    Returns log-probabilities (beams,) and tokens (beams, NEW), the likeliest first.
    """
    nats, sequences = torch.zeros(1), prompt[None]
    for _ in range(NEW):
        grown = nats[:, None] + decoder(sequences).logits[:, -1].log_softmax(dim=-1)
        nats, places = grown.flatten().topk(beams)
        sequences = torch.cat((sequences[places // VOCABULARY], places[:, None] % VOCABULARY), dim=1)
    return nats, sequences[:, -NEW:]


def test_beams_are_those_of_an_exhaustive_search_of_whole_sequences(decoder, prompts):
    searching = {"num_beams": 3, "num_return_sequences": 3, "output_scores": True}
    output = generate(decoder, left_padded(prompts[1:]), **searching)
    nats, tokens = map(torch.cat, zip(*(best_beams(decoder, prompt, 3) for prompt in prompts[1:]), strict=True))
    assert output.sequences[:, -NEW:].tolist() == tokens.tolist()
    # transformers divides a beam's score by its length.
    assert_close(output.sequences_scores, nats / NEW)


@pytest.mark.parametrize(
    ("change", "argument", "rows"),
    [
        ("reorder_cache", torch.tensor([2, 0, 0]), [2, 0, 0]),
        ("batch_repeat_interleave", 2, [0, 0, 1, 1, 2, 2]),
        ("batch_select_indices", torch.tensor([1]), [1]),
    ],
)
@torch.no_grad()
def test_rows_of_a_changed_cache_go_on_from_their_own_past(decoder, prompts, change, argument, rows):
    inputs = left_padded(prompts)
    cache = decoder(**inputs, use_cache=True).cache
    getattr(cache, change)(argument)
    more = torch.randint(1, VOCABULARY, (len(rows), 4), generator=torch.Generator().manual_seed(2))
    mask = torch.cat((inputs["attention_mask"][rows], torch.ones_like(more)), dim=1)
    first = decoder(more[:, :1], attention_mask=mask[:, :41], cache=cache, use_cache=True).logits
    rest = decoder(more[:, 1:], attention_mask=mask, cache=cache, use_cache=True).logits
    for row, source in enumerate(rows):
        expected = decoder(torch.cat((prompts[source], more[row]))[None]).logits[:, -4:]
        assert_close(torch.cat((first, rest), dim=1)[row : row + 1], expected)


def test_a_returned_cache_can_be_gone_on_with(decoder, prompts):
    first = generate(decoder, left_padded(prompts[1:2]))
    longer = torch.cat((first.sequences[0], prompts[2]))
    inputs = {"input_ids": longer[None], "attention_mask": torch.ones_like(longer)[None]}
    second = generate(decoder, inputs, cache=first.cache)
    logits = logits_before(decoder, second.sequences[0])
    assert_close(torch.stack(second.logits)[:, 0], logits)
    assert second.sequences[0, -NEW:].tolist() == logits.argmax(dim=-1).tolist()


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation gives."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        sizes = [tensor.numel() for tensor in tree_leaves(result) if isinstance(tensor, torch.Tensor)]
        self.elements = max([self.elements, *sizes])
        return result


def largest_in_prefill(decoder, time, chunk):
    with Largest() as largest:
        tokens = torch.randint(1, VOCABULARY, (1, time))
        generate(decoder, {"input_ids": tokens}, max_new_tokens=1, prefill_chunk_size=chunk)
    return largest.elements


def test_prefill_in_pieces_makes_no_tensor_of_time_by_time(decoder):
    # The keys of one layer have 256 × 32 elements; what the last piece sees has 256 × 16, all pieces would have 256².
    assert largest_in_prefill(decoder, 256, chunk=16) <= 256 * 32


@pytest.mark.parametrize(("architecture", "options"), [case for case in CASES if case.id == "titans lmm"])
def test_prefill_of_a_memory_alone_takes_no_more_for_a_longer_prompt(architecture, options):
    decoder = build(architecture, options)
    assert largest_in_prefill(decoder, 256, chunk=64) == largest_in_prefill(decoder, 512, chunk=64)


def test_prefill_computes_the_logits_of_the_last_token_alone(decoder, prompts):
    seen = []
    with torch.no_grad():
        handle = decoder.lm_head.register_forward_hook(lambda _, args, __: seen.append(tuple(args[0].shape)))
        generate(decoder, left_padded(prompts), max_new_tokens=2)
        handle.remove()
    assert seen == [(3, 1, 32)] * 2
