"""What one stage is asked to do, in plain values: the typed contents of every `--spec` on a command line.

`grid` makes these from the configuration; a stage needs nothing else. What a spec holds is what its fingerprint hashes,
so a key belongs here if, and only if, it can change the result. A key that is added later gets a default that means
"as before", and `canonical` leaves it out at that value: ids made earlier stay as they were.
"""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from tlm_repro.artifacts import canonical_json, fingerprint
from tlm_repro.errors import ConfigError

Scalar = bool | int | float | str
Option = Scalar | tuple[Scalar, ...]
ZeroShotTask = Literal[
    "wikitext",
    "lambada_openai",
    "piqa",
    "hellaswag",
    "winogrande",
    "arc_easy",
    "arc_challenge",
    "social_iqa",
    "boolq",
]
NeedleTaskName = Literal["single_1", "single_2", "single_3", "multiquery"]


def slug(text: str) -> str:
    """`text` as a part of a file name: lower case, letters, digits, dots and hyphens."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def added_later(default: Any) -> Any:
    """A field that the first release didn't have: `canonical` leaves it out while it holds `default`."""
    return Field(default=default, json_schema_extra={"added_later": True})


class Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_serializer(mode="wrap")
    def _without_neutral_additions(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = handler(self)
        for name, field in type(self).model_fields.items():
            extra = field.json_schema_extra
            if isinstance(extra, dict) and extra.get("added_later") and getattr(self, name) == field.default:
                del values[name]
        return values

    def canonical(self) -> dict[str, Any]:
        """Plain values, as they are hashed and put on a command line."""
        return self.model_dump(mode="json")

    def to_json(self) -> str:
        return canonical_json(self.canonical())

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Raises ConfigError naming the key and the value that don't fit."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise _misfit("--spec", error) from None

    @classmethod
    def from_values(cls, values: Any, source: str) -> Self:
        """The same from plain values; `source` says in the message where they stand."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise _misfit(source, error) from None


def _misfit(source: str, error: ValidationError) -> ConfigError:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "the whole text"
    return ConfigError(f"{source}: {where}: {first['msg']} (seen: {first['input']!r})")


class PackageCorpus(Spec):
    """One document a text file, from an installed Python package: the default, since pip alone brings it."""

    kind: Literal["package"] = "package"
    package: str = Field(pattern=r"^[A-Za-z0-9][\w.-]*$", description="The installed package.")
    version: str = Field(description="Its version; another one installed is an error.")
    pattern: str = Field(default="**/*.txt", pattern=r"^[^/]", description="Which of its files are documents.")

    @property
    def title(self) -> str:
        return self.package


class FilesCorpus(Spec):
    """Local files: one document a text file, or one a row of JSONL or Parquet. Their contents are no part of an id."""

    kind: Literal["files"] = "files"
    paths: tuple[str, ...] = Field(
        min_length=1, description="Files or patterns such as `texts/*.txt`, relative to where the workflow runs."
    )
    format: Literal["text", "jsonl", "parquet"] = Field(description="A document a file, or a document a row.")
    field: str = Field(default="text", description="The rows' field that holds the text.")
    version: str | None = Field(default=None, description="Your name for the contents: change it when they change.")

    @property
    def title(self) -> str:
        return "files"


class HubCorpus(Spec):
    """A Hugging Face data set, streamed."""

    kind: Literal["hub"] = "hub"
    name: str = Field(
        pattern=r"[A-Za-z0-9]", description="`owner/name` on the hub, or a local folder that `datasets` can load."
    )
    config: str | None = Field(default=None, description="The data set's configuration.")
    split: str = Field(description="The data set's split.")
    field: str = Field(default="text", description="The rows' field that holds the text.")
    revision: str = Field(default="main", description="Branch, tag or commit; only a commit stays what it is.")

    @property
    def title(self) -> str:
        return self.name.rstrip("/").split("/")[-1]


Corpus = Annotated[PackageCorpus | FilesCorpus | HubCorpus, Field(discriminator="kind")]


class TrainedTokenizer(Spec):
    """Byte-level BPE with Llama 3's pre-tokenisation pattern, trained on the corpus's training documents."""

    kind: Literal["train"] = "train"
    vocab_size: int = Field(ge=258, le=2**22, description="Entries, the special tokens included.")
    training_bytes: int | None = Field(default=None, ge=1, description="Bytes of text it is trained on; null: all.")


class PretrainedTokenizer(Spec):
    """Any Hugging Face tokenizer, by hub name or folder. `vocab_size` is the model's, at least the tokenizer's."""

    kind: Literal["pretrained"] = "pretrained"
    name: str = Field(description="Hub name or local folder.")
    revision: str = Field(default="main", description="Branch, tag or commit; only a commit stays what it is.")
    vocab_size: int = Field(ge=2, le=2**22, description="The model's, at least the tokenizer's.")


Tokenizer = Annotated[TrainedTokenizer | PretrainedTokenizer, Field(discriminator="kind")]


class DataSpec(Spec):
    """A tokenised corpus. A hash of its name holds a document out: the split depends on neither order nor number."""

    corpus: Corpus
    tokenizer: Tokenizer
    validation_fraction: float = Field(gt=0, lt=1)  # of documents
    train_tokens: int | None = Field(default=None, ge=1)  # stop tokenising there; None: everything
    validation_tokens: int | None = Field(default=None, ge=1)
    shard_tokens: int = Field(ge=1024)
    split_seed: int = 0

    @property
    def name(self) -> str:
        """`<corpus>-<fingerprint>`, the folder under results/data."""
        return f"{slug(self.corpus.title)}-{fingerprint(self.canonical())}"


class ModelSpec(Spec):
    """The decoder, widths resolved. `mixer` holds the options of the architecture, checked by its registry entry."""

    architecture: str
    layers: int = Field(ge=1)
    model_width: int = Field(ge=1)
    heads: int = Field(ge=1)
    intermediate_sizes: tuple[int, ...]
    vocab_size: int = Field(ge=2)
    sequence_length: int = Field(ge=1)
    tied_embeddings: bool
    rope_theta: float = Field(gt=0, allow_inf_nan=False)
    norm_eps: float = Field(gt=0, allow_inf_nan=False)
    initializer_range: float = Field(gt=0, allow_inf_nan=False)
    mixer: dict[str, Option] = {}


class TrainingSpec(Spec):
    """All of the optimisation that can move a weight. Tokens seen = steps × batch_sequences × sequence_length."""

    steps: int = Field(ge=1)
    batch_sequences: int = Field(ge=1)
    sequence_length: int = Field(ge=1)
    warmup_steps: int = Field(ge=0)
    peak_learning_rate: float = Field(gt=0)
    final_learning_rate_ratio: float = Field(ge=0, le=1)
    weight_decay: float = Field(ge=0)
    beta1: float = Field(ge=0, lt=1)
    beta2: float = Field(ge=0, lt=1)
    eps: float = Field(gt=0)
    clip_norm: float = Field(gt=0)
    precision: Literal["fp32", "bf16"]
    seed: int = Field(ge=0)
    skip_nonfinite: Annotated[int, Field(ge=0)] = added_later(0)  # batches; one more stops the run

    @property
    def batch_tokens(self) -> int:
        return self.batch_sequences * self.sequence_length

    @property
    def tokens(self) -> int:
        return self.steps * self.batch_tokens


class RunLabels(Spec):
    """How people call a run: the readable half of its id."""

    architecture: str
    scale: str
    allocation: str  # canonical: "uniform", "cosine-1.5-0.5", "thirds-1.5-1.0-0.5", …
    seed: int


class RunSpec(Spec):
    """One pretraining run."""

    labels: RunLabels
    model: ModelSpec
    data: DataSpec
    training: TrainingSpec

    @property
    def id(self) -> str:
        """`<architecture>_<scale>_<allocation>_s<seed>-<fingerprint of model, data and training>`."""
        parts = {"model": self.model.canonical(), "data": self.data.canonical(), "training": self.training.canonical()}
        labels = self.labels
        return f"{labels.architecture}_{labels.scale}_{labels.allocation}_s{labels.seed}-{fingerprint(parts)}"


class ValidationSpec(Spec):
    """In-distribution loss on the held-out split: non-overlapping windows, from its start, at most `tokens` of them."""

    suite: Literal["validation"] = "validation"
    tokens: int | None = Field(default=None, ge=1)
    sequence_length: int = Field(ge=1)


class ZeroShotSpec(Spec):
    """lm-eval tasks. `source` says where their items come from.

    `demo`: the demo's own item files; `hub`: the hub's data sets; `path`: a folder that holds those, fetched once.
    """

    suite: Literal["zero_shot"] = "zero_shot"
    source: Literal["demo", "hub", "path"]
    items_version: int = 1  # of the demo items: raised whenever one changes
    tasks: tuple[ZeroShotTask, ...] = Field(min_length=1)
    max_length: int = Field(ge=1)
    limit: int | None = Field(default=None, ge=1)
    items: str | None = added_later(None)  # path: fingerprint of the tasks' items
    revisions: dict[ZeroShotTask, str] = added_later({})  # hub: of a task's data set; main where none is given

    @model_validator(mode="after")
    def _fits_its_source(self) -> Self:
        if (self.source == "path") != (self.items is not None):
            raise ValueError("items goes with source path, and with no other")
        if self.revisions and self.source != "hub":
            raise ValueError("revisions go with source hub, and with no other")
        return self


class HeldOut(Spec):
    """The validation documents of the data set that the models were trained on."""

    kind: Literal["held_out"] = "held_out"


AnyText = Annotated[HeldOut | PackageCorpus | FilesCorpus | HubCorpus, Field(discriminator="kind")]


class NeedleSamplesSpec(Spec):
    """Needle-in-a-haystack prompts: one set for all models with one tokenizer (paper Appendix A; RULER, 2404.06654)."""

    version: int = 1  # of the generator: raised whenever it makes other prompts
    tasks: tuple[NeedleTaskName, ...] = Field(min_length=1)
    lengths: tuple[Annotated[int, Field(ge=1)], ...] = Field(min_length=1)  # of prompt and answer together, in tokens
    samples: int = Field(ge=1)  # of each task at each length
    generated_tokens: int = Field(default=128, ge=1)
    text: AnyText  # the haystack of all tasks but single_1
    data: DataSpec | None = None  # whose tokenizer measures lengths; None: that of a model trained elsewhere

    @property
    def name(self) -> str:
        """`niah-<corpus>-<fingerprint>`, the folder under results/needles."""
        title = slug(self.data.corpus.title) if self.data else "external"
        return f"niah-{title}-{fingerprint(self.canonical())}"


class RopeScaling(Spec):
    """How rotary positions beyond the training length are read. `ntk` changes the base of the rotations."""

    kind: Literal["none", "linear", "ntk", "yarn"] = Field(
        default="none", description="`none`, or a rule of transformers': `linear`, `ntk` (its `dynamic`) or `yarn`."
    )
    factor: float | None = Field(
        default=None, ge=1, allow_inf_nan=False, description="Its factor; null: each length ÷ the training length."
    )


class NeedleSpec(Spec):
    """Needle in a haystack. `generator` says who makes the prompts: this project, or lm-eval's own `niah_*` tasks."""

    suite: Literal["niah"] = "niah"
    samples: NeedleSamplesSpec
    generator: Literal["own", "lm_eval"] = "own"
    rope_scaling: RopeScaling = RopeScaling()


EvaluationSpec = Annotated[ValidationSpec | ZeroShotSpec | NeedleSpec, Field(discriminator="suite")]


class ExternalModel(Spec):
    """A pretrained decoder by hub name or folder, or a GGUF file inside an installed Python package."""

    name: str = Field(pattern=r"[A-Za-z0-9]", description="How tables call it.")
    path: str | None = Field(default=None, min_length=1, description="Hub name or local folder.")
    revision: str = Field(default="main", description="Branch, tag or commit; only a commit stays what it is.")
    package: str | None = Field(default=None, min_length=1, description="Or an installed package that holds `gguf`.")
    gguf: str | None = Field(default=None, min_length=1, description="Name of a GGUF file.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is None) == (self.package is None) or (self.package and not self.gguf):
            raise ValueError("give either path, or package and gguf")
        return self


class NoveltySpec(Spec):
    """Layer novelty of one model on the first `tokens` tokens of a text, in windows of at most `window` tokens."""

    text: AnyText
    tokens: int = Field(ge=2)
    window: int = Field(ge=2)
    external: ExternalModel | None = None  # None: a run of ours
    data: DataSpec | None = None  # the data set whose held-out documents are read; None for other texts
