"""Novelty against closed forms, and against a reference without hooks: silencing an MLP takes its output away."""

import copy
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import transformers
from manifests import write_model_manifest
from torch import Tensor, nn

from tlm_repro.artifacts.files import read_json
from tlm_repro.data import shards, tokenisation
from tlm_repro.data.readers.base import Document
from tlm_repro.errors import ArtifactError, ConfigError, EvaluationError
from tlm_repro.models.hugging_face import pretrained
from tlm_repro.models.hugging_face.configuration import TLMConfig
from tlm_repro.models.hugging_face.decoder import TLMForCausalLM
from tlm_repro.novelty import measure as novelty
from tlm_repro.novelty.residual import blocks
from tlm_repro.records.novelty import Correlation, Intervals, Mean, Novelty
from tlm_repro.spec.data import DataSpec, FilesCorpus, HeldOut, TrainedTokenizer
from tlm_repro.spec.evaluation import NoveltySpec
from tlm_repro.spec.learning_rates import Cosine
from tlm_repro.spec.run import ModelSpec, RunLabels, RunSpec, TrainingSpec

VOCABULARY = 64
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 4}
WIDE = {**SIZES, "intermediate_size": 24, "initializer_range": 0.3, "pad_token_id": None}
DECODER = ModelSpec(
    architecture="transformer",
    layers=4,
    model_width=16,
    heads=4,
    intermediate_sizes=(48, 32, 16, 16),
    vocab_size=300,
    sequence_length=32,
    tied_embeddings=True,
    rope_theta=10_000.0,
    norm_eps=1e-5,
    initializer_range=0.3,
)


class ScaledCopy(nn.Module):
    """An MLP that returns a multiple of its input."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, hidden: Tensor) -> Tensor:
        return self.factor * hidden


class QuarterTurn(nn.Module):
    """An MLP that turns each pair of coordinates by 90 degrees: orthogonal to its input."""

    def forward(self, hidden: Tensor) -> Tensor:
        even, odd = hidden[..., 0::2], hidden[..., 1::2]
        return torch.stack([-odd, even], dim=-1).flatten(-2)


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(16, 16)

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.tanh(self.map(hidden))


class BareLayer(nn.Module):
    def __init__(self, mlp: nn.Module | None, *, in_place: bool = False) -> None:
        super().__init__()
        self.mlp = mlp
        self.in_place = in_place

    def forward(self, hidden: Tensor) -> Tensor:
        if self.mlp is None:
            return 2 * hidden
        if self.in_place:
            hidden += self.mlp(hidden)
            return hidden
        return hidden + self.mlp(hidden)


class BareDecoder(nn.Module):
    """An embedding and residual layers, nothing that mixes tokens."""

    def __init__(self, mlps: list[nn.Module | None], *, in_place: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.layers = nn.ModuleList(BareLayer(mlp, in_place=in_place) for mlp in mlps)

    def forward(self, input_ids: Tensor, use_cache: bool = False) -> Tensor:  # noqa: ARG002 - decoders take it
        hidden = self.embedding(input_ids)
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=4, n_head=4, initializer_range=0.3)
    ),
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**WIDE)),
    "gpt_neox": lambda: transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**WIDE, use_parallel_residual=True)),
    "gpt_neox_sequential": lambda: transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(**WIDE, use_parallel_residual=False)
    ),
    "qwen2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**WIDE, num_key_value_heads=2)),
    "qwen3": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**WIDE, num_key_value_heads=2, head_dim=4)),
    "gemma2": lambda: transformers.Gemma2ForCausalLM(
        transformers.Gemma2Config(**WIDE, num_key_value_heads=2, head_dim=4, attn_implementation="eager")
    ),
    "olmo2": lambda: transformers.Olmo2ForCausalLM(transformers.Olmo2Config(**WIDE)),
    "opt": lambda: transformers.OPTForCausalLM(
        transformers.OPTConfig(**SIZES, ffn_dim=24, word_embed_proj_dim=16, init_std=0.3, pad_token_id=None)
    ),
    "ours": lambda: TLMForCausalLM(TLMConfig.from_spec(DECODER)),
}


def random_ids(count: int) -> Tensor:
    return torch.randint(VOCABULARY, (count,), generator=torch.Generator().manual_seed(0))


def built(family: str) -> nn.Module:
    """The family's model in float64, its last norm taken out so that `hidden_states[-1]` is the last residual."""
    torch.manual_seed(1)
    model = FAMILIES[family]().double().eval()
    for parent in list(model.modules()):
        for name in ("ln_f", "norm", "final_layer_norm"):
            if hasattr(parent, name) and any(isinstance(child, nn.ModuleList) for child in parent.children()):
                setattr(parent, name, nn.Identity())
    return model


