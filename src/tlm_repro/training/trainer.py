"""Pretraining of one run: the loop, and what must hold before it starts.

Resumable state is weights, optimiser, step and random generators; the data have none, since `Batches.batch(step)` is a
pure function. So a run that is killed and restarted continues exactly at its last checkpoint.
"""

import contextlib
import functools
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn

from tlm_repro.architectures.accounting import training_flops
from tlm_repro.artifacts.lock import exclusive
from tlm_repro.data.batches import Batches
from tlm_repro.data.shards import TokenData
from tlm_repro.devices import arithmetic_of, device_name, utilisation
from tlm_repro.errors import CheckpointError, DivergenceError, InterruptedRun
from tlm_repro.evaluation.validation import validation_loss
from tlm_repro.records.attempt import ATTEMPT
from tlm_repro.records.metrics import METRICS, MetricsRow
from tlm_repro.spec.execution import Execution
from tlm_repro.spec.run import RunSpec
from tlm_repro.training import compilation, divergence, optimizers, product, slurm, trackers
from tlm_repro.training.attempt import this_attempt
from tlm_repro.training.checkpoint import Checkpoints, Snapshot, random_state, set_random_state
from tlm_repro.training.metrics import Recorder
from tlm_repro.training.prefetch import Prefetch
from tlm_repro.training.preparation import check, initial_model, on_main, prepared_accelerator
from tlm_repro.training.saving import Saver
from tlm_repro.training.signals import StopSignals


def pretrain(
    spec: RunSpec, data: TokenData, *, folder: Path, checkpoints: Path, execution: Execution
) -> dict[str, Any]:
    """Trains the run to its end, from its last checkpoint if there is one, and writes its product to `folder`.

    A finished product stays as it is. Under `torchrun` or `accelerate launch` every process of the launch calls this.
    One launch at a time works on a run. Another one waits for it.

    Returns:
        The summary of the product's manifest (`product.summarise`), in every process.

    Raises:
        ConfigError: spec, data, execution and number of processes don't fit together.
        InterruptedRun: a signal came, or the job's time limit is near. The state is saved.
        DivergenceError: loss or gradient stopped being finite, now or in an earlier attempt. No later checkpoint was
            written.
        CheckpointError: a checkpoint can't be written, or none can be read.
    """
    trackers.check(execution.trackers)
    accelerator = prepared_accelerator(spec.training.precision)
    micro_batch = check(spec, data, processes=accelerator.num_processes, micro_batch=execution.micro_batch_sequences)
    main = accelerator.is_main_process
    with exclusive(checkpoints) if main else contextlib.nullcontext():
        summary = on_main(accelerator, functools.partial(finished_summary, spec, folder, checkpoints))
        if summary is None:
            if main:
                this_attempt(accelerator, spec.training.precision).write(checkpoints / ATTEMPT)
            trainer = Trainer(spec, data, accelerator, Checkpoints(checkpoints, spec.id), micro_batch, execution)
            trainer.resume()
            try:
                trainer.fit()
            except DivergenceError as error:
                if main:
                    divergence.record(checkpoints, trainer.step, error)
                raise
            summary = on_main(accelerator, functools.partial(trainer.write_product, folder))
    return summary


def finished_summary(spec: RunSpec, folder: Path, checkpoints: Path) -> dict[str, Any] | None:
    """The summary of a finished run, or None if there is training to do.

    Raises DivergenceError if an earlier attempt diverged.
    """
    summary = product.finished(spec, folder, checkpoints)
    if summary is None:
        divergence.raise_if_diverged(checkpoints)
    return summary


def validation_steps(steps: int, validations: int) -> frozenset[int]:
    """`validations` evenly spaced steps, at least one. The last step is always among them."""
    count = max(1, validations)
    return frozenset(max(1, round(steps * index / count)) for index in range(1, count + 1))


