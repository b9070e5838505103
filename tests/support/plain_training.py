"""Runs the long way: plain loops over whole batches, with unfused optimisers, clipping and schedule by hand."""

import math

import torch
from torch import nn

from tlm_repro.data.batches import Batches
from tlm_repro.data.shards import TokenData
from tlm_repro.spec.run import RunSpec
from tlm_repro.training.preparation import initial_model


def reference(spec: RunSpec, data: TokenData) -> tuple[nn.Module, list[float], list[float]]:
    """The run again, the long way: plain loop, unfused AdamW, whole batches, clipping and schedule by hand."""
    training = spec.training
    model = initial_model(spec.model, training.seed)
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    keys = training.optimizer
    groups = [{"params": matrices, "weight_decay": keys.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(keys.beta1, keys.beta2), eps=keys.eps, foreach=False)
    batches = Batches(
        data.train,
        sequence_length=training.sequence_length,
        batch_sequences=training.batch_sequences,
        seed=training.seed,
    )
    losses, norms = [], []
    for step in range(training.steps):
        batch = torch.from_numpy(batches.batch(step))
        log_probabilities = model(input_ids=batch[:, :-1]).logits.log_softmax(dim=-1)
        loss = -log_probabilities.gather(2, batch[:, 1:, None]).mean()
        optimizer.zero_grad()
        loss.backward()
        norm = math.sqrt(sum(float(parameter.grad.double().square().sum()) for parameter in model.parameters()))
        for parameter in model.parameters():
            parameter.grad *= min(1.0, training.clip_norm / norm)
        warm = training.learning_rate.warmup_steps(training.steps)
        fall = 0.5 + 0.5 * math.cos(math.pi * max(0, step + 1 - warm) / (training.steps - warm))
        final = training.learning_rate.final_ratio
        for group in optimizer.param_groups:
            group["lr"] = training.learning_rate.peak * min((step + 1) / warm, final + (1 - final) * fall)
        optimizer.step()
        losses.append(loss.item())
        norms.append(norm)
    return model, losses, norms


def by_hand(spec: RunSpec, data: TokenData, skipped: frozenset[int] = frozenset()) -> dict[str, torch.Tensor]:
    """The run with an optimiser for each tensor, which is fed the mean of its period's gradients, zero where skipped;
    a tensor of period 1 rests in a skipped step."""
    training = spec.training
    model = initial_model(spec.model, training.seed)
    tensors = dict(model.named_parameters())
    periods = {name: 2 ** int(name.split("levels.")[1][0]) if "levels." in name else 1 for name in tensors}
    optimizers = {
        name: torch.optim.AdamW(
            [tensor],
            betas=(training.optimizer.beta1, training.optimizer.beta2),
            eps=training.optimizer.eps,
            weight_decay=training.optimizer.weight_decay if tensor.ndim > 1 else 0.0,
            foreach=False,
        )
        for name, tensor in tensors.items()
    }
    batches = Batches(data.train, sequence_length=16, batch_sequences=8, seed=training.seed)
    held: dict[str, list[torch.Tensor]] = {name: [] for name in tensors}
    for step in range(1, training.steps + 1):
        batch = torch.from_numpy(batches.batch(step - 1))
        gradients = torch.autograd.grad(
            model(input_ids=batch[:, :-1], shift_labels=batch[:, 1:]).loss, list(tensors.values())
        )
        norm = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients))
        scale = 0.0 if step in skipped else min(1.0, training.clip_norm / norm)
        warm = training.learning_rate.warmup_steps(training.steps)
        fall = 0.5 + 0.5 * math.cos(math.pi * max(0, step - warm) / (training.steps - warm))
        final = training.learning_rate.final_ratio
        rate = training.learning_rate.peak * min(step / warm, final + (1 - final) * fall)
        for (name, tensor), gradient in zip(tensors.items(), gradients, strict=True):
            if periods[name] == 1 and step in skipped:
                continue
            held[name].append(gradient * scale)
            if step % periods[name] == 0:
                tensor.grad = torch.stack(held[name]).mean(dim=0)
                optimizers[name].param_groups[0]["lr"] = rate
                optimizers[name].step()
                held[name].clear()
    return {name: tensor.detach() for name, tensor in tensors.items()}
