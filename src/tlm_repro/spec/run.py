"""What one pretraining run is asked to do, and its id."""

from typing import Annotated, Literal

from pydantic import (
    Field,
)

from tlm_repro.artifacts.fingerprint import fingerprint
from tlm_repro.spec.base import Option, Spec, added_later
from tlm_repro.spec.data import DataSpec


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
    mixer: dict[str, Option] = Field(default={})


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

    @property
    def title(self) -> str:
        """`<architecture>_<scale>_<allocation>_s<seed>`."""
        return f"{self.architecture}_{self.scale}_{self.allocation}_s{self.seed}"


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
        return f"{self.labels.title}-{fingerprint(parts)}"
