"""What evaluations and novelty measurements are asked to do."""

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from tlm_repro.artifacts.fingerprint import fingerprint
from tlm_repro.spec.base import Integer, Section, Spec, added_later, slug
from tlm_repro.spec.benchmarks import PAPER_BENCHMARKS, PAPER_TASKS
from tlm_repro.spec.data import AnyText, DataSpec, HeldOut
from tlm_repro.spec.metrics import MAIN_METRICS

if TYPE_CHECKING:
    ZeroShotTask = str
else:
    ZeroShotTask = Literal[PAPER_TASKS]


COLUMN = r"^[a-z][a-z0-9_]*$"  # a score in evaluation files and tables
NeedleTaskName = Literal["single_1", "single_2", "single_3", "multiquery"]


class HeldOutLoss(Section):
    """In-distribution loss on the held-out documents."""

    tokens: Integer | None = Field(default=None, ge=1, description="At most this many held-out tokens; null: all.")


class ValidationSpec(HeldOutLoss, Spec):
    """In-distribution loss on non-overlapping windows from the start of the held-out split."""

    suite: Literal["validation"] = "validation"
    sequence_length: int = Field(ge=1)


class TaskMetric(Section):
    """A metric of one of lm-eval's tasks."""

    task: str = Field(pattern=r"^[A-Za-z0-9][^/\s]*$", description="lm-eval's name, such as `openbookqa`.")
    metric: str = Field(
        min_length=1,
        description="Its metric, such as `acc_norm`; with a filter, if the task has several: "
        "`exact_match,strict-match`.",
    )


class AdditionalTask(TaskMetric, Spec):
    """A task beside the paper's: the metric whose value the evaluation file has under `column`."""

    column: str = Field(pattern=COLUMN)
    items: str | None = None  # sha256 of the JSONL file of its items; None: they come from the suite's source


class Benchmarks(Section):
    """Which tasks are scored on which items.

    `demo`: the demo's own item files; `hub`: the hub's data sets; `path`: a folder that holds those, fetched once.
    """

    source: Literal["demo", "hub", "path"] = Field(
        description="Items of this project's own for a demo, the hub's data sets, or a folder of those, fetched once."
    )
    revisions: dict[str, Annotated[str, Field(min_length=1)]] = added_later(
        {},
        description="Source hub: branch, tag or commit of a task's data set, main for the others; only a commit is "
        "permanent.",
    )
    tasks: tuple[ZeroShotTask, ...] = Field(min_length=1, description="Tasks of Table 2. [lineage]")
    limit: Integer | None = Field(default=None, ge=1, description="Items of a task at most, for trials; null: all.")


class ZeroShotSpec(Benchmarks, Spec):
    """Scores on lm-eval's tasks."""

    suite: Literal["zero_shot"] = "zero_shot"
    items_version: int = 1  # of the demo items: raised whenever one changes
    max_length: int = Field(ge=1)
    items: str | None = added_later(None)  # path: fingerprint of the tasks' items
    additional: tuple[AdditionalTask, ...] = added_later(())

    @model_validator(mode="after")
    def _fits_its_source(self) -> Self:
        if (self.source == "path") != (self.items is not None):
            raise ValueError("items goes with source path, and with no other")
        if self.revisions and self.source != "hub":
            raise ValueError("revisions go with source hub, and with no other")
        if stray := [task for task in self.revisions if task not in self.all_tasks]:
            raise ValueError(f"revisions has '{stray[0]}', which isn't one of the tasks")
        return self

    @model_validator(mode="after")
    def _additional_tasks_fit(self) -> Self:
        columns = [*MAIN_METRICS, *(entry.column for entry in self.additional)]
        if repeated := [column for column in columns if columns.count(column) > 1]:
            raise ValueError(f"additional has the column '{repeated[0]}', which another score has")
        for task in {entry.task for entry in self.additional}:
            items = {entry.items for entry in self.additional if entry.task == task}
            if len(items) > 1 or (task in PAPER_TASKS and items != {None}):
                raise ValueError(f"additional has items for '{task}', whose other scores are measured on other items")
        return self

    @property
    def all_tasks(self) -> tuple[str, ...]:
        """lm-eval's names of the tasks that are run: the paper's, then the others, each once."""
        return tuple(dict.fromkeys((*self.tasks, *(entry.task for entry in self.additional))))

    @property
    def own_items(self) -> dict[str, str]:
        """Task → sha256 of its item file, for tasks that have one in place of the source's items."""
        return {entry.task: entry.items for entry in self.additional if entry.items is not None}

    @property
    def source_tasks(self) -> tuple[str, ...]:
        """The tasks whose items come from the source."""
        return tuple(task for task in self.all_tasks if task not in self.own_items)

    def columns(self, task: str) -> dict[str, str]:
        """Column → lm-eval metric of the scores that are taken from one task."""
        paper = {each.column: each.metric for each in PAPER_BENCHMARKS if each.task == task and task in self.tasks}
        return paper | {entry.column: entry.metric for entry in self.additional if entry.task == task}

    def of_task(self, task: str) -> Self:
        """The part of the spec that concerns one task."""
        return self.model_copy(
            update={
                "tasks": tuple(name for name in self.tasks if name == task),
                "additional": tuple(entry for entry in self.additional if entry.task == task),
            }
        )


