"""What one pretraining run is asked to do, and its id."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from tlm_repro.artifacts.fingerprint import fingerprint
from tlm_repro.spec.base import Integer, Number, Option, Section, Spec, added_later, refusal, shown
from tlm_repro.spec.data import DataSpec
from tlm_repro.spec.learning_rates import LearningRate
from tlm_repro.spec.optimizers import AdamW, Optimizer


class Decoder(Section):
    """The decoder, apart from its size."""

    tied_embeddings: bool = Field(
        description="One matrix for the embedding and the head. [ours: the paper doesn't say]"
    )
    rope_theta: Number = Field(default=10_000.0, gt=0, description="Base of the rotary position embedding. [ours]")
    norm_eps: Number = Field(default=1e-5, gt=0, description="Epsilon of RMSNorm. [ours]")
    initializer_range: Number = Field(
        default=0.02, gt=0, description="Standard deviation of the initial weights. [ours]"
    )


class ModelSpec(Decoder, Spec):
    """The decoder, widths resolved. `mixer` holds the options of the architecture, checked by its registry entry."""

    architecture: str
    layers: int = Field(ge=1)
    model_width: int = Field(ge=1)
    heads: int = Field(ge=1)
    intermediate_sizes: tuple[int, ...]
    vocab_size: int = Field(ge=2)
    sequence_length: int = Field(ge=1)
    mixer: dict[str, Option] = Field(default={})

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.model_width // self.heads


# The first release knew AdamW and the cosine alone and had their keys flat: flat key → (section, key).
FLAT_KEYS = {
    "peak_learning_rate": ("learning_rate", "peak"),
    "final_learning_rate_ratio": ("learning_rate", "final_ratio"),
    "warmup_ratio": ("learning_rate", "warmup_ratio"),
    "weight_decay": ("optimizer", "weight_decay"),
    "beta1": ("optimizer", "beta1"),
    "beta2": ("optimizer", "beta2"),
    "eps": ("optimizer", "eps"),
}
FLAT_KINDS = {"learning_rate": "cosine", "optimizer": "adamw"}


class Optimisation(Section):
    """Optimisation, shared by all runs."""

    sequence_length: Integer = Field(ge=2, description="Tokens in one training window. [paper: 4,096]")
    learning_rate: LearningRate = Field(
        description="Its schedule after the warm-up: `cosine`, or `wsd` (stable, then decay). [paper: cosine]"
    )
    optimizer: Optimizer = Field(default=AdamW(kind="adamw"), description="The optimiser: `adamw`. [paper: AdamW]")
    clip_norm: Number = Field(default=1.0, gt=0, description="Largest global gradient norm. [lineage]")
    precision: Literal["fp32", "bf16"] = Field(
        default="fp32", description="fp32, or bf16 autocast with fp32 weights. [ours]"
    )
    skip_nonfinite: Integer = added_later(
        0,
        ge=0,
        description="Batches whose loss or gradient isn't finite that a run may skip; one more stops it. [ours]",
    )

    @model_validator(mode="before")
    @classmethod
    def _read_flat_keys(cls, values: Any) -> Any:
        """Moves the keys of the first release into their sections."""
        flat = [key for key in FLAT_KEYS if key in values] if isinstance(values, dict) else []
        nested = {key: value for key, value in values.items() if key not in flat} if flat else values
        for key in flat:
            section, name = FLAT_KEYS[key]
            keys = nested.get(section, {"kind": FLAT_KINDS[section]})
            if not isinstance(keys, dict) or name in keys:
                raise refusal(key, values[key], f"{section}.{name} is given too: remove one of them")
            nested[section] = {**keys, name: values[key]}
        return nested


class TrainingSpec(Optimisation, Spec):
    """All of the optimisation that can move a weight. Tokens seen = steps × batch_sequences × sequence_length."""

    steps: Integer = Field(ge=1)
    batch_sequences: Integer = Field(ge=1)
    seed: Integer = Field(ge=0)

    @model_validator(mode="before")
    @classmethod
    def _read_warmup_steps(cls, values: Any) -> Any:
        """Specs of the first release have the warm-up in steps. This runs before their flat keys are moved."""
        if not isinstance(values, dict) or "warmup_steps" not in values:
            return values
        others = {key: value for key, value in values.items() if key != "warmup_steps"}
        warmup, steps = values["warmup_steps"], values.get("steps")
        if not isinstance(warmup, int) or not isinstance(steps, int) or steps < 1:
            raise refusal("warmup_steps", warmup, f"whole numbers are expected of it and of steps ({shown(steps)})")
        if warmup > steps:
            raise refusal("warmup_steps", warmup, f"{warmup} warm-up steps in a run of {steps}: lower warmup_steps")
        return {**others, "warmup_ratio": warmup / steps}

    def as_first_released(self, values: dict[str, Any]) -> dict[str, Any]:
        flat = {key: path for key, path in FLAT_KEYS.items() if values[path[0]]["kind"] == FLAT_KINDS[path[0]]}
        for key, (section, name) in flat.items():
            values[key] = values[section].pop(name)
        if "warmup_ratio" in values:
            del values["warmup_ratio"]
            values["warmup_steps"] = self.learning_rate.warmup_steps(self.steps)
        for section, kind in FLAT_KINDS.items():
            if values[section] == {"kind": kind}:
                del values[section]
        return values

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

    @model_validator(mode="after")
    def _labels_fit(self) -> Self:
        """The id's hash leaves the labels out, so a wrong one would name another run."""
        labels, widths = self.labels, set(self.model.intermediate_sizes)
        if labels.architecture != self.model.architecture:
            raise ValueError(f"labels have the architecture '{labels.architecture}', model '{self.model.architecture}'")
        if labels.seed != self.training.seed:
            raise ValueError(f"labels have the seed {labels.seed}, training {self.training.seed}")
        if labels.allocation == "uniform" and len(widths) > 1:
            raise ValueError(f"labels have the allocation 'uniform', model the widths {sorted(widths)}")
        return self

    @property
    def id(self) -> str:
        """`<architecture>_<scale>_<allocation>_s<seed>-<fingerprint of model, data and training>`."""
        parts = {"model": self.model.canonical(), "data": self.data.canonical(), "training": self.training.canonical()}
        return f"{self.labels.title}-{fingerprint(parts)}"
