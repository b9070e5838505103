"""The files that say what a table or figure shows, as `tlm_repro.study.views` makes them and the commands read them."""

from pathlib import Path
from typing import Any, Literal

from tlm_repro.errors import ConfigError
from tlm_repro.reporting.results import Part, View


class Shapes(Part):
    """What Figure 3 draws: L, D, and the per-layer widths of each allocation."""

    layers: int
    width: int
    widths: dict[str, tuple[int, ...]]


class Views(Part):
    """`results/views/<name>-<fingerprint>.json`: experiments, and the evaluation and novelty files to read."""

    kind: Literal["view"]
    config: str
    toy: bool
    experiments: tuple[View, ...]
    files: tuple[Path, ...]
    shapes: Shapes | None = None  # Figure 3's alone
    settings: dict[str, Any] | None = None  # the report's alone: the whole configuration

    @property
    def by_experiment(self) -> dict[str, View]:
        return {view.experiment: view for view in self.experiments}

    @property
    def single(self) -> View:
        """Raises ConfigError unless it is of one experiment."""
        if len(self.experiments) != 1:
            seen = ", ".join(self.by_experiment) or "none"
            raise ConfigError(
                f"--view: one experiment is expected, the file has {seen}: pass that of this table or figure"
            )
        return self.experiments[0]

    def figure_3(self) -> Shapes:
        """Raises ConfigError where it has no widths."""
        if self.shapes is None:
            raise ConfigError("--view: the file has no 'shapes': pass results/views/allocation-*.json")
        return self.shapes

    def configuration(self) -> dict[str, Any]:
        """Raises ConfigError where it has none."""
        if self.settings is None:
            raise ConfigError("--view: the file has no 'settings': pass results/views/report-*.json")
        return self.settings
