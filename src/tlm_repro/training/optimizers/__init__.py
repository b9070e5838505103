"""Optimisers: one file for each kind of `spec.optimizers`, and the steps that some parameters take less often."""

import importlib

import torch
from torch import nn

from tlm_repro.spec.optimizers import Optimizer
from tlm_repro.training.optimizers.periodic import Periodic


def build(spec: Optimizer, model: nn.Module, device: torch.device) -> Periodic:
    """The optimiser of a run. Its learning rate is an argument of each step."""
    return importlib.import_module(spec.implementation).build(spec, model, device)
