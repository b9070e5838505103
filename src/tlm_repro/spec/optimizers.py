"""The kinds of optimiser: the keys of each. No torch here.

A further kind is a class here, its name in `Optimizer`, and the file that its `implementation` names.
"""

from typing import ClassVar, Literal

from pydantic import Field

from tlm_repro.spec.base import Number, Spec


class AdamW(Spec):
    """AdamW (arXiv 1711.05101)."""

    implementation: ClassVar[str] = "tlm_repro.training.optimizers.adamw"

    kind: Literal["adamw"]
    weight_decay: Number = Field(
        default=0.1, ge=0, description="Decoupled decay, on matrices only. [paper: 0.1; matrices: ours]"
    )
    beta1: Number = Field(default=0.9, ge=0, lt=1, description="Decay of the first moment. [lineage]")
    beta2: Number = Field(default=0.95, ge=0, lt=1, description="Decay of the second moment. [lineage]")
    eps: Number = Field(default=1e-8, gt=0, description="Added to the root of the second moment. [ours]")


Optimizer = AdamW  # with a second kind: Annotated[AdamW | …, Field(discriminator="kind")]
