"""An evaluation file: one model's scores in one suite."""

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer

from tlm_repro.records.base import (
    FINGERPRINTED,
    ROUNDING,
    RUN_FOLDER,
    Count,
    Error,
    Hash,
    Loss,
    Mismatch,
    Positive,
    Record,
    RunIdentity,
    Seconds,
    Share,
    canonical,
    check_equal,
    check_fingerprint,
    check_increasing,
)
from tlm_repro.spec.base import Spec
from tlm_repro.spec.benchmarks import metric_scale
from tlm_repro.spec.evaluation import NeedleSpec, RopeScaling, ValidationSpec, ZeroShotSpec
from tlm_repro.spec.metrics import ACCURACIES, MAIN_METRICS, NEEDLES
from tlm_repro.statistics.blocks import Blocks
from tlm_repro.statistics.intervals import wilson

BLOCKS_MISS = 1e-6  # nats; the losses of blocks are rounded


class Facts(Record):
    """Exact facts of a trained model; FLOPs of one forward pass of one sequence, and of the whole training.

    They follow from the run's spec, which isn't in the file: what is checked is that they agree with each other.
    """

    parameters: Positive
    forward_flops: Positive
    training_flops: Positive
    tokens: Positive
    layers: Positive
    model_width: Positive
    intermediate_sizes: tuple[Count, ...]

    def check(self) -> None:
        check_equal("intermediate_sizes", len(self.intermediate_sizes), self.layers, "Widths, one a layer:")
        # Three forward passes over all tokens, in sequences of a whole number of them.
        passes = 3 * self.forward_flops * self.tokens
        length = max(1, round(passes / self.training_flops))
        if passes // length != self.training_flops:
            raise Mismatch(
                "training_flops", self.training_flops, "Three forward passes over the tokens take another number."
            )


class ExternalIdentity(Record):
    """A model that was trained elsewhere: a commit of the hub, or the hash of local files."""

    name: str = Field(min_length=1)
    source: Literal["hub", "folder", "package"]
    path: str = Field(min_length=1)
    revision: str | None = None
    hash: Hash | None = None

    def check(self) -> None:
        if (self.source == "hub") != (self.revision is not None) or (self.source == "hub") != (self.hash is None):
            raise Mismatch("source", self.source, "A model of the hub has a revision, any other a hash.")


class Metric(Record):
    """A score over `items` items. `stderr` is its standard error with items as the sampling unit; None for one item."""

    value: float
    stderr: Error | None
    items: Positive


Scores = dict[str, Metric]


class Evaluation(Record):
    """`results/evaluations/<run>/<suite>-<fingerprint>.json`, of a run with its facts or of an external model.

    Each suite has a subclass with its own `spec` and `details`.
    """

    schema_: Literal[1] = Field(alias="schema")
    kind: Literal["evaluation"]
    suite: str
    run: RunIdentity | None = None
    model: Facts | None = None
    external: ExternalIdentity | None = None
    spec: Spec
    metrics: Scores
    details: Record
    versions: dict[str, str]
    device: str
    wall_time_s: Seconds

    @classmethod
    def variant(cls, values: Any) -> type[Record]:
        suite = values.get("suite") if isinstance(values, Mapping) else None
        return EVALUATIONS.get(str(suite), AnySuite) if cls is Evaluation else cls

    def check(self) -> None:
        if (self.run is None) != (self.model is None) or (self.run is None) == (self.external is None):
            raise Mismatch("run", self.run and self.run.id, "run and model are expected, or external in their place.")

    def check_name(self, path: Path) -> None:
        name = FINGERPRINTED.match(path.name)
        if name:
            check_equal("suite", self.suite, name["name"], "The file's name has the suite")
        check_fingerprint(path, self.spec)
        folder, own = path.absolute().parent.name, self.run.id if self.run else None
        if folder != own and RUN_FOLDER.search(folder):
            raise Mismatch("run.id", own, f"The file's folder is of the run '{folder}'.")


class LossPoints(Record):
    """Losses (nats/token) over training tokens."""

    tokens: tuple[Positive, ...]
    loss: tuple[Loss, ...]

    def check(self) -> None:
        check_equal("loss", len(self.loss), len(self.tokens), "Losses, one a point:")
        check_increasing("tokens", self.tokens)


