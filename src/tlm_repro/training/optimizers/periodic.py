"""Parameters that take a step less often than others, whatever the optimiser."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tlm_repro.models.mixer import blocks

SUM = "gradient_sum"


class Periodic(Optimizer, ABC):
    """An optimiser whose groups take a step every `update_period` steps of the run, on the mean gradient of these.

    This is the continuum memory's rule (arXiv 2512.24695). Steps are counted from the start of the run: a group of
    period C fires at steps C, 2C, …, at the learning rate of that step. Gradients of an unfinished period at the end of
    a run aren't applied.

    In between, the sum of gradients is part of the optimiser's state, in fp32 or wider, so a checkpoint of that state
    and the number of the step are all that a resumed run needs. A group of period 1 holds no sum.

    Inherit from this class and then from the optimiser.
    """

    def take_step(self, number: int, learning_rate: float) -> None:
        """Takes step `number` of the run, counted from 1, on the current gradients, and clears them."""
        for group in self.param_groups:
            group["lr"] = learning_rate
            if group.setdefault("update_period", 1) > 1:
                self._accumulate(group, number)
        self.step()
        self.zero_grad()

    @abstractmethod
    def start_state(self, parameter: Tensor, *, fused: bool) -> None:
        """Fills the empty state of a parameter as the optimiser's first step would."""

    @torch.no_grad()
    def _accumulate(self, group: dict[str, Any], number: int) -> None:
        """Adds the gradients to the sums; at the end of a period the mean takes the gradient's place."""
        period = group["update_period"]
        for parameter in group["params"]:
            if parameter.grad is not None:
                self._sum(parameter, fused=bool(group.get("fused"))).add_(parameter.grad)
            parameter.grad = None  # optimisers skip a parameter without a gradient
            total = self.state.get(parameter, {}).get(SUM)
            if total is not None and number % period == 0:
                parameter.grad = (total / period).to(parameter.dtype)
                total.zero_()

    def _sum(self, parameter: Tensor, *, fused: bool) -> Tensor:
        state = self.state[parameter]
        if SUM not in state:
            self.start_state(parameter, fused=fused)
            wide = torch.promote_types(parameter.dtype, torch.float32)
            state[SUM] = torch.zeros_like(parameter, dtype=wide)
        return state[SUM]


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Groups by how often they take a step and whether they decay; the first two are those of every step.

    Tensors of two or more dimensions decay, vectors and scalars (norms, biases, gates) don't. Embeddings are matrices
    and decay as well. The paper gives the rate (0.1) and not the parameters: our choice. Shared tensors (tied
    embeddings) come once. A block's `update_period` holds for all its parameters but those of blocks in it that declare
    one.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    periods: dict[Tensor, int] = {}
    for block in blocks(model):  # outer ones first
        if block.update_period is not None:
            periods |= dict.fromkeys(block.parameters(), block.update_period)
    groups = []
    for period in sorted({1, *periods.values()}):
        of_period = [parameter for parameter in trained if periods.get(parameter, 1) == period]
        for decays in (True, False):
            members = [parameter for parameter in of_period if (parameter.ndim >= 2) is decays]
            if members or period == 1:
                decay = weight_decay if decays else 0.0
                groups.append({"params": members, "weight_decay": decay, "update_period": period})
    return groups
