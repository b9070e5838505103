"""Zero-shot scores through lm-eval: its own tasks, prompts and model class, on a model object of ours.

Prompts and metrics are lm-eval's. For the demo only the source of the items changes. The standard errors are computed
here from lm-eval's per-item results: it has none for word perplexity, and bootstraps LAMBADA's perplexity with 100,000
resamples where a closed form does.
"""

import importlib.metadata
import json
import logging
import math
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlm_repro.artifacts import fingerprint
from tlm_repro.errors import EvaluationError
from tlm_repro.evaluation.benchmarks import DEMO_ITEMS, ITEMS_VERSION, benchmark, demo_pages, demo_source
from tlm_repro.evaluation.progress import plain_progress
from tlm_repro.spec import ZeroShotSpec

if TYPE_CHECKING:
    from tlm_repro.data.corpora import Document

PERPLEXITIES = {"perplexity", "word_perplexity"}
UNUSABLE = "the model's weights are not usable; look at its training log"


@dataclass(frozen=True)
class Metric:
    """A score over `items` items. `stderr` is its standard error with items as the sampling unit; None for one item."""

    value: float
    stderr: float | None
    items: int


def zero_shot(
    model: Any, tokenizer: Any, spec: ZeroShotSpec, *, held_out: Iterable["Document"], batch_size: int
) -> dict[str, Metric]:
    """Scores of a causal language model by the columns of the paper's Table 2.

    Accuracies are fractions; `lambada_ppl` is per target word, `wikitext_ppl` per word.

    Args:
        model: a Hugging Face causal language model, on any device; it is put in evaluation mode.
        tokenizer: its fast tokenizer.
        held_out: documents that stand for WikiText's pages when the source is the demo's; not read otherwise.
        batch_size: requests in one forward pass.

    Raises:
        EvaluationError: an unknown task, another version of the demo items, a data set that can't be had, no held-out
            document, or a score that isn't finite.
    """
    from lm_eval import evaluate
    from lm_eval.models.huggingface import HFLM

    # Its warnings repeat for every run and request: metrics with default aggregation, a model passed as an object.
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="tlm-items-") as folder, plain_progress(sys.stderr):
        tasks = load_tasks(spec, held_out, Path(folder))
        # In training a document follows an end-of-text token, and no token stands for its beginning: so it is here.
        lm = HFLM(
            pretrained=model,
            tokenizer=tokenizer,
            batch_size=batch_size,
            max_length=spec.max_length,
            add_bos_token=False,
            prefix_token_id=tokenizer.eos_token_id,
        )
        try:
            results = evaluate(lm, {"tasks": tasks}, limit=spec.limit, bootstrap_iters=0)
        except OverflowError:
            raise EvaluationError(f"a perplexity is too large for a float: {UNUSABLE}") from None
    return {
        column: summarise(column, metric, results["results"][task], results["samples"][task])
        for task in spec.tasks
        for column, metric in benchmark(task).metrics.items()
    }


def zero_shot_details(tokenizer: Any, spec: ZeroShotSpec, *, batch_size: int) -> dict[str, Any]:
    """What a reader needs to compare scores: versions of lm-eval, its tasks and the items, and how they were run."""
    index = stock_tasks(spec.tasks).task_index
    return {
        "lm_eval": importlib.metadata.version("lm-eval"),
        "task_versions": {task: index[task].cfg["metadata"]["version"] for task in spec.tasks},
        "source": spec.source,
        "items_version": spec.items_version if spec.source == "demo" else None,
        "max_length": spec.max_length,
        "batch_size": batch_size,
        "tokenizer": fingerprint(json.loads(tokenizer.backend_tokenizer.to_str()), length=16),
    }


