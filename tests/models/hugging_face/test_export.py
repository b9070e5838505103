import json
import math
import re
from pathlib import Path

import gguf
import pytest
import torch
from manifests import write_model_manifest
from products import another_run
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, processors
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from tlm_repro.architectures.registry import ARCHITECTURES
from tlm_repro.config import loading
from tlm_repro.data import tokenizer as tokenizers
from tlm_repro.errors import ArtifactError, ConfigError
from tlm_repro.models.hugging_face import export as module
from tlm_repro.models.hugging_face.configuration import TLMConfig
from tlm_repro.models.hugging_face.decoder import TLMForCausalLM
from tlm_repro.models.hugging_face.export import FORMATS, export, padded, size, to_llama
from tlm_repro.spec.data import TrainedTokenizer
from tlm_repro.study import grid

ROOT = Path(__file__).parents[3]
VOCABULARY, WIDTH, HEADS, THETA = 300, 32, 4, 500.0
TEXT = (
    "The low lower lowest; newer, newest and wider, widest. It's 1234567 o'clock!\n\n  Low news.\tÅngström naïve 東京"
)
SHAPES = {
    "uniform": (48, 48, 48),
    "tapered": (48, 32, 16),
    "a bare layer": (48, 0, 16),
    "a bare first layer": (0, 16, 48),
    "no MLP at all": (0, 0),
}


def decoder(widths=(48, 32, 16), **other):
    """Sharp distributions and norms that aren't 1 make an error visible."""
    torch.manual_seed(0)
    shape = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": len(widths)}
    options = {"vocab_size": VOCABULARY, "rope_theta": THETA, "initializer_range": 0.2, "rms_norm_eps": 1e-4}
    model = TLMForCausalLM(TLMConfig(**{**shape, **options, **other}, intermediate_sizes=widths))
    for name, weight in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    return model.eval()


def saved(folder, widths=(48, 32, 16), **other):
    model = decoder(widths, **other)
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def small_tokenizer():
    return tokenizers.train([TEXT], TrainedTokenizer(vocab_size=VOCABULARY))


