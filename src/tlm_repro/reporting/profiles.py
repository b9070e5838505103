"""What a novelty file says about depth: correlations with their intervals, and the last third of the layers."""

import math
from collections.abc import Iterator, Sequence
from typing import Literal

from tlm_repro.novelty.late_layers import late_layers
from tlm_repro.records.novelty import Mean, Novelty
from tlm_repro.reporting.lazy import np
from tlm_repro.statistics.estimates import Estimate, normal_interval, quantile
from tlm_repro.statistics.intervals import COVERAGE

Profile = Literal["block", "mlp", "norm_ratio"]
RHO = {"mlp": r"$\rho_{\mathrm{MLP}}$", "block": r"$\rho_{\mathrm{block}}$"}
SYMBOLS = {**RHO, "norm_ratio": r"$\|\mathrm{MLP}\|/\|h\|$"}
LABELS = {**{kind: f"{rho}, mean cosine" for kind, rho in RHO.items()}, "norm_ratio": f"{SYMBOLS['norm_ratio']}, mean"}


def correlations(measured: Novelty) -> tuple[Estimate | None, Estimate | None, Estimate | None]:
    """(r_block, r_MLP, r_MLP − r_block), None where one isn't defined.

    Intervals are the file's own, from resampled blocks of tokens. A file without them has those of
    `profile_correlation`, which take all cosines as independent.
    """
    block = profile_correlation(measured.block, measured.correlation.block.r)
    mlp = profile_correlation(measured.mlp, measured.correlation.mlp.r)
    difference = None
    if block is not None and mlp is not None:
        difference = normal_interval(mlp.mean - block.mean, math.hypot(mlp.stderr, block.stderr), 1, "tokens")
    own = measured.intervals
    if own is None:
        return block, mlp, difference
    return resampled(block, own.block), resampled(mlp, own.mlp), resampled(difference, own.difference)


def resampled(estimate: Estimate | None, bounds: tuple[float, float] | None) -> Estimate | None:
    """The estimate with these bounds where there are any; its standard error is what a normal interval as wide has."""
    if estimate is None or bounds is None:
        return estimate
    half = (bounds[1] - bounds[0]) / 2
    stderr = half / quantile(COVERAGE)
    return Estimate(estimate.mean, stderr, half, estimate.seeds, estimate.basis, bounds)


def late(measured: Novelty, profile: Profile) -> tuple[float, float] | None:
    """(mean, standard error) of a profile over `late_layers` that have it; None where none has.

    All layers read the same tokens, so their errors are taken as going together: the mean's is the mean of theirs,
    which is the most that it can be.
    """
    values: Sequence[Mean | None] = getattr(measured, profile) or ()
    chosen = [value for layer in late_layers(len(values)) if (value := values[layer]) is not None]
    if not chosen:
        return None
    errors = [math.nan if value.stderr is None else value.stderr for value in chosen]
    return float(np.mean([value.mean for value in chosen])), float(np.mean(errors))


def depth_correlation(depth: Sequence[float], profile: Sequence[float], errors: Sequence[float]) -> tuple[float, float]:
    """Pearson r of a profile over layers with their depth, and the standard error that the profile's errors give it.

    The layers are all that the model has, not a sample, so only the noise of the cosines counts:
    ∂r/∂m = x/(‖x‖‖m‖) − r·m/‖m‖², with x and m centred.
    """
    position = np.asarray(depth) - np.mean(depth)
    centred = np.asarray(profile) - np.mean(profile)
    norms = float(np.linalg.norm(position)), float(np.linalg.norm(centred))
    r = float(position @ centred) / (norms[0] * norms[1])
    gradient = position / (norms[0] * norms[1]) - r * centred / norms[1] ** 2
    return r, float(np.sqrt(np.sum((gradient * np.asarray(errors)) ** 2)))


def profile_correlation(profile: Sequence[Mean | None], r: float | None) -> Estimate | None:
    """Pearson r with depth of the interior layers that have the module; None when the file gives no r."""
    layers = [(index, layer) for index, layer in enumerate(profile) if layer and 0 < index < len(profile) - 1]
    if r is None or len(layers) < 3:
        return None
    depth, means = [float(index) for index, _ in layers], [layer.mean for _, layer in layers]
    errors = [math.nan if layer.stderr is None else layer.stderr for _, layer in layers]
    return normal_interval(r, depth_correlation(depth, means, errors)[1], 1, "tokens")


def averages(items: Sequence[Novelty], kind: str) -> Iterator[tuple[float, float]]:
    """(mean, standard error) a layer: over seeds, or of the one model over its tokens. NaN where it has no MLP."""
    for layer in zip(*(getattr(item, kind) for item in items), strict=True):
        cosines = [cosine for cosine in layer if cosine is not None]
        if not cosines:
            yield math.nan, math.nan
        elif len(cosines) == 1:
            yield cosines[0].mean, math.nan if cosines[0].stderr is None else cosines[0].stderr
        else:
            means = np.array([cosine.mean for cosine in cosines])
            yield float(means.mean()), float(means.std(ddof=1) / math.sqrt(len(means)))
