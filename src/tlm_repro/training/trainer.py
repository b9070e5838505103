"""Pretraining of one run: the loop, and what must hold before it starts.

Resumable state is weights, optimiser, step and random generators; the data have none, since `Batches.batch(step)` is a
pure function. So a run that is killed and restarted goes on exactly where its last checkpoint was.
"""

import contextlib
import math
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object
from torch import Tensor, nn

from tlm_repro.artifacts import exclusive
from tlm_repro.data.batches import Batches
from tlm_repro.data.shards import TokenData
from tlm_repro.devices import device_name
from tlm_repro.errors import ConfigError, DataError, DivergenceError, InterruptedRun
from tlm_repro.evaluation.validation import validation_loss
from tlm_repro.models.configuration import TLMConfig
from tlm_repro.models.decoder import TLMForCausalLM
from tlm_repro.spec import ModelSpec, RunSpec
from tlm_repro.training import product, scheduler
from tlm_repro.training.attempt import Attempt
from tlm_repro.training.checkpoint import Checkpoint, Checkpoints, random_state, set_random_state
from tlm_repro.training.metrics import METRICS, TIMING, Recorder
from tlm_repro.training.optimizer import adamw
from tlm_repro.training.schedule import learning_rate
from tlm_repro.training.signals import StopSignals

MIXED_PRECISION = {"fp32": "no", "bf16": "bf16"}


@dataclass(frozen=True)
class TrainerOptions:
    """What may differ between two attempts at one run without another result (but for the order of float sums).

    Attributes:
        micro_batch_sequences: sequences in one forward pass of one process; None: the process's share of the batch.
        checkpoint_seconds: time between checkpoints; one is also written at the end and when a signal comes.
        stop_before_seconds: inside a SLURM job, save and stop so long before its time limit; three times as long as
            the slowest save if that is more.
        validations: how often the validation loss is measured, evenly spaced; 0 or 1: at the end alone.
        validation_tokens: from the start of the held-out split, at most so many for each of these.
        log_seconds: time between progress lines where stderr isn't a terminal.
        keep_checkpoints: keep the last checkpoint when the product is written.
    """

    micro_batch_sequences: int | None = None
    checkpoint_seconds: float = 600.0
    stop_before_seconds: float = 120.0
    validations: int = 10
    validation_tokens: int = 262_144
    log_seconds: float = 10.0
    keep_checkpoints: bool = False


def pretrain(
    spec: RunSpec, data: TokenData, *, folder: Path, checkpoints: Path, options: TrainerOptions
) -> dict[str, Any]:
    """Trains the run to its end, from its last checkpoint if there is one, and writes its product to `folder`.

    A finished product is left as it is. Under `torchrun` or `accelerate launch` every process of the launch calls this.
    One launch at a time works on a run; another waits for it.

    Returns:
        The summary of the product's manifest (`product.summarise`), in every process.

    Raises:
        ConfigError: spec, data and number of processes don't fit together.
        InterruptedRun: a signal came, or the job's time limit is near; the state is saved.
        DivergenceError: loss or gradient stopped being finite; no checkpoint was written after that.
        CheckpointError: a checkpoint can't be written, or none can be read.
    """
    accelerator = prepared_accelerator(spec.training.precision)
    micro_batch = check(spec, data, processes=accelerator.num_processes, micro_batch=options.micro_batch_sequences)
    main = accelerator.is_main_process
    with exclusive(checkpoints) if main else contextlib.nullcontext():
        summary = from_main(accelerator, product.finished(spec, folder, checkpoints) if main else None)
        if summary is None:
            if main:
                Attempt.here(accelerator, spec.training.precision).write(checkpoints)
            trainer = Trainer(spec, data, accelerator, Checkpoints(checkpoints, spec.id), micro_batch, options)
            trainer.resume()
            trainer.fit()
            summary = from_main(accelerator, trainer.write_product(folder) if main else None)
    return summary


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


def check(spec: RunSpec, data: TokenData, *, processes: int, micro_batch: int | None) -> int:
    """Sequences in one forward pass of one process. Raises ConfigError or DataError for what can't be trained."""
    training = spec.training
    if data.manifest.spec != spec.data.canonical():
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
    if training.warmup_steps > training.steps:
        raise ConfigError(f"{training.warmup_steps} warm-up steps in a run of {training.steps}: lower warmup_steps")
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


