"""The learning rate as a pure function of the step: nothing to save, nothing to resume."""

import math


def learning_rate(step: int, *, steps: int, warmup_steps: int, peak: float, final_ratio: float) -> float:
    """The rate of update `step`, counted from 1 to `steps` (paper section 5: cosine annealing; warm-up ours).

    Linear from peak / warmup_steps at step 1 to `peak` at step `warmup_steps`, then half a cosine down to
    peak × final_ratio at step `steps`.

    Raises:
        ValueError: `step` isn't in 1…steps.
    """
    if not 1 <= step <= steps:
        raise ValueError(f"step {step} is outside 1…{steps}")
    if step <= warmup_steps:
        return peak * step / warmup_steps
    progress = (step - warmup_steps) / (steps - warmup_steps)
    return peak * (final_ratio + (1 - final_ratio) * (1 + math.cos(math.pi * progress)) / 2)
