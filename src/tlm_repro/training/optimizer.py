"""AdamW, with decay on matrices only, and with parameters that take a step less often than others."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from tlm_repro.spec.run import TrainingSpec

# On CPU the fused step takes a fifth to a third of the foreach one's time at the demo's sizes.
FUSED_DEVICES = ("cpu", "cuda", "mps", "xpu")
HELD = "gradient_sum"


class PeriodicAdamW(AdamW):
    """AdamW whose groups take a step every `update_period` steps of the run, on the mean gradient of those steps.

    The continuum memory's rule (arXiv 2512.24695) with AdamW as the inner optimiser [ours]. Steps are
    counted from the start of the run: a group of period C fires at steps C, 2C, …, at the learning rate of that step;
    what a run's end leaves of a period isn't applied. Moments, bias correction and decay count the group's own steps.

    Between two of them the sum of gradients stands in the optimiser's state, in fp32 at least, so a checkpoint of
    that state and the number of the step are all that a resumed run needs. A group of period 1 is AdamW's own, to the
    bit, and holds nothing more.
    """

    def take_step(self, number: int, learning_rate: float) -> None:
        """Step `number` of the run, counted from 1, on the gradients at hand, which are used up."""
        for group in self.param_groups:
            group["lr"] = learning_rate
            if group.setdefault("update_period", 1) > 1:
                self._hold(group, number)
        self.step()
        self.zero_grad()

    @torch.no_grad()
    def _hold(self, group: dict[str, Any], number: int) -> None:
        """Adds the gradients to the sums; at the end of a period puts their mean in the gradients' place."""
        period = group["update_period"]
        for parameter in group["params"]:
            if parameter.grad is not None:
                self._sum(parameter, fused=group["fused"]).add_(parameter.grad)
            parameter.grad = None  # AdamW passes over a parameter without one
            held = self.state.get(parameter, {}).get(HELD)
            if held is not None and number % period == 0:
                parameter.grad = (held / period).to(parameter.dtype)
                held.zero_()

    def _sum(self, parameter: Tensor, *, fused: bool) -> Tensor:
        state = self.state[parameter]
        if HELD not in state:
            # AdamW starts its moments only where the state is empty, so they are started here.
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device if fused else "cpu")
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
            wide = torch.promote_types(parameter.dtype, torch.float32)
            state[HELD] = torch.zeros_like(parameter, dtype=wide)
        return state[HELD]


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Groups by how often they take a step and whether they decay; the first two are those of every step.

    Tensors of two or more dimensions decay, vectors and scalars (norms, biases, gates) don't. Embeddings are matrices
    and decay as well. The paper gives the rate (0.1) and not the parameters: our choice. Shared tensors (tied
    embeddings) come once. A module with an attribute `update_period` speaks for its own parameters.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    periods: dict[Tensor, int] = {}
    for module in model.modules():
        period = getattr(module, "update_period", None)
        if isinstance(period, int):
            periods |= dict.fromkeys(module.parameters(), period)
    groups = []
    for period in sorted({1, *periods.values()}):
        alike = [parameter for parameter in trained if periods.get(parameter, 1) == period]
        for decays in (True, False):
            members = [parameter for parameter in alike if (parameter.ndim >= 2) is decays]
            if members or period == 1:
                decay = weight_decay if decays else 0.0
                groups.append({"params": members, "weight_decay": decay, "update_period": period})
    return groups


def adamw(model: nn.Module, training: TrainingSpec, device: torch.device) -> PeriodicAdamW:
    """The optimiser of a run; its learning rate is set anew at each step."""
    return PeriodicAdamW(
        parameter_groups(model, training.weight_decay),
        lr=training.peak_learning_rate,
        betas=(training.beta1, training.beta2),
        eps=training.eps,
        fused=device.type in FUSED_DEVICES,
    )