@torch.inference_mode()
def residuals(model: nn.Module, ids: Tensor, window: int) -> Tensor:
    """(layers + 1, tokens, model), by the library's own `output_hidden_states`."""
    parts = [model(input_ids=part[None], output_hidden_states=True).hidden_states for part in ids.split(window)]
    return torch.cat([torch.stack(part)[:, 0] for part in parts], dim=1)


@torch.inference_mode()
def without_mlp(model: nn.Module, layer: int) -> nn.Module:
    """The model with that layer's MLP silenced: all of its parameters are zero."""
    ablated = copy.deepcopy(model)
    stack = next(module for module in ablated.modules() if isinstance(module, nn.ModuleList))
    for name, parameter in stack[layer].named_parameters():
        if name.startswith(("mlp.", "fc1.", "fc2.")):
            parameter.zero_()
    return ablated


def reference_means(vectors: Tensor, residual: Tensor) -> tuple[float, float]:
    """(mean, standard error) of per-token cosines, one token at a time, in NumPy."""
    cosines = [
        float(np.dot(vector, state) / (np.linalg.norm(vector) * np.linalg.norm(state)))
        for vector, state in zip(vectors.numpy(), residual.numpy(), strict=True)
    ]
    return float(np.mean(cosines)), float(np.std(cosines, ddof=1) / math.sqrt(len(cosines)))


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_the_reference(family: str) -> None:
    model, ids, window = built(family), random_ids(21), 8
    measured = novelty.measure_profile(model, ids, window=window)
    stream = residuals(model, ids, window)
    assert len(measured.block) == len(measured.mlp) == 4
    for layer in range(4):
        block = reference_means(stream[layer + 1] - stream[layer], stream[layer])
        ablated = residuals(without_mlp(model, layer), ids, window)
        mlp = reference_means(stream[layer + 1] - ablated[layer + 1], stream[layer])
        mean = measured.mlp[layer]
        assert (measured.block[layer].mean, measured.block[layer].stderr) == pytest.approx(block, abs=1e-6)
        assert mean is not None
        assert (mean.mean, mean.stderr) == pytest.approx(mlp, abs=1e-6)
        added = (stream[layer + 1] - ablated[layer + 1]).numpy()
        ratios = [np.linalg.norm(one) / np.linalg.norm(state) for one, state in zip(added, stream[layer], strict=True)]
        assert measured.norm_ratio[layer].mean == pytest.approx(np.mean(ratios), rel=1e-6)


@pytest.mark.parametrize(
    ("mlp", "expected", "ratio"),
    [
        (ScaledCopy(1.0), 1.0, 1.0),
        (QuarterTurn(), 0.0, 1.0),
        (ScaledCopy(-0.5), -1.0, 0.5),
        (ScaledCopy(0.0), 0.0, 0.0),
    ],
    ids=["returns its input", "orthogonal", "against it", "nothing"],
)
def test_closed_forms(mlp: nn.Module, expected: float, ratio: float) -> None:
    measured = novelty.measure_profile(BareDecoder([copy.deepcopy(mlp) for _ in range(3)]), random_ids(12), window=5)
    for estimate in [*measured.block, *measured.mlp]:
        assert estimate is not None
        assert estimate.mean == pytest.approx(expected, abs=1e-6)
        assert estimate.stderr == pytest.approx(0, abs=1e-6)
    assert [estimate.mean for estimate in measured.norm_ratio if estimate] == pytest.approx([ratio] * 3)


def test_layers_without_mlp_have_none_and_still_count_as_blocks() -> None:
    measured = novelty.measure_profile(BareDecoder([ScaledCopy(1.0), None, QuarterTurn()]), random_ids(9), window=9)
    assert measured.mlp[1] is None
    assert measured.norm_ratio[1] is None
    assert measured.block[1].mean == pytest.approx(1)


def test_layers_that_write_in_place_are_read_rightly() -> None:
    measured = novelty.measure_profile(
        BareDecoder([QuarterTurn() for _ in range(3)], in_place=True), random_ids(9), window=9
    )
    assert [estimate.mean for estimate in measured.block] == pytest.approx([0, 0, 0], abs=1e-6)


