"""What evaluations and novelty measurements are asked to do."""

from typing import Annotated, Literal, Self

from pydantic import (
    Field,
    model_validator,
)

from tlm_repro.artifacts.fingerprint import fingerprint
from tlm_repro.spec.base import Spec, added_later, slug
from tlm_repro.spec.data import AnyText, DataSpec

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
