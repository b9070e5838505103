"""Pretraining of one run: the loop, and what must hold before it starts.

Resumable state is weights, optimiser, step and random generators; the data have none, since `Batches.batch(step)` is a
pure function. So a run that is killed and restarted goes on exactly where its last checkpoint was.
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
from tlm_repro.spec.run import RunSpec
from tlm_repro.training import compilation, divergence, optimizers, product, trackers
from tlm_repro.training import slurm as scheduler
from tlm_repro.training.attempt import Attempt
from tlm_repro.training.checkpoint import Checkpoints, Snapshot, random_state, set_random_state
from tlm_repro.training.metrics import METRICS, MFU, TIMING, Recorder
from tlm_repro.training.options import TrainerOptions
from tlm_repro.training.prefetch import Prefetch
from tlm_repro.training.preparation import check, initial_model, on_main, prepared_accelerator
from tlm_repro.training.saving import Saver
from tlm_repro.training.signals import StopSignals


def pretrain(
    spec: RunSpec, data: TokenData, *, folder: Path, checkpoints: Path, options: TrainerOptions
) -> dict[str, Any]:
    """Trains the run to its end, from its last checkpoint if there is one, and writes its product to `folder`.

    A finished product is left as it is. Under `torchrun` or `accelerate launch` every process of the launch calls this.
    One launch at a time works on a run; another waits for it.

    Returns:
        The summary of the product's manifest (`product.summarise`), in every process.

    Raises:
        ConfigError: spec, data, options and number of processes don't fit together.
        InterruptedRun: a signal came, or the job's time limit is near; the state is saved.
        DivergenceError: loss or gradient stopped being finite, now or in an earlier attempt; no checkpoint was written
            after that.
        CheckpointError: a checkpoint can't be written, or none can be read.
    """
    trackers.check(options.trackers)
    accelerator = prepared_accelerator(spec.training.precision)
    micro_batch = check(spec, data, processes=accelerator.num_processes, micro_batch=options.micro_batch_sequences)
    main = accelerator.is_main_process
    with exclusive(checkpoints) if main else contextlib.nullcontext():
        summary = on_main(accelerator, functools.partial(begun, spec, folder, checkpoints))
        if summary is None:
            if main:
                Attempt.here(accelerator, spec.training.precision).write(checkpoints)
            trainer = Trainer(spec, data, accelerator, Checkpoints(checkpoints, spec.id), micro_batch, options)
            trainer.resume()
            try:
                trainer.fit()
            except DivergenceError as error:
                if main:
                    divergence.record(checkpoints, trainer.step, error)
                raise
            summary = on_main(accelerator, functools.partial(trainer.write_product, folder))
    return summary


def begun(spec: RunSpec, folder: Path, checkpoints: Path) -> dict[str, Any] | None:
    """The summary of a finished run, None where there is something to do; an error where that would be in vain."""
    summary = product.finished(spec, folder, checkpoints)
    if summary is None:
        divergence.refuse_again(checkpoints)
    return summary


def validation_steps(steps: int, validations: int) -> frozenset[int]:
    """`validations` evenly spaced steps, the last one always among them."""
    wanted = max(1, validations)
    return frozenset(max(1, round(steps * index / wanted)) for index in range(1, wanted + 1))


@dataclass(frozen=True)
class Update:
    """One step of the schedule: mean loss of the global batch before it (nats), norm of its gradient before clipping.

    Both are None where one of them isn't finite and the batch was skipped: then no weight has changed.
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
        options: TrainerOptions,
    ) -> None:
        training = spec.training
        self.spec, self.data, self.options = spec, data, options
        self.accelerator, self.checkpoints, self.micro_batch = accelerator, checkpoints, micro_batch
        self.model = initial_model(spec.model, data, training.seed)
        if options.activation_checkpointing:
            # Nothing in a layer is random, so there is no generator to bring back for its second pass.
            self.model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
        if options.compile:
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
        self._saved = time.monotonic()
        left = scheduler.time_left() if accelerator.is_main_process else None
        self._end = None if left is None else time.monotonic() + left  # of the job, where the scheduler says so

    def resume(self) -> None:
        """Takes over the newest usable checkpoint, if there is any; the main process chooses it."""
        found = on_main(self.accelerator, self.checkpoints.latest)
        if found is None:
            return
        found.restore(self.model, self.optimizer)
        rank = self.accelerator.process_index
        if rank < len(found.rng):  # the number of processes may have grown since
            set_random_state(found.rng[rank])
        self.step, self.seconds, self.skipped = found.step, found.extra["seconds"], found.extra.get("skipped", 0)
        self.device_seconds = found.extra.get("device_seconds", self.seconds * self.accelerator.num_processes)
        if self.accelerator.is_main_process:
            print(f"{self.spec.id} resumes after step {self.step} from {found.folder}", file=sys.stderr)

    def recorder(self) -> Recorder:
        """Where the rows of this process go; only the main one has a file and trackers."""
        options, started = self.options, list[Any]()
        begin = functools.partial(trackers.start, options.trackers, self.spec, options.tracking, step=self.step)
        on_main(self.accelerator, lambda: started.extend(begin()))
        return Recorder(
            self.checkpoints.folder / METRICS,
            step=self.step,
            steps=self.spec.training.steps,
            seconds=options.log_seconds,
            main=self.accelerator.is_main_process,
            trackers=started,
        )

    def fit(self) -> None:
        """Trains up to the last step; a checkpoint of it is on disk afterwards."""
        steps = self.spec.training.steps
        validated = validation_steps(steps, self.options.validations)
        with StopSignals() as signals, contextlib.closing(self.batches), self.saver, self.recorder() as recorder:
            while self.step < steps:
                began = time.perf_counter()
                row = self.row(self.update(), began)
                if self.step in validated:
                    row["validation_loss"] = self.validate()
                recorder.add(row)
                overdue = time.monotonic() - self._saved >= self.options.checkpoint_seconds
                stop, due, failed = self.anywhere(signals.received is not None or self.late, overdue, self.saver.failed)
                if failed:
                    self.saver.finish()
                    raise CheckpointError("the main process could not write a checkpoint: see its message")
                last = self.step == steps
                if stop or due or last:
                    recorder.sync()
                    self.save(wait=stop or last)
                if stop and not last:
                    name = signals.received.name if signals.received else "a signal in another process"
                    reason = "the job's time limit" if self.late else name
                    raise InterruptedRun(
                        f"stopped by {reason} after step {self.step} of {steps}; the next attempt resumes "
                        f"from {self.checkpoints.last_saved()}"
                    )

    def row(self, update: Update, began: float) -> dict[str, Any]:
        """The row of `metrics.jsonl` of the step that was just taken; `began` as `time.perf_counter` gave it."""
        tokens = self.spec.training.batch_tokens
        speed = round(tokens / (time.perf_counter() - began), 1)
        row: dict[str, Any] = {
            "step": self.step,
            "tokens": self.step * tokens,
            "loss": update.loss,
            "learning_rate": update.learning_rate,
            "grad_norm": update.grad_norm,
            TIMING: speed,
        }
        if (share := self.utilisation(tokens_per_second=speed).value) is not None:
            row[MFU] = round(share, 4)
        if update.loss is None:
            row["skipped"] = True
        return row

    @property
    def late(self) -> bool:
        """Whether it's time to save and stop, so that the scheduler doesn't end the job in the middle of it."""
        needed = max(self.options.stop_before_seconds, 3 * self.saver.slowest)
        return self._end is not None and time.monotonic() + needed >= self._end

    def update(self) -> Update:
        """Takes the next optimiser step, on the mean loss over the global batch.

        Raises DivergenceError, the weights untouched, when the loss or its gradient isn't finite and the run may skip
        no more batches.
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

    def skip(self, seen: str) -> None:
        """Drops the gradients at hand, so that the step changes nothing. Raises DivergenceError if none may be skipped.

        Tensors that take a step every few steps count such a gradient as zero.
        """
        allowed = self.spec.training.skip_nonfinite
        if self.skipped == allowed:
            raise self.diverged(f"{seen}, after {allowed} skipped batches" if allowed else seen)
        self.skipped += 1
        self.optimizer.zero_grad()
        if self.accelerator.is_main_process:
            print(f"warning: {seen}; batch {self.skipped} of at most {allowed} that are skipped", file=sys.stderr)

    def check_weights(self) -> None:
        """Raises DivergenceError if a finite gradient has still led to weights that aren't."""
        if not all(bool(parameter.isfinite().all()) for parameter in self.model.parameters()):
            raise self.diverged(f"step {self.step}: weights are not finite")

    def diverged(self, seen: str) -> DivergenceError:
        on_main(self.accelerator, self.saver.finish)  # so that the message names what is there
        return DivergenceError(
            f"{seen}; the last good checkpoint is {self.checkpoints.last_saved()}: lower learning_rate.peak or "
            "lengthen the warm-up"
        )

    def validate(self) -> float | None:
        """Loss on the held-out split at the precision of training, in the main process alone: the others' is None."""
        self.check_weights()
        if not self.accelerator.is_main_process:
            return None
        length = self.spec.training.sequence_length
        with compilation.uncompiled() if self.options.compile else contextlib.nullcontext():
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

    def save(self, *, wait: bool) -> None:
        """Begins a checkpoint in the main process, with the random generators of all; `wait`: until it is on disk.

        Raises CheckpointError, in every process, when this one or the one before can't be written.
        """
        self.check_weights()
        generators = gather_object([random_state()])
        now = time.monotonic()
        self.seconds += now - self._saved
        self.device_seconds += (now - self._saved) * self.accelerator.num_processes
        self._saved = now
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
        """Called in the main process, when all steps are taken."""
        device = self.accelerator.device
        name = device_name(device)
        times = {"seconds": self.seconds, "device_seconds": self.device_seconds}
        summary = product.write(self.spec, self.data, self.model, folder, self.checkpoints, device=name, **times)
        self.checkpoints.clear(keep=1 if self.options.keep_checkpoints else 0)
        return summary


def mean_loss(model: nn.Module, batch: Tensor) -> Tensor:
    """Mean next-token cross-entropy, nats. batch: (sequences, time + 1), the last token of each only a target."""
    return model(input_ids=batch[:, :-1], shift_labels=batch[:, 1:], use_cache=False).loss