def test_windows_do_not_matter_where_tokens_do_not_mix() -> None:
    torch.manual_seed(0)
    model, ids = BareDecoder([Dense() for _ in range(5)]).double(), random_ids(50)
    one, many = novelty.measure_profile(model, ids, window=50), novelty.measure_profile(model, ids, window=3)
    assert [estimate.mean for estimate in many.block] == pytest.approx([estimate.mean for estimate in one.block])
    assert [e.stderr for e in many.mlp if e] == pytest.approx([e.stderr for e in one.mlp if e])


def test_a_window_is_no_longer_than_the_context() -> None:
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**WIDE, max_position_embeddings=8)).eval()
    ids = random_ids(24)
    assert novelty.measure_profile(model, ids, window=1000) == novelty.measure_profile(model, ids, window=8)


def test_hooks_are_gone_afterwards() -> None:
    model = BareDecoder([ScaledCopy(1.0), ScaledCopy(2.0), ScaledCopy(3.0)])
    novelty.measure_profile(model, random_ids(6), window=3)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("family", FAMILIES)
def test_contributions_add_up_to_the_final_residual(family: str) -> None:
    """Embedding + what each mixer adds (the layer, its MLP silenced) + what each MLP adds."""
    model, ids = built(family), random_ids(11)
    ablated = [without_mlp(model, layer) for layer in range(4)]
    added: list[Tensor] = []
    for block in blocks(model, ids):
        assert block.mlp is not None
        block.mlp.register_forward_hook(lambda *call: added.append(novelty.first_tensor(call[2]).reshape(11, 16)))
    stream = residuals(model, ids, window=11)
    mixers = [residuals(each, ids, window=11)[layer + 1] - stream[layer] for layer, each in enumerate(ablated)]
    assert len(added) == 4
    torch.testing.assert_close(stream[0] + sum(mixers) + sum(added), stream[-1])


def test_an_mlp_that_adds_the_residual_itself_is_refused() -> None:
    config = transformers.BloomConfig(vocab_size=VOCABULARY, hidden_size=16, n_layer=2, n_head=2)
    bloom = transformers.BloomForCausalLM(config)
    with pytest.raises(EvaluationError, match="BloomBlock's BloomMLP isn't what the layer adds"):
        novelty.measure_profile(bloom, random_ids(6), window=6)


def test_models_without_a_stack_of_layers_or_mlps_are_refused() -> None:
    with pytest.raises(EvaluationError, match="no list of layers"):
        novelty.measure_profile(nn.Linear(2, 2), random_ids(6), window=6)
    with pytest.raises(EvaluationError, match="no layer of BareDecoder has an MLP"):
        novelty.measure_profile(BareDecoder([None, None]), random_ids(6), window=6)


def test_layers_out_of_order_are_refused() -> None:
    class Backwards(BareDecoder):
        def forward(self, input_ids: Tensor, use_cache: bool = False) -> Tensor:  # noqa: ARG002
            hidden = self.embedding(input_ids)
            for layer in reversed(self.layers):
                hidden = layer(hidden)
            return hidden

    with pytest.raises(EvaluationError, match="once each and in order"):
        novelty.measure_profile(Backwards([QuarterTurn(), QuarterTurn()]), random_ids(6), window=6)


@pytest.mark.parametrize("token", [0, 39])
def test_values_that_are_not_finite_are_refused(token: int) -> None:
    model = BareDecoder([ScaledCopy(1.0), ScaledCopy(1.0)])
    model.embedding.weight.data[token] = math.inf
    with pytest.raises(EvaluationError, match=r"layer 0.* that isn't finite"):
        novelty.measure_profile(model, torch.arange(40), window=20)


def estimates(means: list[float | None]) -> list[Mean | None]:
    return [None if mean is None else Mean(mean=mean, stderr=0.0) for mean in means]


def test_correlation_by_hand() -> None:
    # depths 1, 2, 3 less their mean: −1, 0, 1; values 1, 3, 2 less theirs: −1, 1, 0; r = 1 / √(2·2)
    assert novelty.correlation(estimates([9.0, 1.0, 3.0, 2.0, -9.0])).r == pytest.approx(0.5)


