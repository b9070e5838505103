"""Zero-shot scores through lm-eval: its own tasks, prompts and metrics, on a model object of ours.

Tasks are run one by one: what has been scored is kept when a later one fails.
"""

import sys
import tempfile
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlm_repro.errors import EvaluationError, TLMError
from tlm_repro.evaluation.benchmarks.items import check_items, load_task, provenance
from tlm_repro.evaluation.benchmarks.lm_eval_tasks import lm_eval_task
from tlm_repro.evaluation.inputs import NO_FILES, ItemFiles
from tlm_repro.evaluation.needle.samples import tokenizer_hash
from tlm_repro.evaluation.partial import NO_PARTIAL_RESULTS, PartialResults
from tlm_repro.evaluation.progress_bars import bars_as_lines
from tlm_repro.evaluation.scoring import UNUSABLE_WEIGHTS, Scores, summarise
from tlm_repro.records.evaluation import Metric
from tlm_repro.spec.evaluation import RopeScaling, ZeroShotSpec

if TYPE_CHECKING:
    from tlm_repro.data.readers.base import Document
    from tlm_repro.evaluation.language_model import CausalLM


def zero_shot(
    model: Any,
    tokenizer: Any,
    spec: ZeroShotSpec,
    *,
    batch_size: int,
    held_out: Iterable["Document"] = (),
    files: ItemFiles = NO_FILES,
    partial: PartialResults = NO_PARTIAL_RESULTS,
) -> Scores:
    """Scores of a causal language model by column, the paper's of Table 2 first, and how they came about.

    Values are lm-eval's: accuracies are fractions; `lambada_ppl` is per target word, `wikitext_ppl` per word.

    Args:
        model: a Hugging Face causal language model, on any device; it is put in evaluation mode.
        tokenizer: its fast tokenizer.
        batch_size: sequences of the greatest length in one forward pass.
        held_out: documents that stand for WikiText's pages when the source is the demo's; not read otherwise.
        files: the items on this machine, for source `path` and for tasks with items of their own.
        partial: stores the scores of finished tasks until all are finished.

    Raises:
        EvaluationError: an unknown task or metric, other items than the spec's, a data set that can't be loaded, no
            held-out document, a max_length beyond the model's learned positions, or a score that isn't finite. Where a
            task fails the others are scored before it is raised.
    """
    from tlm_repro.evaluation.language_model import CausalLM
    from tlm_repro.evaluation.rope import check_length

    check_length(model, spec.max_length, RopeScaling())
    lm = CausalLM(model, tokenizer, max_length=spec.max_length, batch_size=batch_size)
    check_items(spec, files)
    items = provenance(spec, files)
    about = {"tokenizer": tokenizer_hash(tokenizer), "bos_policy": lm.bos_policy}
    with tempfile.TemporaryDirectory(prefix="tlm-items-") as folder, bars_as_lines(sys.stderr):
        keys: dict[str, dict[str, Any]] = {task: {**about, "items": items_of(items, task)} for task in spec.all_tasks}
        done = score_all(lm, Tasks(spec, held_out, files, Path(folder)), partial, keys)
    metrics = {column: Metric(**values) for part in done.values() for column, values in part["metrics"].items()}
    details = {
        **items,
        "max_length": spec.max_length,
        "batch_size": batch_size,
        "batch_tokens": lm.batch_tokens,
        **about,
        "work": {task: part["work"] for task, part in done.items()},
    }
    return metrics, details


@dataclass
class Tasks:
    """lm-eval's task objects by name, loaded one by one: one can fail without the rest."""

    spec: ZeroShotSpec
    held_out: Iterable["Document"]
    files: ItemFiles
    folder: Path

    def __getitem__(self, task: str) -> Any:
        return load_task(self.spec, task, held_out=self.held_out, files=self.files, folder=self.folder)


def score_all(lm: "CausalLM", tasks: Tasks, partial: PartialResults, keys: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Each task's part, from the partial results or scored now. Raises one EvaluationError for all that fail.

    `keys`: what a task's numbers depend on beside its spec, the model and the libraries.
    """
    done: dict[str, Any] = {}
    failures: dict[str, Exception] = {}
    for task in tasks.spec.all_tasks:
        key = {"spec": tasks.spec.of_task(task).canonical(), **keys[task]}
        part = partial.get(task, key)
        if part is None:
            try:
                part = score_task(lm, task, tasks)
            except Exception as error:  # of lm-eval, datasets or torch: the other tasks can still be scored
                failures[task] = error
                report_failure(task, error)
                continue
            partial.put(task, key, part)
        done[task] = part
    if failures:
        raise failure_error(failures, done, partial)
    return done


def score_task(lm: "CausalLM", task: str, tasks: Tasks) -> dict[str, Any]:
    """One task's metrics by column and its work, as plain values."""
    from lm_eval import evaluate

    lm.reset_work()
    loaded, known = tasks[task], lm_eval_task(task)
    try:
        results = evaluate(lm, {"tasks": {task: loaded}}, limit=tasks.spec.limit, bootstrap_iters=0)
    except OverflowError:
        raise EvaluationError(f"a perplexity is too large for a float: {UNUSABLE_WEIGHTS}") from None
    metrics = {}
    for column, metric in tasks.spec.columns(task).items():
        aggregate = loaded.aggregation()[metric.partition(",")[0]]
        score = summarise(column, known.score(metric), results["results"][task], results["samples"][task], aggregate)
        metrics[column] = score.content()
    return {"metrics": metrics, "work": {**lm.work.summary(), "batch_size": lm.batch_size}}


def items_of(items: dict[str, Any], task: str) -> dict[str, Any]:
    """What `provenance` says of one task."""
    return {
        name: value.get(task) if name in ("task_versions", "data") and value else value for name, value in items.items()
    }


def report_failure(task: str, error: Exception) -> None:
    """Prints a failure to stderr as it happens, with the traceback unless the error is an expected one."""
    if not isinstance(error, TLMError):
        traceback.print_exception(error)
    print(f"task '{task}' failed: {error}; continuing with the others", file=sys.stderr, flush=True)


def failure_error(failures: dict[str, Exception], done: dict[str, Any], partial: PartialResults) -> EvaluationError:
    """One error for all failed tasks, which also says what happens to the others."""
    reasons = "; ".join(
        f"'{task}' ({error})" if isinstance(error, TLMError) else f"'{task}' ({type(error).__name__}: {error})"
        for task, error in failures.items()
    )
    rest = ""
    if done and partial.folder is not None:
        rest = f". The others ({', '.join(done)}) are kept: run the same command again to retry only the failed tasks"
    return EvaluationError(f"{len(failures)} of {len(failures) + len(done)} tasks failed: {reasons}{rest}")
