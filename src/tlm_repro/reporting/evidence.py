"""What exhibits and claims are made from: the cells of a view, and the contents of the files that it names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tlm_repro.artifacts.files import read_json
from tlm_repro.errors import ArtifactError
from tlm_repro.records.evaluation import Evaluation, NeedleEvaluation
from tlm_repro.records.novelty import Novelty
from tlm_repro.records.view import Cell, ExperimentView, Shapes, View
from tlm_repro.reporting.results import Results, collect
from tlm_repro.spec.benchmarks import Benchmark


@dataclass(frozen=True)
class Evidence:
    """Measured results, and the experiments (by name) whose cells they fill."""

    results: Results
    views: Mapping[str, ExperimentView]
    novelty: Sequence[Novelty] = ()
    evaluations: Sequence[Evaluation] = ()  # what `results` was made from
    toy: bool = False
    shapes: Shapes | None = None
    benchmarks: Sequence[Benchmark] = ()  # beside the paper's

    @classmethod
    def load(cls, view: View) -> Evidence:
        """Raises ArtifactError, naming the file, for one that is missing, malformed or of another kind."""
        by_kind = files_by_kind(view.files)
        evaluations = {path: Evaluation.read(path) for path in sorted(by_kind["evaluation"])}
        return cls(
            results=collect(evaluations),
            views=view.by_experiment,
            novelty=[Novelty.read(path) for path in sorted(by_kind["novelty"])],
            evaluations=list(evaluations.values()),
            toy=view.toy,
            shapes=view.shapes,
            benchmarks=view.benchmarks,
        )

    @property
    def needles(self) -> list[NeedleEvaluation]:
        return [evaluation for evaluation in self.evaluations if isinstance(evaluation, NeedleEvaluation)]

    def restricted(
        self, experiments: Collection[str], suites: Collection[str], novelty: bool, fields: Mapping[str, str]
    ) -> Evidence:
        """What an exhibit that reads these is made from: all that its own view has, cells with `fields` alone."""
        views = {
            name: view.model_copy(update={"cells": tuple(cell for cell in view.cells if has_fields(cell, fields))})
            for name, view in self.views.items()
            if name in experiments
        }
        runs = {cell.run for view in views.values() for cell in view.cells}
        evaluations = [
            evaluation
            for evaluation in self.evaluations
            if evaluation.run and evaluation.run.id in runs and evaluation.suite in suites
        ]
        return replace(
            self,
            results=self.results.restricted(runs, suites),
            views=views,
            novelty=self.novelty if novelty else (),
            evaluations=evaluations,
        )


def has_fields(cell: Cell, fields: Mapping[str, str]) -> bool:
    """Whether a cell has these values."""
    return all(str(getattr(cell, field)) == value for field, value in fields.items())


def files_by_kind(paths: Sequence[Path]) -> dict[str, list[Path]]:
    """The evaluation and the novelty files among `paths`. Raises ArtifactError for a file of another kind."""
    kinds: dict[str, list[Path]] = {"evaluation": [], "novelty": []}
    for path in paths:
        content = read_json(path)
        kind = content.get("kind") if isinstance(content, dict) else None
        if kind not in kinds:
            raise ArtifactError(
                f"{path} is neither an evaluation nor a novelty file. Delete it and run its stage again"
            )
        kinds[kind].append(path)
    return kinds