def test_correlation_drops_both_ends_and_layers_without_mlp() -> None:
    values = np.random.default_rng(0).normal(size=12)
    missing = [mean if layer not in (4, 5) else None for layer, mean in enumerate(values.tolist())]
    kept = [layer for layer in range(1, 11) if layer not in (4, 5)]
    result = novelty.correlation(estimates(missing))
    assert result.r == pytest.approx(np.corrcoef(kept, values[kept])[0, 1])
    assert result.layers == 8


@pytest.mark.parametrize(
    ("means", "layers"), [([], 0), ([1.0, 2.0], 0), ([0.0, 1.0, 2.0, 3.0], 2), ([0.5] * 9, 7), ([None] * 9, 0)]
)
def test_correlation_is_none_where_it_means_nothing(means: list[float | None], layers: int) -> None:
    assert novelty.correlation(estimates(means)) == Correlation(r=None, layers=layers)


def dependent_tokens(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Noise of variance 1 in which, along the last dimension, each token takes after the one before it (0.5)."""
    noise = rng.normal(size=shape)
    noise[..., 1:] *= math.sqrt(1 - 0.25)
    for token in range(1, shape[-1]):
        noise[..., token] += 0.5 * noise[..., token - 1]
    return noise


def test_intervals_of_r_hold_the_truth_about_as_often_as_they_say_though_tokens_and_layers_depend_on_others() -> None:
    """Noise that all layers share in part, 2,048 tokens. Of 150 at 95 %, 143 ± 3 are expected."""
    rng, layers, tokens = np.random.default_rng(0), 12, 2048
    means = {"block": 0.02 * np.arange(layers) + rng.normal(0, 0.1, layers), "mlp": rng.normal(0, 0.1, layers)}
    truth = {kind: np.corrcoef(range(1, layers - 1), values[1:-1])[0, 1] for kind, values in means.items()}
    truth["difference"] = truth["mlp"] - truth["block"]
    held = dict.fromkeys(truth, 0)
    for _ in range(150):
        shared, own = dependent_tokens(rng, (tokens,)), dependent_tokens(rng, (2, layers, tokens))
        both = {
            kind: values[:, None] + 0.1 * (shared + each)
            for (kind, values), each in zip(means.items(), own, strict=True)
        }
        cosines = {kind: [list(torch.tensor(row).split(1024)) for row in rows] for kind, rows in both.items()}
        result = novelty.intervals(cosines["block"], cosines["mlp"])
        for kind, true in truth.items():
            low, high = getattr(result, kind)
            held[kind] += int(low <= true <= high)
    assert all(135 <= count <= 149 for count in held.values()), held


def test_an_interval_is_that_of_the_bootstrap_written_out() -> None:
    """Draw blocks, average each layer's tokens, correlate with depth; then Student's interval on Fisher's scale."""
    rng = np.random.default_rng(1)
    values = rng.normal(size=(6, 1300)) + 0.05 * np.arange(6)[:, None]
    result = novelty.intervals([[torch.tensor(row)] for row in values], [[torch.tensor(-row)] for row in values])
    parts = [np.arange(start, min(start + 128, 1300)) for start in range(0, 1300, 128)]
    drawn = []
    for _ in range(4000):
        tokens = np.concatenate([parts[index] for index in rng.integers(len(parts), size=len(parts))])
        drawn.append(math.atanh(np.corrcoef(range(1, 5), values[1:5, tokens].mean(axis=1))[0, 1]))
    centre = 2 * math.atanh(np.corrcoef(range(1, 5), values[1:5].mean(axis=1))[0, 1]) - np.mean(drawn)
    half = 2.228139 * np.std(drawn) * math.sqrt(11 / 10)  # t(0.975, 10)
    assert np.arctanh(result.block) == pytest.approx([centre - half, centre + half], abs=0.1 * half)
    assert result.mlp == pytest.approx((-result.block[1], -result.block[0]))


@pytest.mark.parametrize(
    "values",
    [torch.rand(5, 7 * 128), torch.zeros(5, 2000), torch.rand(4, 2000)],
    ids=["seven blocks", "constant", "two inner layers"],
)
def test_there_is_no_interval_where_it_means_nothing(values: Tensor) -> None:
    cosines = [[row] for row in values]
    assert novelty.intervals(cosines, cosines) == Intervals(block=None, mlp=None, difference=None)


class Letters:
    """A tokenizer with one token a letter."""

    def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) for letter in text]}


