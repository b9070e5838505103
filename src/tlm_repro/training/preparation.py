"""What must hold before a run can train: its processes, its data, its untrained weights."""

import os
from collections.abc import Callable
from typing import TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from tlm_repro.data.shards import TokenData
from tlm_repro.errors import ConfigError, DataError, TLMError
from tlm_repro.models.decoder import LanguageModel
from tlm_repro.spec.run import ModelSpec, RunSpec

MIXED_PRECISION = {"fp32": "no", "bf16": "bf16"}
Value = TypeVar("Value")


def prepared_accelerator(precision: str) -> Accelerator:
    """The devices of this launch. Raises ConfigError when its processes don't see each other."""
    # Without `cpu`, accelerate on a machine with no accelerator takes each process of a launch for the only one.
    accelerator = Accelerator(cpu=not torch.accelerator.is_available(), mixed_precision=MIXED_PRECISION[precision])
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched != accelerator.num_processes:
        raise ConfigError(
            f"{launched} processes were launched (WORLD_SIZE), accelerate joined {accelerator.num_processes}: launch "
            "with torchrun, or unset WORLD_SIZE to run one process"
        )
    return accelerator


def on_main(accelerator: Accelerator, function: Callable[[], Value]) -> Value:
    """What `function` returns in the main process, in every process; so with an expected error that it raises."""
    if accelerator.num_processes == 1:
        return function()
    result: list[object] = [None, None]
    if accelerator.is_main_process:
        try:
            result[0] = function()
        except TLMError as error:
            result[1] = error
    value, problem = broadcast_object_list(result)
    if problem is not None:
        raise problem
    return value


def check(spec: RunSpec, data: TokenData, *, processes: int, micro_batch: int | None) -> int:
    """Sequences in one forward pass of one process. Raises ConfigError or DataError for what can't be trained."""
    training = spec.training
    if data.manifest.spec != spec.data:
        raise ConfigError(
            f"the data set is {data.manifest.id}, the run needs {spec.data.name}: pass that one's manifest"
        )
    if data.vocab_size != spec.model.vocab_size:
        raise ConfigError(
            f"the data have a vocabulary of {data.vocab_size}, the model of {spec.model.vocab_size}: make them equal"
        )
    if training.sequence_length > spec.model.sequence_length:
        raise ConfigError(
            f"training sequences of {training.sequence_length} tokens, the model is made for "
            f"{spec.model.sequence_length}: shorten the first or raise the second"
        )
    if len(data.validation) <= training.sequence_length:
        raise DataError(
            f"{len(data.validation)} held-out tokens, one window takes {training.sequence_length + 1}: "
            "hold out more documents"
        )
    micro_batch = micro_batch or max(1, training.batch_sequences // processes)
    if training.batch_sequences % (processes * micro_batch):
        raise ConfigError(
            f"{training.batch_sequences} sequences a batch don't divide into {processes} processes × {micro_batch} "
            "sequences a forward pass: change the number of processes or micro_batch_sequences"
        )
    return micro_batch


def initial_model(model: ModelSpec, seed: int) -> LanguageModel:
    """The untrained decoder, on the CPU so that a seed gives the same weights on every device."""
    torch.manual_seed(seed)
    return LanguageModel(model).train()
