"""The configuration: one typed source, from which the JSON schema and `config/README.md` are generated.

Descriptions say where a default comes from: [paper] stated there, [lineage] the same authors' neighbouring papers,
[ours] this project's choice where both are silent (docs/fidelity.md gives the reasons).
"""

import math
import re

from pydantic import Field

from tlm_repro.config.experiments import AllocationConfig, ExperimentsConfig
from tlm_repro.config.fields import Name, Seeds
from tlm_repro.spec.base import Integer, Option, Section
from tlm_repro.spec.benchmarks import Benchmark, Direction
from tlm_repro.spec.data import Tokenisation
from tlm_repro.spec.evaluation import (
    COLUMN,
    Benchmarks,
    ExternalModel,
    HeldOutLoss,
    NeedlePrompts,
    NeedleScoring,
    NoveltyText,
    TaskMetric,
)
from tlm_repro.spec.execution import Execution, Hardware, Supervision
from tlm_repro.spec.run import Decoder, Optimisation


class DataConfig(Tokenisation):
    """The corpus, its split and its tokenizer."""

    jobs: Integer = Field(
        default=1, ge=1, le=1000, description="Jobs that share the tokenising; it can't change the result."
    )


class ScaleConfig(Section):
    """One model size and its token budget."""

    layers: Integer = Field(ge=1, le=1000, description="Number of blocks, L.")
    model_width: Integer = Field(ge=2, description="Width of the residual stream, d.")
    heads: Integer = Field(ge=1, description="Attention heads.")
    mlp_width: dict[str, Integer] = Field(
        description="Uniform MLP width D by architecture, a multiple of 16; a multiple of 128 makes taper ends exact."
    )
    tokens: Integer = Field(ge=1, description="Training tokens; rounded to whole batches.")
    batch_tokens: Integer = Field(
        ge=1, description="Global batch in tokens: a multiple of sequence length × processes."
    )
    nominal_parameters: Integer | None = Field(
        default=None,
        ge=1,
        description="The size it stands for; totals must come within 1.5 % of it. null: not checked.",
    )
    stands_for: Name | None = Field(
        default=None, description="The paper's scale whose published values stand beside it; null: its own name."
    )
    hardware: Hardware = Field(default=Hardware(), description="Processes and micro-batch.")


class AdditionalBenchmark(TaskMetric):
    """One of lm-eval's tasks beside the paper's: a column of its own in Table 2 that `avg` doesn't include."""

    title: str = Field(min_length=1, description="Title of the column; unit and arrow are added.")
    direction: Direction = Field(description="Which values are better.")
    column: str | None = Field(
        default=None, pattern=COLUMN, description="Name in evaluation files and CSV tables; null: the task's."
    )
    items: str | None = Field(
        default=None,
        min_length=1,
        description="JSONL file of items in the schema of the task's data set, read in place of `source`.",
    )

    @property
    def benchmark(self) -> Benchmark:
        column = self.column or re.sub(r"[^a-z0-9]+", "_", self.task.lower())
        return Benchmark(column, self.title, self.task, self.metric, self.direction)


class ZeroShotConfig(Benchmarks):
    """lm-eval benchmarks, run on the models of `experiments.main`; docs/evaluation.md says where items come from."""

    path: str | None = Field(
        default=None,
        min_length=1,
        description="Source path: what `tlm-repro fetch-benchmarks` made, relative to where the workflow runs.",
    )
    additional: tuple[AdditionalBenchmark, ...] = Field(
        default=(), description="More of lm-eval's tasks: a column each, beside the paper's."
    )
    max_length: Integer | None = Field(
        default=None, ge=16, description="Longest input in tokens; null: the training length."
    )


LM_EVAL_SAMPLES = 500  # of each of its `niah_*` tasks at each length


class NeedleConfig(NeedleScoring, NeedlePrompts):
    """Needle in a haystack, run on the models of `experiments.main`; docs/needle.md says how samples are made."""


class EvaluationConfig(Section):
    """What is measured on a trained model."""

    validation: HeldOutLoss = Field(default=HeldOutLoss(), description="Held-out loss and perplexity.")
    zero_shot: ZeroShotConfig | None = Field(default=None, description="Benchmarks; null leaves them out.")
    niah: NeedleConfig | None = Field(default=None, description="Needle in a haystack; null leaves it out.")
    batch_size: Integer = Field(
        default=32, ge=1, description="Sequences in one forward pass; it can't change a result."
    )


class NoveltyConfig(NoveltyText):
    """Figure 4: how much each layer still adds to the residual stream."""

    models: tuple[ExternalModel, ...] = Field(default=(), description="Pretrained models. [paper: GPT-2 124M…1.5B]")
    runs: bool = Field(default=True, description="Also measure the models of `experiments.main`.")


class ReportingConfig(Section):
    """What is made of the results. Nothing here can change one, so nothing here is part of an id."""

    exhibits: tuple[str, ...] = Field(
        default=(),
        description="Python files of your own with more tables and figures, relative to where the workflow runs; "
        "CONTRIBUTING.md says what such a file has.",
    )


class Config(Section):
    """The whole configuration."""

    name: Name = Field(description="Its name in reports.")
    toy: bool = Field(description="Stamps results as toy scale: no evidence for the paper.")
    seeds: Seeds = Field(
        default=(0,),
        description="Each run is trained once per seed. [ours: the paper states neither their number nor values]",
    )
    data: DataConfig = Field(description="Corpus and tokenizer.")
    model: Decoder = Field(description="What every model shares.")
    architectures: dict[str, dict[str, Option]] = Field(
        min_length=1, description="Each architecture with its own options."
    )
    scales: dict[Name, ScaleConfig] = Field(min_length=1, description="Model sizes.")
    training: Optimisation = Field(description="Optimisation.")
    trainer: Supervision = Field(default=Supervision(), description="Checkpoints and monitoring.")
    allocations: dict[Name, AllocationConfig] = Field(min_length=1, description="Named allocations.")
    experiments: ExperimentsConfig = Field(description="What is trained and compared.")
    evaluation: EvaluationConfig = Field(description="What is measured.")
    novelty: NoveltyConfig | None = Field(default=None, description="Layer novelty; null leaves it out.")
    reporting: ReportingConfig = Field(default=ReportingConfig(), description="Tables and figures.")

    def execution(self, scale: str) -> Execution:
        """How the runs of a scale are executed."""
        return Execution(**dict(self.scales[scale].hardware), **dict(self.trainer))


def steps(scale: ScaleConfig) -> int:
    """Optimiser steps that come nearest to the token budget."""
    return max(math.floor(scale.tokens / scale.batch_tokens + 0.5), 1)