class NeedlePrompts(Section):
    """Needle-in-a-haystack prompts (paper Appendix A; RULER, arXiv 2404.06654)."""

    tasks: tuple[NeedleTaskName, ...] = Field(
        default=("single_1", "single_2", "single_3", "multiquery"),
        min_length=1,
        description="RULER's `niah_…` tasks. [paper: these four]",
    )
    lengths: tuple[Annotated[Integer, Field(ge=192)], ...] = Field(
        default=(4096, 8192, 16384),
        min_length=1,
        description="Tokens of prompt and answer together. [paper: 4K, 8K, 16K]",
    )
    samples: Integer = Field(default=500, ge=1, description="Samples of a task at a length. [lineage: RULER's 500]")
    text: AnyText = Field(
        default=HeldOut(), description="Where the haystack of all tasks but single_1 comes from. [RULER: essays]"
    )


class NeedleSamplesSpec(NeedlePrompts, Spec):
    """One set of prompts for all models with one tokenizer."""

    version: int = 1  # of the generator: raised whenever it makes other prompts
    generated_tokens: int = Field(default=128, ge=1)
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


class NeedleScoring(Section):
    """Who makes the prompts, and how a model reads them."""

    generator: Literal["own", "lm_eval"] = Field(
        default="own", description="This project's samples, or those of lm-eval's own `niah_*` tasks, to compare."
    )
    rope_scaling: RopeScaling = Field(
        default=RopeScaling(),
        description="How positions beyond the training length are read. [ours: as they are]",
    )


class NeedleSpec(NeedleScoring, Spec):
    """Needle in a haystack."""

    suite: Literal["niah"] = "niah"
    samples: NeedleSamplesSpec


class ExternalModel(Spec):
    """A pretrained decoder by hub name or folder, or a GGUF file inside an installed Python package."""

    name: str = Field(pattern=r"[A-Za-z0-9]", description="Its name in tables.")
    path: str | None = Field(default=None, min_length=1, description="Hub name or local folder.")
    revision: str = Field(default="main", description="Branch, tag or commit; only a commit is permanent.")
    package: str | None = Field(default=None, min_length=1, description="Or an installed package that holds `gguf`.")
    gguf: str | None = Field(default=None, min_length=1, description="Name of a GGUF file.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is None) == (self.package is None) or (self.package and not self.gguf):
            raise ValueError("give either path, or package and gguf")
        return self


class NoveltyText(Section):
    """What the models read whose layer novelty is measured: the first tokens of a text, in windows."""

    text: AnyText = Field(description="The text that is read. [paper: WikiText-2]")
    tokens: Integer = Field(default=2048, ge=2, description="Tokens that are read. [paper: 2,048]")
    window: Integer = Field(default=1024, ge=2, description="Tokens in one forward pass. [ours]")


class NoveltySpec(NoveltyText, Spec):
    """Layer novelty of one model."""

    external: ExternalModel | None = None  # None: a run of ours
    data: DataSpec | None = None  # the data set whose held-out documents are read; None for other texts
