"""The experiments of a configuration: which allocations are compared, at which scales, with which seeds."""

from typing import Any, Literal

from pydantic import Field

from tlm_repro.allocation.widths import label
from tlm_repro.config.fields import Name, Number, Section, Seeds


class AllocationConfig(Section):
    """How the MLP budget is spread over depth. A parameter that the schedule doesn't have is an error."""

    schedule: str = Field(description="`uniform`, `linear`, `cosine`, `sigmoid`, `thirds`, or another published shape.")
    start: Number | None = Field(default=None, description="First layer's width ÷ D.")
    end: Number | None = Field(
        default=None,
        description="Last layer's width ÷ D; of the tapers start + end = 2, other shapes are rescaled to mean D.",
    )
    sharpness: Number | None = Field(default=None, description="Steepness k of the sigmoid. [paper: 10]")
    multipliers: tuple[Number, Number, Number] | None = Field(
        default=None, description="Width ÷ D of three equal groups."
    )

    edge: Number | None = Field(default=None, description="Relative width of the crown's ends.")
    peak: Number | None = Field(default=None, description="Relative width of the crown's middle.")
    fraction: Number | None = Field(default=None, description="Share of the layers, in the middle, that have an MLP.")
    bottleneck: Number | None = Field(default=None, description="Narrowest width of the V ÷ its widest.")
    position: Number | None = Field(default=None, description="Depth of the V's narrowest layer, 0…1.")

    def parameters(self) -> dict[str, Any]:
        """The parameters that are given, as `layer_widths` takes them."""
        return {name: value for name, value in self.model_dump(exclude={"schedule"}).items() if value is not None}

    @property
    def label(self) -> str:
        return label(self.schedule, **self.parameters())


class ExperimentConfig(Section):
    """What every experiment can have."""

    seeds: Seeds | None = Field(default=None, description="Seeds of this experiment; null: those of the whole.")


class MotivationConfig(ExperimentConfig):
    """Figure 2: where should width go?"""

    scale: Name = Field(description="Key of `scales`.")
    architecture: str = Field(default="transformer", description="Key of `architectures`.")
    allocations: tuple[str, ...] = Field(min_length=2, description="Keys of `allocations`; `uniform` is the baseline.")


class SweepConfig(ExperimentConfig):
    """Table 1: schedule × width ratio, and the uniform baseline."""

    scale: Name = Field(description="Key of `scales`.")
    architecture: str = Field(default="transformer", description="Key of `architectures`.")
    schedules: tuple[Literal["linear", "cosine", "sigmoid"], ...] = Field(min_length=1, description="Tapers to sweep.")
    ratios: tuple[tuple[Number, Number], ...] = Field(min_length=1, description="Pairs of start and end ratio.")


class MainConfig(ExperimentConfig):
    """Table 2: uniform against tapered over architectures and scales."""

    scales: tuple[Name, ...] = Field(min_length=1, description="Keys of `scales`.")
    architectures: tuple[str, ...] = Field(min_length=1, description="Keys of `architectures`.")
    allocations: tuple[str, ...] = Field(min_length=2, description="Keys of `allocations`; `uniform` is the baseline.")


class AllocationsConfig(MotivationConfig):
    """Any allocations side by side at one exact budget, the published ones of other papers among them."""


class ExperimentsConfig(Section):
    """What is trained and compared. A run that several experiments need is trained once; null leaves one out."""

    motivation: MotivationConfig | None = Field(default=None, description="Figure 2.")
    sweep: SweepConfig | None = Field(default=None, description="Table 1.")
    main: MainConfig | None = Field(default=None, description="Table 2.")
    allocations: AllocationsConfig | None = Field(default=None, description="Other allocations at the same budget.")