@pytest.fixture
def prompts():
    return torch.randint(2, VOCABULARY, (2, 24), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("widths", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_those_of_the_trained_decoder(tmp_path, prompts, widths, tied):
    ours = saved(tmp_path / "ours", widths, tie_word_embeddings=tied)
    export(tmp_path / "ours", tmp_path / "llama")
    theirs, info = AutoModelForCausalLM.from_pretrained(tmp_path / "llama", output_loading_info=True)
    assert type(theirs) is LlamaForCausalLM
    assert not any(info.values())
    assert (theirs.lm_head.weight is theirs.model.embed_tokens.weight) is tied
    expected = ours(prompts).logits
    assert expected.std() > 0.5
    torch.testing.assert_close(theirs(prompts).logits, expected, atol=2e-5, rtol=1e-5)


def angles(positions):
    channels = torch.arange(0, WIDTH // HEADS, 2, dtype=torch.float64)
    return positions[..., None].double() * THETA ** (-channels / (WIDTH // HEADS))


def in_double(theirs):
    """Llama takes norms and rotations in fp32 whatever its dtype: here by their equations, in float64."""

    def rotations(_, position_ids):
        both = torch.cat((angles(position_ids), angles(position_ids)), dim=-1)
        return both.cos(), both.sin()

    def doubled(norm):
        other = torch.nn.RMSNorm(WIDTH, eps=norm.variance_epsilon, dtype=torch.float64)
        other.weight = norm.weight
        return other

    theirs.model.rotary_emb.forward = rotations
    theirs.model.norm = doubled(theirs.model.norm)
    for layer in theirs.model.layers:
        layer.input_layernorm, layer.post_attention_layernorm = (
            doubled(layer.input_layernorm),
            doubled(layer.post_attention_layernorm),
        )
    return theirs


@pytest.mark.parametrize("widths", SHAPES.values(), ids=SHAPES.keys())
def test_in_double_precision_nothing_but_rounding_is_left(prompts, widths):
    ours = decoder(widths).double()
    ours.model.rotary.rotations = lambda positions: torch.polar(torch.ones(1, dtype=torch.float64), angles(positions))[
        :, :, None
    ]
    theirs = in_double(to_llama(ours, torch.float64))
    torch.testing.assert_close(theirs(prompts).logits, ours(prompts).logits, atol=1e-12, rtol=1e-12)


def test_greedy_generation_gives_the_same_tokens_with_a_cache_and_padding(tmp_path, prompts):
    ours = saved(tmp_path / "ours", (48, 0, 16))
    export(tmp_path / "ours", tmp_path / "llama")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "llama")
    mask = torch.ones_like(prompts)
    mask[0, :9] = 0
    options = {"attention_mask": mask, "max_new_tokens": 24, "do_sample": False, "pad_token_id": 0}
    expected = ours.generate(prompts, use_cache=False, **options)
    assert theirs.generate(prompts, use_cache=True, **options).tolist() == expected.tolist()
    assert expected[:, 24:].unique().numel() > 10


def test_narrower_mlps_are_filled_with_zeros_and_bare_layers_get_a_norm_of_one(tmp_path):
    ours = saved(tmp_path / "ours", (48, 0, 16))
    export(tmp_path / "ours", tmp_path / "llama")
    weights = load_file(tmp_path / "llama/model.safetensors")
    for index, width in enumerate((48, 0, 16)):
        gate, up, down = (weights[f"model.layers.{index}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        assert gate.shape == up.shape == down.t().shape == (48, WIDTH)
        assert all(part[width:].abs().max() == 0 for part in (gate, up, down.t()) if width < 48)
        if width:
            mlp = ours.model.layers[index].mlp
            assert torch.equal(gate[:width], mlp.gate.weight)
            assert torch.equal(up[:width], mlp.up.weight)
            assert torch.equal(down[:, :width], mlp.down.weight)
    assert weights["model.layers.1.post_attention_layernorm.weight"].tolist() == [1.0] * WIDTH


def test_the_configuration_and_the_generation_settings_are_carried_over(tmp_path):
    ours = decoder(max_position_embeddings=77, bos_token_id=3, eos_token_id=[4, 5], pad_token_id=6)
    ours.generation_config.max_new_tokens = 9
    ours.save_pretrained(tmp_path / "ours")
    export(tmp_path / "ours", tmp_path / "llama")
    written = json.loads((tmp_path / "llama/config.json").read_text())
    expected = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": WIDTH,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": WIDTH // HEADS,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 77,
        "rope_parameters": {"rope_type": "default", "rope_theta": THETA},
        "rope_theta": THETA,  # of transformers 4 and what was written for it
        "rms_norm_eps": 1e-4,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 3,
        "eos_token_id": [4, 5],
        "pad_token_id": 6,
        "dtype": "float32",
    }
    assert {key: written[key] for key in expected} == expected
    generation = json.loads((tmp_path / "llama/generation_config.json").read_text())
    assert (generation["max_new_tokens"], generation["eos_token_id"]) == (9, [4, 5])


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_weights_may_be_rounded_to_another_dtype(tmp_path, name, dtype):
    ours = saved(tmp_path / "ours")
    report = export(tmp_path / "ours", tmp_path / "llama", dtype=name)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "llama", dtype="auto")
    assert {weight.dtype for weight in theirs.parameters()} == {dtype}
    assert torch.equal(theirs.model.layers[1].mlp.up_proj.weight[:32], ours.model.layers[1].mlp.up.weight.to(dtype))
    assert torch.equal(theirs.model.norm.weight, ours.model.norm.weight.to(dtype))
    assert report.exported.weight_bytes == 2 * sum(weight.numel() for weight in theirs.parameters())


def test_weights_are_sharded(tmp_path, prompts, monkeypatch):
    ours = saved(tmp_path / "ours")
    monkeypatch.setattr(module, "SHARD", "30KB")
    export(tmp_path / "ours", tmp_path / "llama")
    shards = list((tmp_path / "llama").glob("model-*.safetensors"))
    assert len(shards) > 2
    index = json.loads((tmp_path / "llama/model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {shard.name for shard in shards}
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "llama")
    torch.testing.assert_close(theirs(prompts).logits, ours(prompts).logits, atol=2e-5, rtol=1e-5)


def test_the_tokenizer_travels_along(tmp_path, small_tokenizer):
    saved(tmp_path / "ours")
    small_tokenizer.save_pretrained(tmp_path / "ours")
    assert export(tmp_path / "ours", tmp_path / "llama").tokenizer
    assert (tmp_path / "llama/tokenizer.json").read_bytes() == (tmp_path / "ours/tokenizer.json").read_bytes()
    theirs = AutoTokenizer.from_pretrained(tmp_path / "llama")
    for text in (TEXT, "", "<|end_of_text|> new\r\n\n 12345"):
        ids = small_tokenizer(text)["input_ids"]
        assert theirs(text)["input_ids"] == ids
        assert theirs.decode(ids) == small_tokenizer.decode(ids) == text
    assert (theirs.bos_token, theirs.eos_token) == (tokenizers.BEGIN_OF_TEXT, tokenizers.END_OF_TEXT)
    # transformers 4 knows this class, and not the one that transformers 5 writes.
    settings = json.loads((tmp_path / "llama/tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"


def test_a_gguf_writer_finds_vocabulary_merges_and_special_tokens(tmp_path, small_tokenizer):
    saved(tmp_path / "ours")
    small_tokenizer.save_pretrained(tmp_path / "ours")
    export(tmp_path / "ours", tmp_path / "llama")
    vocabulary = gguf.SpecialVocab(tmp_path / "llama", load_merges=True, n_vocab=VOCABULARY)
    merges = json.loads((tmp_path / "ours/tokenizer.json").read_text())["model"]["merges"]
    assert [merge.split(" ") for merge in vocabulary.merges] == merges
    assert vocabulary.special_token_ids == {"bos": 0, "eos": 1}
    assert vocabulary.add_special_token == {"bos": False}


def test_a_tokenizer_that_begins_each_text_keeps_doing_so(tmp_path, small_tokenizer):
    saved(tmp_path / "ours")
    small_tokenizer.save_pretrained(tmp_path / "ours")
    path = tmp_path / "ours/tokenizer.json"
    beginning = Tokenizer.from_file(str(path))
    beginning.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 0)]
    )
    beginning.save(str(path))
    export(tmp_path / "ours", tmp_path / "llama")
    assert "add_bos_token" not in json.loads((tmp_path / "llama/tokenizer_config.json").read_text())
    assert AutoTokenizer.from_pretrained(tmp_path / "llama")("low")["input_ids"][0] == 0


@pytest.mark.parametrize("tied", [True, False])
def test_the_record_counts_what_the_two_models_hold(tmp_path, tied):
    ours = saved(tmp_path / "ours", (48, 32, 16), tie_word_embeddings=tied, max_position_embeddings=64)
    report = export(tmp_path / "ours", tmp_path / "llama")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "llama")
    for counted, model in [(report.trained, ours), (report.exported, theirs)]:
        weights = dict(model.named_parameters())
        assert counted.parameters == sum(weight.numel() for weight in weights.values())
        assert counted.mlp_parameters == sum(weight.numel() for name, weight in weights.items() if ".mlp." in name)
        assert counted.weight_bytes == 4 * counted.parameters
    # A multiply-add for each weight that is filled up: 3·d·(3·48 − 96).
    more = report.exported.forward_flops_per_token - report.trained.forward_flops_per_token
    assert more == 2 * 3 * WIDTH * (3 * 48 - 96)
    written = json.loads((tmp_path / "llama/export.json").read_text())
    assert (written["source"], written["format"], written["dtype"]) == ("ours", "llama", "fp32")
    assert (written["intermediate_sizes"], written["intermediate_size"]) == ([48, 32, 16], 48)
    assert written["exported"]["parameters"] == report.exported.parameters
    text = report.to_text()
    assert "MLP widths 16 to 48 filled up to 48" in text
    assert "+50.0 %" in text
    assert "no tokenizer" in text


def test_others_may_read_every_file(tmp_path):
    saved(tmp_path / "ours")
    export(tmp_path / "ours", tmp_path / "llama")
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "llama").iterdir()}
    (tmp_path / "plain").touch()
    assert modes == {(tmp_path / "plain").stat().st_mode & 0o777}


def as_run(folder):
    """`folder/model` as the product of a run."""
    return write_model_manifest(folder, another_run())


def test_a_run_is_named_by_its_manifest_or_its_folder(tmp_path):
    saved(tmp_path / "run/model")
    manifest = as_run(tmp_path / "run")
    assert export(manifest, tmp_path / "first").source == another_run().id
    (tmp_path / "second").mkdir()
    assert export(tmp_path / "run", tmp_path / "second").source == another_run().id
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("first", "second"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_run_whose_files_changed_is_refused(tmp_path):
    saved(tmp_path / "run/model")
    manifest = as_run(tmp_path / "run")
    weights = tmp_path / "run/model/model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(ArtifactError, match="doesn't match the sha256 in its manifest"):
        export(manifest, tmp_path / "llama")


def test_a_folder_that_holds_something_is_left_alone(tmp_path):
    saved(tmp_path / "ours")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/mine.txt").write_text("keep")
    for out in (tmp_path / "taken", tmp_path / "taken/mine.txt", tmp_path / "ours"):
        with pytest.raises(ArtifactError, match="isn't an empty folder: remove it or name another one"):
            export(tmp_path / "ours", out)
    assert (tmp_path / "taken/mine.txt").read_text() == "keep"


def test_a_stopped_export_leaves_nothing(tmp_path, monkeypatch):
    saved(tmp_path / "ours")

    def stopped(_, folder, **__):
        (Path(folder) / "config.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(LlamaForCausalLM, "save_pretrained", stopped)
    with pytest.raises(KeyboardInterrupt):
        export(tmp_path / "ours", tmp_path / "llama")
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


def test_what_the_format_cannot_express_is_refused_with_what_it_can(tmp_path):
    saved(tmp_path / "gated", architecture="gated_attention")
    with pytest.raises(ConfigError, match=r"can't express architecture 'gated_attention'; those that it can: .*transf"):
        export(tmp_path / "gated", tmp_path / "llama")
    assert not (tmp_path / "llama").exists()


def test_an_architecture_made_of_the_same_modules_can_be_exported(monkeypatch):
    entry = ARCHITECTURES["transformer"]
    monkeypatch.setitem(ARCHITECTURES, "another", entry)
    assert FORMATS["llama"].expresses("another")
    assert [name for name in ("transformer", "gated_attention") if FORMATS["llama"].expresses(name)] == ["transformer"]


def test_choices_that_do_not_exist_are_named(tmp_path):
    saved(tmp_path / "ours")
    with pytest.raises(ConfigError, match="unknown format 'gguf': choose one of llama"):
        export(tmp_path / "ours", tmp_path / "out", format="gguf")
    with pytest.raises(ConfigError, match="unknown dtype 'int8': choose one of fp32, bf16, fp16"):
        export(tmp_path / "ours", tmp_path / "out", dtype="int8")


def test_sources_that_are_no_decoder_of_ours_are_refused(tmp_path):
    saved(tmp_path / "ours")
    export(tmp_path / "ours", tmp_path / "llama")
    with pytest.raises(ArtifactError, match="a model of type 'llama', one of type 'tlm' is expected"):
        export(tmp_path / "llama", tmp_path / "again")
    with pytest.raises(ArtifactError, match=r"nowhere does not exist"):
        export(tmp_path / "nowhere", tmp_path / "again")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArtifactError, match=r"empty holds neither manifest\.json nor config\.json"):
        export(tmp_path / "empty", tmp_path / "again")


def test_incomplete_weights_are_refused(tmp_path):
    saved(tmp_path / "ours")
    path = tmp_path / "ours/model.safetensors"
    weights = load_file(path)
    del weights["model.layers.1.mlp.up.weight"]
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(ArtifactError, match=r"don't fit its config.json \(see 'model.layers.1.mlp.up.weight'\)"):
        export(tmp_path / "ours", tmp_path / "llama")
    path.unlink()
    with pytest.raises(ArtifactError, match="holds no usable weights"):
        export(tmp_path / "ours", tmp_path / "llama")


def test_the_documented_costs_are_those_of_the_paper_s_shapes():
    runs = grid.expand(loading.load(ROOT / "config/paper.yaml")).runs.values()
    rows = re.findall(r"^\| (\S+) \| ([\d,]+) → ([\d,]+) \|.*$", (ROOT / "docs/export.md").read_text(), re.MULTILINE)
    assert [scale for scale, *_ in rows] == ["440M", "760M", "1.3B"]
    for run in runs:
        labels = run.labels
        if (labels.architecture, labels.allocation) != ("transformer", "cosine-1.5-0.5"):
            continue
        before, after = size(run.model, torch.float32), size(padded(run.model), torch.float32)
        widest, uniform = max(run.model.intermediate_sizes), sum(run.model.intermediate_sizes) // run.model.layers
        assert math.isclose(after.mlp_parameters, 1.5 * before.mlp_parameters)
        flops = after.forward_flops_per_token / before.forward_flops_per_token
        row = (
            f"| {labels.scale.upper()} | {uniform:,} → {widest:,} | {before.parameters / 1e6:,.1f} M → "
            f"{after.parameters / 1e6:,.1f} M | +{100 * (after.parameters / before.parameters - 1):.1f} % | "
            f"{before.weight_bytes / 2e9:.2f} → {after.weight_bytes / 2e9:.2f} GB | +{100 * (flops - 1):.1f} % |"
        )
        assert row in (ROOT / "docs/export.md").read_text()