def ratio_stderr(numerators: Sequence[float], denominators: Sequence[float]) -> float | None:
    """Standard error of Σa/Σb over independent pairs (a, b), to first order; where all b = 1, that of a mean.

    None for a single pair.
    """
    count, total = len(numerators), math.fsum(denominators)
    if count < 2:
        return None
    ratio = math.fsum(numerators) / total
    squares = math.fsum((a - ratio * b) ** 2 for a, b in zip(numerators, denominators, strict=True))
    return math.sqrt(count / (count - 1) * squares) / total


def summarise(column: str, metric: str, result: dict[str, Any], samples: list[dict[str, Any]]) -> Metric:
    likelihoods = [likelihood(response) for sample in samples for response in sample["filtered_resps"]]
    if any(math.isnan(value) for value in likelihoods):  # an accuracy would hide it
        raise EvaluationError(f"a log-likelihood behind {column} is not a number: {UNUSABLE}")
    value = float(result[f"{metric},none"])
    per_item = [sample[metric] for sample in samples]
    # Word perplexity has pairs of (log-likelihood, words).
    pairs = [item if isinstance(item, tuple) else (item, 1) for item in per_item]
    stderr = ratio_stderr(*zip(*pairs, strict=True))
    if stderr is not None and metric in PERPLEXITIES:
        stderr *= value  # d exp(-x) = -exp(-x) dx
    return Metric(value=value, stderr=stderr, items=len(samples))


def likelihood(response: float | tuple[float, bool]) -> float:
    """The log-likelihood in lm-eval's response to a request, which may say too whether the continuation is greedy."""
    return response[0] if isinstance(response, tuple) else response


def stock_tasks(tasks: Iterable[str]) -> Any:
    """lm-eval's task manager over the folders of these tasks only: indexing all of its tasks takes 8 s."""
    import lm_eval.tasks

    root = Path(lm_eval.tasks.__file__).parent
    folders = sorted({root / benchmark(task).folder for task in tasks})
    return lm_eval.tasks.TaskManager(include_path=folders, include_defaults=False)


def load_tasks(spec: ZeroShotSpec, held_out: Iterable["Document"], folder: Path) -> dict[str, Any]:
    """lm-eval task objects by name; `folder` takes what the demo's need on disk."""
    manager = stock_tasks(spec.tasks)
    if spec.source == "demo":
        return manager.load([demo_group(spec, held_out, folder)])["tasks"]
    tasks: dict[str, Any] = {}
    for task in spec.tasks:
        try:
            tasks |= manager.load([task])["tasks"]
        except Exception as error:  # whatever `datasets` and its HTTP client raise without a network or a cached copy
            dataset = manager.task_index[task].cfg["dataset_path"]
            reason = str(error).strip().split("\n")[0]
            raise EvaluationError(
                f"task '{task}' needs the Hugging Face data set '{dataset}', which can't be loaded "
                f"({type(error).__name__}: {reason}): with a network unset HF_HUB_OFFLINE, without one bring "
                "the data set into the Hugging Face cache beforehand, or take the demo's items"
            ) from error
    return tasks


def demo_group(spec: ZeroShotSpec, held_out: Iterable["Document"], folder: Path) -> dict[str, Any]:
    """Stock tasks with another data source, as a group: only inside one does lm-eval merge the two."""
    import datasets

    if spec.items_version != ITEMS_VERSION:
        raise EvaluationError(
            f"the spec asks for version {spec.items_version} of the demo items, this package has {ITEMS_VERSION}: "
            "make the spec anew, or install the package that made it"
        )
    datasets.disable_progress_bars()
    members = []
    for task in spec.tasks:
        items = DEMO_ITEMS / f"{task}.jsonl"
        if task == "wikitext":
            items = folder / items.name
            write_pages(items, held_out)
        members.append(demo_source(task, items, folder / "cache"))
    return {"group": "demo", "task": members}


def write_pages(path: Path, held_out: Iterable["Document"]) -> None:
    lines = [json.dumps(page, ensure_ascii=False) for page in demo_pages(held_out)]
    if not lines:
        raise EvaluationError("no held-out document for word perplexity: raise the data's validation_fraction")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