class TrainingCurve(Record):
    """Training losses, thinned: `step` and `tokens` where each mean of steps ends; the held-out losses on the way."""

    step: tuple[Positive, ...]
    tokens: tuple[Positive, ...]
    loss: tuple[Loss, ...]
    validation: LossPoints

    def check(self) -> None:
        for name in ("tokens", "loss"):
            check_equal(name, len(getattr(self, name)), len(self.step), "Entries, one a point:")
        check_increasing("step", self.step)
        for place, (step, tokens) in enumerate(zip(self.step, self.tokens, strict=True)):
            if tokens * self.step[0] != step * self.tokens[0]:
                raise Mismatch(f"tokens.{place}", tokens, "Every step takes the same number of tokens.")


class TrainingCost(Record):
    """Of all attempts; `device` is that of the last. `device_seconds` counts each attempt's time times its devices."""

    device: str
    wall_time_s: Seconds
    device_seconds: Seconds | None = None


class ValidationDetails(Record):
    """How a held-out loss was measured, and the run's training."""

    windows: Positive
    batch_size: Positive
    blocks: Annotated[Blocks, PlainSerializer(Blocks.columns)] | None = None
    curve: TrainingCurve | None = None
    training: TrainingCost | None = None


class ValidationEvaluation(Evaluation):
    suite: Literal["validation"]
    spec: Annotated[ValidationSpec, canonical]
    details: ValidationDetails

    def check(self) -> None:
        super().check()
        check_names("metrics", self.metrics, {"val_loss", "val_ppl"})
        loss, perplexity, details = self.metrics["val_loss"], self.metrics["val_ppl"], self.details
        check_equal("metrics.val_ppl.value", perplexity.value, math.exp(loss.value), "exp(val_loss) is")
        error = None if loss.stderr is None else perplexity.value * loss.stderr
        check_equal("metrics.val_ppl.stderr", perplexity.stderr, error, "val_ppl × the standard error of val_loss is")
        for name, metric in self.metrics.items():
            expected = details.windows * self.spec.sequence_length
            check_equal(f"metrics.{name}.items", metric.items, expected, "Windows × sequence_length is")
        if self.spec.tokens is not None and loss.items > self.spec.tokens:
            raise Mismatch("metrics.val_loss.items", loss.items, f"The spec asks for {self.spec.tokens} at most.")
        if details.blocks:
            self.check_blocks(details.blocks, loss)
        if details.curve and self.model:
            self.check_curve(details.curve, self.model.tokens)

    def check_blocks(self, blocks: Blocks, loss: Metric) -> None:
        key = "details.blocks"
        check_equal(f"{key}.sequence_length", blocks.sequence_length, self.spec.sequence_length, "The spec has")
        check_equal(f"{key}.windows", sum(blocks.windows), self.details.windows, "Their sum is details.windows,")
        if max(blocks.windows) - min(blocks.windows) > 1 or list(blocks.windows) != sorted(blocks.windows)[::-1]:
            raise Mismatch(f"{key}.windows", blocks.windows, "Sizes differ by one at most, the larger ones first.")
        if abs(blocks.mean - loss.value) >= BLOCKS_MISS:
            raise Mismatch(f"{key}.loss", blocks.mean, f"Their mean is metrics.val_loss.value, {loss.value}.")
        error = blocks.stderr
        if (error is None) != (loss.stderr is None) or abs((error or 0) - (loss.stderr or 0)) >= BLOCKS_MISS:
            raise Mismatch("metrics.val_loss.stderr", loss.stderr, f"That of details.blocks is {error}.")

    def check_curve(self, curve: TrainingCurve, tokens: int) -> None:
        for name, points in {"tokens": curve.tokens, "validation.tokens": curve.validation.tokens}.items():
            if points and points[-1] > tokens:
                raise Mismatch(f"details.curve.{name}", points[-1], f"The run was trained on {tokens} tokens.")
            if curve.step and any(point * curve.step[0] % curve.tokens[0] for point in points):
                raise Mismatch(f"details.curve.{name}", points, "Points stand at whole steps.")


class BosPolicy(Record):
    """How the beginning of a text is marked."""

    add_bos: bool
    prefix_token: str | None
    prefix_token_id: Count


class Work(Record):
    """What the requests of a task took; `tokens_shared` and `padding_waste` are shares of tokens."""

    requests: Count
    requests_per_s: Annotated[float, Field(ge=0)] | None
    tokens_shared: float = Field(le=1)
    padding_waste: float = Field(le=1)
    batch_size: Positive


