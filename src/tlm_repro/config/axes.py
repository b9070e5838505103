"""The axes of each experiment: which allocations, scales, architectures and seeds it is a grid of."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tlm_repro.config.experiments import AllocationConfig, MainConfig, SweepConfig
from tlm_repro.config.schema import Config


def sweep_allocations(sweep: SweepConfig) -> dict[str, AllocationConfig]:
    """Label → allocation of every cell of Table 1, the uniform baseline first."""
    cells = {"uniform": AllocationConfig(schedule="uniform")}
    for start, end in sweep.ratios:
        for schedule in sweep.schedules:
            allocation = AllocationConfig.model_validate({"schedule": schedule, "start": start, "end": end})
            cells[f"{schedule}-{start}-{end}"] = allocation
    return cells


@dataclass(frozen=True)
class Axes:
    """What an experiment is a grid of. `allocations` holds those that the configuration knows, by label."""

    experiment: str
    allocations: dict[str, AllocationConfig]
    scales: tuple[str, ...]
    architectures: tuple[str, ...]
    seeds: tuple[int, ...]


def experiment_axes(config: Config) -> Iterator[Axes]:
    """The axes of each experiment that is asked for."""
    experiments = config.experiments

    def axes(name: str, allocations: dict[str, AllocationConfig], experiment: Any) -> Axes:
        several = isinstance(experiment, MainConfig)
        return Axes(
            name,
            allocations,
            experiment.scales if several else (experiment.scale,),
            experiment.architectures if several else (experiment.architecture,),
            config.seeds if experiment.seeds is None else experiment.seeds,
        )

    def known(names: tuple[str, ...]) -> dict[str, AllocationConfig]:
        return {name: config.allocations[name] for name in names if name in config.allocations}

    if (motivation := experiments.motivation) is not None:
        yield axes("motivation", known(motivation.allocations), motivation)
    if (sweep := experiments.sweep) is not None:
        yield axes("sweep", sweep_allocations(sweep), sweep)
    if (main := experiments.main) is not None:
        yield axes("main", known(main.allocations), main)
    if (others := experiments.allocations) is not None:
        yield axes("allocations", known(others.allocations), others)
