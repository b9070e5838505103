"""The experiments of a configuration: which allocations are compared, at which scales, with which seeds."""

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, create_model

from tlm_repro.allocation.curves import CURVES
from tlm_repro.allocation.widths import label
from tlm_repro.config.fields import Name, Seeds
from tlm_repro.spec.base import Number, Section


class _Curve(Section):
    schedule: str = Field(description="`uniform`, `linear`, `cosine`, `sigmoid`, `thirds`, or another published shape.")


def _parameters() -> type[Section]:
    """A section with an optional key for each parameter of each curve."""
    fields: dict[str, Any] = {}
    for curve in CURVES.values():
        for name, parameter in curve.parameters.items():
            default = parameter.default
            kind: Any = tuple[(Number,) * len(default)] if isinstance(default, tuple) else Number  # type: ignore[misc]
            fields.setdefault(name, (kind | None, Field(default=None, description=parameter.meaning)))
    return create_model("_Parameters", __base__=_Curve, **fields)


if TYPE_CHECKING:
    _Parameters = _Curve
else:
    _Parameters = _parameters()


class AllocationConfig(_Parameters):
    """How the MLP budget is spread over depth. A parameter that the schedule doesn't have is an error."""

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