def initial_model(model: ModelSpec, data: TokenData, seed: int) -> TLMForCausalLM:
    """The untrained decoder, on the CPU so that a seed names the same weights on every device."""
    tokenizer = data.tokenizer()
    config = TLMConfig.from_spec(model, bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id)
    torch.manual_seed(seed)
    return TLMForCausalLM(config).train()


def validation_steps(steps: int, validations: int) -> frozenset[int]:
    """`validations` evenly spaced steps, the last one always among them."""
    wanted = max(1, validations)
    return frozenset(max(1, round(steps * index / wanted)) for index in range(1, wanted + 1))


def from_main(accelerator: Accelerator, value: Any) -> Any:
    """The main process's `value`, in every process."""
    return broadcast_object_list([value])[0] if accelerator.num_processes > 1 else value


@dataclass(frozen=True)
class Update:
    """One optimiser step: mean loss of the global batch before it (nats), norm of its gradient before clipping."""

    loss: float
    grad_norm: float
    learning_rate: float


class Trainer:
    """The state of a run in one process, and the steps that change it."""

    def __init__(
        self,
        spec: RunSpec,
        data: TokenData,
        accelerator: Accelerator,
        checkpoints: Checkpoints,
        micro_batch: int,
        options: TrainerOptions,
    ) -> None:
        training = spec.training
        self.spec, self.data, self.options = spec, data, options
        self.accelerator, self.checkpoints, self.micro_batch = accelerator, checkpoints, micro_batch
        self.model = initial_model(spec.model, data, training.seed)
        self.wrapped: nn.Module = accelerator.prepare(self.model)  # on its device, under DDP where there are processes
        self.optimizer = adamw(self.model, training, accelerator.device)
        self.batches = Batches(
            data.train,
            sequence_length=training.sequence_length,
            batch_sequences=training.batch_sequences,
            seed=training.seed,
        )
        self.step = 0  # optimiser steps taken
        self.seconds = 0.0  # training time of all attempts, up to the last checkpoint
        self._saved = time.monotonic()
        left = scheduler.time_left() if accelerator.is_main_process else None
        self._end = None if left is None else time.monotonic() + left  # of the job, where the scheduler says so
        self._slowest_save = 0.0

    def resume(self) -> None:
        """Takes over the newest usable checkpoint, if there is any; the main process chooses it."""
        main = self.accelerator.is_main_process
        found: Checkpoint | None = from_main(self.accelerator, self.checkpoints.latest() if main else None)
        if found is None:
            return
        found.restore(self.model, self.optimizer)
        rank = self.accelerator.process_index
        if rank < len(found.rng):  # the number of processes may have grown since
            set_random_state(found.rng[rank])
        self.step, self.seconds = found.step, found.extra["seconds"]
        if main:
            print(f"{self.spec.id} resumes after step {self.step} from {found.folder}", file=sys.stderr)

    def fit(self) -> None:
        """Trains up to the last step; a checkpoint of it is on disk afterwards."""
        training, options = self.spec.training, self.options
        validated = validation_steps(training.steps, options.validations)
        with (
            StopSignals() as signals,
            Recorder(
                self.checkpoints.folder / METRICS,
                step=self.step,
                steps=training.steps,
                seconds=options.log_seconds,
                main=self.accelerator.is_main_process,
            ) as recorder,
        ):
            while self.step < training.steps:
                began = time.perf_counter()
                update = self.update()
                row: dict[str, Any] = {
                    "step": self.step,
                    "tokens": self.step * training.batch_tokens,
                    "loss": update.loss,
                    "learning_rate": update.learning_rate,
                    "grad_norm": update.grad_norm,
                    TIMING: round(training.batch_tokens / (time.perf_counter() - began), 1),
                }
                if self.step in validated:
                    row["validation_loss"] = self.validate()
                recorder.add(row)
                overdue = time.monotonic() - self._saved >= options.checkpoint_seconds
                stop, due = self.anywhere(signals.received is not None or self.late, overdue)
                if stop or due or self.step == training.steps:
                    recorder.sync()
                    self.save()
                if stop and self.step < training.steps:
                    name = signals.received.name if signals.received else "a signal in another process"
                    reason = "the job's time limit" if self.late else name
                    raise InterruptedRun(
                        f"stopped by {reason} after step {self.step} of {training.steps}; the next attempt resumes "
                        f"from {self.checkpoints.last_saved()}"
                    )

    @property
    def late(self) -> bool:
        """Whether it's time to save and stop, so that the scheduler doesn't end the job in the middle of it."""
        needed = max(self.options.stop_before_seconds, 3 * self._slowest_save)
        return self._end is not None and time.monotonic() + needed >= self._end

    def update(self) -> Update:
        """Takes the next optimiser step, on the mean loss over the global batch.

        Raises DivergenceError, the weights untouched, when the loss or its gradient isn't finite.
        """
        training, accelerator = self.spec.training, self.accelerator
        rank, processes = accelerator.process_index, accelerator.num_processes
        batch = torch.from_numpy(self.batches.batch(self.step, rank=rank, world_size=processes)).to(accelerator.device)
        parts = batch.split(self.micro_batch)
        total = torch.zeros((), device=accelerator.device)
        for index, part in enumerate(parts):
            last = index == len(parts) - 1  # the processes exchange gradients once a step
            with contextlib.nullcontext() if last else accelerator.no_sync(self.wrapped):
                loss = mean_loss(self.wrapped, part) / len(parts)
                accelerator.backward(loss)
            total += loss.detach()
        norm = accelerator.clip_grad_norm_(self.model.parameters(), training.clip_norm)
        loss_value, norm_value = accelerator.reduce(total, "mean").item(), float(norm)
        if not (math.isfinite(loss_value) and math.isfinite(norm_value)):
            raise self.diverged(f"step {self.step + 1}: the loss is {loss_value}, the gradient's norm {norm_value}")
        rate = learning_rate(
            self.step + 1,
            steps=training.steps,
            warmup_steps=training.warmup_steps,
            peak=training.peak_learning_rate,
            final_ratio=training.final_learning_rate_ratio,
        )
        self.optimizer.take_step(self.step + 1, rate)
        self.step += 1
        return Update(loss=loss_value, grad_norm=norm_value, learning_rate=rate)

    def check_weights(self) -> None:
        """Raises DivergenceError if a finite gradient has still led to weights that aren't."""
        if not all(bool(parameter.isfinite().all()) for parameter in self.model.parameters()):
            raise self.diverged(f"step {self.step}: weights are not finite")

    def diverged(self, seen: str) -> DivergenceError:
        return DivergenceError(
            f"{seen}; the last good checkpoint is {self.checkpoints.last_saved()}: lower peak_learning_rate or "
            "lengthen the warm-up"
        )

    def validate(self) -> float | None:
        """Loss on the held-out split at the precision of training, in the main process alone: the others' is None."""
        self.check_weights()
        if not self.accelerator.is_main_process:
            return None
        length = self.spec.training.sequence_length
        measured = validation_loss(
            self.model,
            self.data.validation,
            sequence_length=length,
            limit=max(length, self.options.validation_tokens),
            batch_sequences=self.micro_batch,
        )
        return measured.loss

    def anywhere(self, *here: bool) -> list[bool]:
        """Each is true in every process if it is true in one, so that all of them act in the same step."""
        flags = torch.tensor(here, dtype=torch.float32, device=self.accelerator.device)
        return [count > 0 for count in self.accelerator.reduce(flags, "sum").tolist()]

    def save(self) -> None:
        """Writes a checkpoint from the main process, with the random generators of all."""
        self.check_weights()
        began = time.monotonic()
        generators = gather_object([random_state()])
        self.seconds += time.monotonic() - self._saved
        if self.accelerator.is_main_process:
            self.checkpoints.save(self.step, self.model, self.optimizer, generators, {"seconds": self.seconds})
        self.accelerator.wait_for_everyone()
        self._saved = time.monotonic()
        self._slowest_save = max(self._slowest_save, self._saved - began)

    def write_product(self, folder: Path) -> dict[str, Any]:
        """Called in the main process, when all steps are taken."""
        device = self.accelerator.device
        name = device_name(device)
        summary = product.write(
            self.spec, self.data, self.model, folder, self.checkpoints, device=name, seconds=self.seconds
        )
        self.checkpoints.clear(keep=1 if self.options.keep_checkpoints else 0)
        return summary


def mean_loss(model: nn.Module, batch: Tensor) -> Tensor:
    """Mean next-token cross-entropy, nats. batch: (sequences, time + 1), the last token of each only a target."""
    return model(input_ids=batch[:, :-1], shift_labels=batch[:, 1:], use_cache=False).loss