def test_token_ids_are_the_first_of_the_documents_end_to_end() -> None:
    texts = [Document("a", "abc"), Document("b", "de"), Document("c", "f")]
    assert novelty.token_ids(pretrained.encoder(Letters()), texts, 4).tolist() == [ord(letter) for letter in "abcd"]
    with pytest.raises(EvaluationError, match="the text has 6 tokens, not 7"):
        novelty.token_ids(pretrained.encoder(Letters()), texts, 7)


def run_spec(model: ModelSpec, data: DataSpec) -> RunSpec:
    rate = Cosine(peak=1e-3, warmup_ratio=0.2)
    training = TrainingSpec(
        steps=5, batch_sequences=4, sequence_length=model.sequence_length, learning_rate=rate, seed=0
    )
    labels = RunLabels(architecture="transformer", scale="tiny", allocation="middle", seed=0)
    return RunSpec(labels=labels, model=model, data=data, training=training)


@pytest.fixture(scope="module")
def novelty_products(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """A data set of a few documents and a finished run on it, one of its layers without an MLP."""
    root = tmp_path_factory.mktemp("novelty")
    (root / "corpus").mkdir()
    for number in range(12):
        text = " ".join(f"The report of year {number * 40 + line} is {line * line}." for line in range(40))
        (root / "corpus" / f"{number:02d}.txt").write_text(text)
    spec = DataSpec(
        corpus=FilesCorpus(paths=(str(root / "corpus" / "*.txt"),), format="text"),
        tokenizer=TrainedTokenizer(vocab_size=300),
        validation_fraction=0.4,
        shard_tokens=4096,
    )
    data = root / "results" / "data" / spec.name
    tokenisation.build(spec, data, workers=1)
    model = DECODER.model_copy(update={"intermediate_sizes": (48, 0, 48, 32)})
    trained = run_spec(model, spec)
    folder = root / "results" / "models" / trained.id
    TLMForCausalLM(TLMConfig.from_spec(model)).save_pretrained(folder / "model")
    shards.TokenData.open(data / "manifest.json").tokenizer().save_pretrained(folder / "model")
    run = write_model_manifest(folder, trained)
    return {"run": run, "labels": trained.labels.canonical(), "data": data / "manifest.json", "spec": spec}


def test_measurement_of_a_run_on_its_held_out_text(novelty_products: dict, tmp_path) -> None:
    spec = NoveltySpec(text=HeldOut(), tokens=60, window=32, data=novelty_products["spec"])
    measured = novelty.measure_novelty(spec, run=novelty_products["run"], data=novelty_products["data"])
    measured.write(tmp_path / "novelty.json")
    record = measured.content()
    assert read_json(tmp_path / "novelty.json") == record
    assert Novelty.read(tmp_path / "novelty.json") == measured
    model = record["model"]
    run = novelty_products["run"].parent.name
    assert (model["name"], model["layers"]) == (run, 4)
    assert model["run"] == {"id": run, **novelty_products["labels"]}
    # tied embedding 300·16; four attentions 4·16²; 128 MLP columns 3·16; norms: 4 + 3 of the layers, 1 at the end
    assert model["parameters"] == 300 * 16 + 4 * 4 * 256 + 3 * 16 * 128 + 8 * 16
    assert [entry is None for entry in record["mlp"]] == [False, True, False, False]
    assert record["correlation"]["mlp"] == {"r": None, "layers": 1}
    assert record["tokens"] == 60
    assert NoveltySpec.model_validate(record["spec"]) == spec


def test_measurement_reads_a_text_corpus(novelty_products: dict) -> None:
    spec = NoveltySpec(text=novelty_products["spec"].corpus, tokens=40, window=16)
    record = novelty.measure_novelty(spec, run=novelty_products["run"])
    assert (record.tokens, record.window) == (40, 16)


def test_measurement_says_what_is_missing(novelty_products: dict) -> None:
    spec = NoveltySpec(text=HeldOut(), tokens=60, window=32, data=novelty_products["spec"])
    with pytest.raises(ConfigError, match="no model to measure"):
        novelty.measure_novelty(spec, data=novelty_products["data"])
    with pytest.raises(ConfigError, match="held-out documents, but there is no data set"):
        novelty.measure_novelty(spec, run=novelty_products["run"])
    other = spec.model_copy(update={"data": novelty_products["spec"].model_copy(update={"split_seed": 9})})
    with pytest.raises(ArtifactError, match="is needed: pass its manifest"):
        novelty.measure_novelty(other, run=novelty_products["run"], data=novelty_products["data"])