class ZeroShotDetails(Record):
    """Where the items of each task come from, and how they were put to the model."""

    lm_eval: str
    task_versions: dict[str, Any]
    source: str
    items_version: int | None
    data: dict[str, dict[str, Any]]
    max_length: Positive
    batch_size: Positive
    batch_tokens: Positive
    tokenizer: Hash
    bos_policy: BosPolicy
    work: dict[str, Work]


class ZeroShotEvaluation(Evaluation):
    suite: Literal["zero_shot"]
    spec: Annotated[ZeroShotSpec, canonical]
    details: ZeroShotDetails

    def check(self) -> None:
        super().check()
        columns = {task: self.columns(task) for task in self.spec.all_tasks}
        check_names("metrics", self.metrics, {name for part in columns.values() for name in part})
        for part in columns.values():
            items = self.metrics[next(iter(part))].items
            for name, scale in part.items():
                metric = self.metrics[name]
                check_equal(f"metrics.{name}.items", metric.items, items, "Items of its task:")
                if self.spec.limit is not None and metric.items > self.spec.limit:
                    raise Mismatch(f"metrics.{name}.items", metric.items, f"The spec's limit is {self.spec.limit}.")
                check_range(f"metrics.{name}", metric, scale)
                if name in MAIN_METRICS:
                    check_error(f"metrics.{name}", metric, binary=name in ACCURACIES)
        details, demo = self.details, self.spec.source == "demo"
        check_equal("details.source", details.source, self.spec.source, "The spec has")
        check_equal("details.max_length", details.max_length, self.spec.max_length, "The spec has")
        version = self.spec.items_version if demo else None
        check_equal("details.items_version", details.items_version, version, "By the spec it is")
        check_equal("details.lm_eval", details.lm_eval, self.versions.get("lm-eval"), "versions has")
        for key, parts in {"task_versions": details.task_versions, "work": details.work}.items():
            check_names(f"details.{key}", parts, set(self.spec.all_tasks))
        if strange := sorted(details.data.keys() - set(self.spec.all_tasks)):
            raise Mismatch("details.data", strange[0], "It isn't a task of the spec.")

    def columns(self, task: str) -> dict[str, str]:
        """Metric → scale of the values, for one task."""
        return {column: metric_scale(metric) for column, metric in self.spec.columns(task).items()}


class Depth(Record):
    """The needles of one depth (0: start of the text, 1: its end): how many were found, of how many."""

    depth: Share
    found: Count
    needed: Positive

    def check(self) -> None:
        if self.found > self.needed:
            raise Mismatch("found", self.found, f"{self.needed} were asked for.")


class LengthScaling(Record):
    """What was done to the rotations for one length: `factor` and `applied` are there unless the kind is none."""

    kind: str
    factor: float | None = None
    applied: bool | None = None


class Scaling(Record):
    """How rotary positions beyond the training length were read: length → what was done."""

    kind: str
    lengths: dict[str, LengthScaling]


class NeedleDetails(Record):
    """Needles by depth (metric → depths), and how prompts were made and positions read.

    `prompt_tokens` has the shortest and the longest prompt of a metric; `samples` the id of the prompts, None where
    lm-eval made them.
    """

    needles: dict[str, tuple[Depth, ...]]
    intervals: dict[str, tuple[Share, Share]]
    prompt_tokens: dict[str, tuple[Positive, Positive]]
    generator: str
    generated_tokens: Positive
    rope_scaling: Scaling
    training_length: Positive | None
    tokenizer: Hash
    bos_policy: Literal["none"]
    samples: str | None
    batch_size: Positive