@dataclass(frozen=True)
class Update:
    """One step: mean loss of the global batch before it (nats), norm of its gradient before clipping.

    Both are None if one of them wasn't finite and the batch was skipped. Then no weight has changed.
    """

    loss: float | None
    grad_norm: float | None
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
        execution: Execution,
    ) -> None:
        training = spec.training
        self.spec, self.data, self.execution = spec, data, execution
        self.accelerator, self.checkpoints, self.micro_batch = accelerator, checkpoints, micro_batch
        self.model = initial_model(spec.model, training.seed)
        if execution.activation_checkpointing:
            self.model.checkpoint_activations()
        if execution.compile:
            compilation.compile_layers(self.model)
        self.wrapped: nn.Module = accelerator.prepare(self.model)  # on its device, under DDP where there are processes
        self.optimizer = optimizers.build(training.optimizer, self.model, accelerator.device)
        batches = Batches(
            data.train,
            sequence_length=training.sequence_length,
            batch_sequences=training.batch_sequences,
            seed=training.seed,
        )
        rank, processes = accelerator.process_index, accelerator.num_processes
        share = functools.partial(batches.batch, rank=rank, world_size=processes)
        self.batches = Prefetch(share, steps=training.steps, device=accelerator.device)
        self.saver = Saver(checkpoints)
        self.utilisation = functools.partial(
            utilisation,
            flops_per_token=training_flops(spec.model, training.tokens) / training.tokens,
            device=device_name(accelerator.device),
            processes=processes,
            arithmetic=arithmetic_of(training.precision),
        )
        self.step = 0  # optimiser steps taken, or skipped
        self.skipped = 0
        self.seconds = 0.0  # training time of all attempts, up to the last checkpoint
        self.device_seconds = 0.0  # the same, times the devices of each attempt
        self._saved_at = time.monotonic()
        left = slurm.time_left() if accelerator.is_main_process else None
        self._job_end = None if left is None else time.monotonic() + left

    def resume(self) -> None:
        """Restores the newest usable checkpoint, if there is one. The main process chooses it."""
        checkpoint = on_main(self.accelerator, self.checkpoints.latest)
        if checkpoint is None:
            return
        checkpoint.restore(self.model, self.optimizer)
        rank, extra = self.accelerator.process_index, checkpoint.extra
        if rank < len(checkpoint.rng):  # there may be more processes than before
            set_random_state(checkpoint.rng[rank])
        self.step, self.seconds, self.skipped = checkpoint.step, extra["seconds"], extra.get("skipped", 0)
        self.device_seconds = extra.get("device_seconds", self.seconds * self.accelerator.num_processes)
        if self.accelerator.is_main_process:
            print(f"{self.spec.id} resumes after step {self.step} from {checkpoint.folder}", file=sys.stderr)

    def recorder(self) -> Recorder:
        """Writes the rows of this process. Only the main process has a file and trackers."""
        execution, own_trackers = self.execution, list[Any]()
        start = functools.partial(trackers.start, execution.trackers, self.spec, execution.tracking, step=self.step)
        on_main(self.accelerator, lambda: own_trackers.extend(start()))
        return Recorder(
            self.checkpoints.folder / METRICS,
            step=self.step,
            steps=self.spec.training.steps,
            seconds=execution.log_seconds,
            main=self.accelerator.is_main_process,
            trackers=own_trackers,
        )

    def fit(self) -> None:
        """Trains up to the last step. Its checkpoint is on disk afterwards."""
        steps = self.spec.training.steps
        validated = validation_steps(steps, self.execution.validations)
        with StopSignals() as signals, contextlib.closing(self.batches), self.saver, self.recorder() as recorder:
            while self.step < steps:
                start = time.perf_counter()
                row = self.row(self.update(), start)
                if self.step in validated:
                    row["validation_loss"] = self.validate()
                recorder.add(MetricsRow.create(row))
                overdue = time.monotonic() - self._saved_at >= self.execution.checkpoint_seconds
                stopping = signals.received is not None or self.near_time_limit
                stop, due, failed = self.any_process(stopping, overdue, self.saver.failed)
                if failed:
                    self.saver.finish()
                    raise CheckpointError("the main process could not write a checkpoint: read its message")
                last = self.step == steps
                if stop or due or last:
                    recorder.sync()
                    self.save(wait=stop or last)
                if stop and not last:
                    name = signals.received.name if signals.received else "a signal in another process"
                    reason = "the job's time limit" if self.near_time_limit else name
                    raise InterruptedRun(
                        f"stopped by {reason} after step {self.step} of {steps}; the next attempt resumes "
                        f"from {self.checkpoints.last_saved()}"
                    )

    def row(self, update: Update, start: float) -> dict[str, Any]:
        """The row of `metrics.jsonl` of the latest step, which began when `time.perf_counter` gave `start`."""
        tokens = self.spec.training.batch_tokens
        speed = round(tokens / (time.perf_counter() - start), 1)
        row: dict[str, Any] = {
            "step": self.step,
            "tokens": self.step * tokens,
            "loss": update.loss,
            "learning_rate": update.learning_rate,
            "grad_norm": update.grad_norm,
            "tokens_per_second": speed,
        }
        if (share := self.utilisation(tokens_per_second=speed).value) is not None:
            row["mfu"] = round(share, 4)
        if update.loss is None:
            row["skipped"] = True
        return row

    @property
    def near_time_limit(self) -> bool:
        """Whether the job's time limit leaves just enough time to save."""
        needed = max(self.execution.stop_before_seconds, 3 * self.saver.slowest)
        return self._job_end is not None and time.monotonic() + needed >= self._job_end

    def update(self) -> Update:
        """Takes the next optimiser step, on the mean loss over the global batch.

        Raises DivergenceError, with the weights unchanged, if the loss or its gradient isn't finite and no further
        batch may be skipped.
        """
        training, accelerator = self.spec.training, self.accelerator
        parts = self.batches.take(self.step).split(self.micro_batch)
        total = torch.zeros((), device=accelerator.device)
        for index, part in enumerate(parts):
            last = index == len(parts) - 1  # the processes exchange gradients once a step
            with contextlib.nullcontext() if last else accelerator.no_sync(self.wrapped):
                loss = mean_loss(self.wrapped, part) / len(parts)
                accelerator.backward(loss)
            total += loss.detach()
        norm = accelerator.clip_grad_norm_(self.model.parameters(), training.clip_norm)
        loss_value, norm_value = accelerator.reduce(total, "mean").item(), float(norm)
        finite = math.isfinite(loss_value) and math.isfinite(norm_value)
        if not finite:
            self.skip(f"step {self.step + 1}: the loss is {loss_value}, the gradient's norm {norm_value}")
        rate = training.learning_rate.rate(self.step + 1, training.steps)
        self.optimizer.take_step(self.step + 1, rate)
        self.step += 1
        return Update(loss_value, norm_value, rate) if finite else Update(None, None, rate)

    def skip(self, problem: str) -> None:
        """Clears the gradients, so that the step changes nothing. Raises DivergenceError if no batch may be skipped.

        Tensors with an update period of several steps count such a gradient as zero.
        """
        allowed = self.spec.training.skip_nonfinite
        if self.skipped == allowed:
            raise self.diverged(f"{problem}, after {allowed} skipped batches" if allowed else problem)
        self.skipped += 1
        self.optimizer.zero_grad()
        if self.accelerator.is_main_process:
            print(f"warning: {problem}; skipped batch {self.skipped} of at most {allowed}", file=sys.stderr)

    def check_weights(self) -> None:
        """Raises DivergenceError if a weight isn't finite, though every gradient was."""
        if not all(bool(parameter.isfinite().all()) for parameter in self.model.parameters()):
            raise self.diverged(f"step {self.step}: weights are not finite")

    def diverged(self, problem: str) -> DivergenceError:
        on_main(self.accelerator, self.saver.finish)  # so that the message names the newest checkpoint
        return DivergenceError(
            f"{problem}; the last good checkpoint is {self.checkpoints.last_saved()}: lower learning_rate.peak or "
            "lengthen the warm-up"
        )

    def validate(self) -> float | None:
        """Loss on the held-out split at the precision of training, in the main process; None in the others."""
        self.check_weights()
        if not self.accelerator.is_main_process:
            return None
        length = self.spec.training.sequence_length
        with compilation.uncompiled() if self.execution.compile else contextlib.nullcontext():
            result = validation_loss(
                self.model,
                self.data.validation,
                sequence_length=length,
                limit=max(length, self.execution.validation_tokens),
                batch_sequences=self.micro_batch,
            )
        return result.loss

    def any_process(self, *flags: bool) -> list[bool]:
        """Logical OR of each flag over all processes, so that all of them act in the same step."""
        own = torch.tensor(flags, dtype=torch.float32, device=self.accelerator.device)
        return [count > 0 for count in self.accelerator.reduce(own, "sum").tolist()]

    def save(self, *, wait: bool) -> None:
        """Starts writing a checkpoint in the main process. `wait` blocks until it is on disk.

        It holds the random generators of all processes. Raises CheckpointError, in every process, if this checkpoint or
        the one before can't be written.
        """
        self.check_weights()
        generators = gather_object([random_state()])
        now = time.monotonic()
        self.seconds += now - self._saved_at
        self.device_seconds += (now - self._saved_at) * self.accelerator.num_processes
        self._saved_at = now
        on_main(self.accelerator, functools.partial(self._save, generators, wait))

    def _save(self, generators: list[dict[str, str]], wait: bool) -> None:
        self.saver.finish()
        extra: dict[str, Any] = {"seconds": self.seconds, "device_seconds": self.device_seconds}
        if self.skipped:
            extra["skipped"] = self.skipped
        self.saver.begin(Snapshot.of(self.step, self.model, self.optimizer, generators, extra))
        if wait:
            self.saver.finish()

    def write_product(self, folder: Path) -> dict[str, Any]:
        """Writes the finished run. Only the main process calls this, after the last step."""
        device = self.accelerator.device
        name = device_name(device)
        times = {"seconds": self.seconds, "device_seconds": self.device_seconds}
        summary = product.write(self.spec, self.data, self.model, folder, self.checkpoints, device=name, **times)
        self.checkpoints.clear(keep=1 if self.execution.keep_checkpoints else 0)
        return summary


def mean_loss(model: nn.Module, batch: Tensor) -> Tensor:
    """Mean next-token cross-entropy, nats. batch: (sequences, time + 1), the last token of each only a target."""
    return model(input_ids=batch[:, :-1], shift_labels=batch[:, 1:]).loss