class NeedleEvaluation(Evaluation):
    suite: Literal["niah"]
    spec: Annotated[NeedleSpec, canonical]
    details: NeedleDetails

    def check(self) -> None:
        super().check()
        spec, details = self.spec, self.details
        cells = {f"{NEEDLES}{task}_{length}": length for task in spec.samples.tasks for length in spec.samples.lengths}
        for key in ("needles", "intervals", "prompt_tokens"):
            check_names(f"details.{key}", getattr(details, key), cells)
        check_names("metrics", self.metrics, cells)
        for name, length in cells.items():
            self.check_cell(name, length)
        samples = spec.samples.name if spec.generator == "own" else None
        check_equal("details.samples", details.samples, samples, "By the spec they are")
        check_equal("details.generator", details.generator, spec.generator, "The spec has")
        tokens = spec.samples.generated_tokens
        check_equal("details.generated_tokens", details.generated_tokens, tokens, "The spec has")
        self.check_scaling(spec.rope_scaling, details.rope_scaling)

    def check_cell(self, name: str, length: int) -> None:
        """One task and length: value, error and interval follow from the needles and the number of samples."""
        metric, rows, key = self.metrics[name], self.details.needles[name], f"metrics.{name}"
        needed = sum(row.needed for row in rows)
        check_equal(f"{key}.items", metric.items, self.spec.samples.samples, "Samples, by the spec:")
        if not rows or needed % metric.items:
            raise Mismatch(f"details.needles.{name}", needed, f"Needles, as many in each of {metric.items} samples.")
        check_equal(f"{key}.value", metric.value, sum(row.found for row in rows) / needed, "The needles' share is")
        check_error(key, metric, binary=needed == metric.items)
        depths = [row.depth for row in rows]
        if depths != sorted(set(depths)):
            raise Mismatch(f"details.needles.{name}", depths, "Depths are in order, each once.")
        interval = wilson(metric.value, metric.items)
        for place, bound in enumerate(self.details.intervals[name]):
            check_equal(f"details.intervals.{name}.{place}", bound, interval[place], "Wilson's interval has")
        low, high = self.details.prompt_tokens[name]
        if not low <= high:
            raise Mismatch(f"details.prompt_tokens.{name}", (low, high), "The shortest comes first.")
        if self.spec.generator == "own" and high + self.spec.samples.generated_tokens > length:
            raise Mismatch(f"details.prompt_tokens.{name}", (low, high), f"With the answer, {length} is the most.")

    def check_scaling(self, asked: RopeScaling, done: Scaling) -> None:
        key, trained = "details.rope_scaling", self.details.training_length
        check_equal(f"{key}.kind", done.kind, asked.kind, "The spec has")
        check_names(f"{key}.lengths", done.lengths, set(map(str, self.spec.samples.lengths)))
        for length, one in done.lengths.items():
            check_equal(f"{key}.lengths.{length}.kind", one.kind, asked.kind, "The spec has")
            known = None if trained is None else max(int(length) / trained, 1.0)
            factor = None if asked.kind == "none" else asked.factor if asked.factor is not None else known
            check_equal(f"{key}.lengths.{length}.factor", one.factor, factor, "By spec and training length it is")
            if (one.applied is None) != (asked.kind == "none"):
                raise Mismatch(f"{key}.lengths.{length}.applied", one.applied, "It is there unless the kind is none.")


class AnySuite(Evaluation):
    """A file that names no known suite: it is refused."""

    suite: Literal["validation", "zero_shot", "niah"]


EVALUATIONS: dict[str, type[Evaluation]] = {
    "validation": ValidationEvaluation,
    "zero_shot": ZeroShotEvaluation,
    "niah": NeedleEvaluation,
}


def check_names(key: str, seen: Mapping[str, Any], expected: Collection[str]) -> None:
    """Raises Mismatch unless the keys of `seen` are those expected."""
    if strange := sorted(set(seen) - set(expected)):
        raise Mismatch(key, strange[0], "The spec doesn't ask for it.")
    if absent := sorted(set(expected) - set(seen)):
        raise Mismatch(f"{key}.{absent[0]}", None, "The spec asks for it.")


def check_range(key: str, metric: Metric, scale: str) -> None:
    """Raises Mismatch where a value is out of the range of its scale."""
    if scale == "percent" and not 0 <= metric.value <= 1:
        raise Mismatch(f"{key}.value", metric.value, "It is a share: 0 to 1.")
    if scale == "perplexity" and metric.value < 1:
        raise Mismatch(f"{key}.value", metric.value, "A perplexity is at least 1.")


def check_error(key: str, metric: Metric, *, binary: bool) -> None:
    """Raises Mismatch where the standard error can't be that of a mean over the items.

    Args:
        binary: each item scores 0 or 1, so that the error follows from the mean.
    """
    value, items = metric.value, metric.items
    if (metric.stderr is None) != (items == 1):
        raise Mismatch(f"{key}.stderr", metric.stderr, f"It is null for one item, and a number for {items}.")
    if not binary:
        return
    if not math.isclose(value * items, round(value * items), rel_tol=ROUNDING, abs_tol=1e-6):
        raise Mismatch(f"{key}.value", value, f"It is the share of a whole number of {items} items.")
    expected = math.sqrt(value * (1 - value) / (items - 1)) if items > 1 else None
    check_equal(f"{key}.stderr", metric.stderr, expected, "By value and items it is")
