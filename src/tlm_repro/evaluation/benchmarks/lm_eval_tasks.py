"""The tasks of the installed lm-eval: what each reads and measures, and the same task over local items.

Prompts, metrics and aggregation stay lm-eval's own. Every task is run zero-shot.
"""

import difflib
import importlib.metadata
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tlm_repro.errors import EvaluationError

OUTPUT_TYPES = ("multiple_choice", "loglikelihood", "loglikelihood_rolling", "generate_until")
# Where lm-eval keeps the paper's tasks, below its folder of tasks. For other tasks its 14,000 files are searched, which
# takes a second on a local disk.
FOLDERS = {
    "wikitext": "wikitext",
    "lambada_openai": "lambada",
    "piqa": "piqa",
    "hellaswag": "hellaswag",
    "winogrande": "winogrande",
    "arc_easy": "arc",
    "arc_challenge": "arc",
    "social_iqa": "siqa",
    "boolq": "super_glue/boolq",
}


@dataclass(frozen=True)
class LmEvalTask:
    """One task: its data set, the split that is scored, its metrics, and the filters that its answers go through.

    `test` says whether that split is lm-eval's `test_split` or its `validation_split`. `version` is None where lm-eval
    states none. `options` are those of `datasets.load_dataset`, `examples` the keys of its YAML that put solved
    examples before an item.
    """

    name: str
    output_type: str
    dataset: str
    config: str | None
    split: str
    test: bool
    metrics: tuple[str, ...]
    filters: tuple[str, ...]
    version: float | str | None
    options: dict[str, Any]
    examples: tuple[str, ...]

    @property
    def source(self) -> dict[str, Any]:
        """Data set, configuration and split, as messages and evaluation files name them."""
        return {"dataset": self.dataset, "config": self.config, "split": self.split}

    @property
    def scores(self) -> tuple[str, ...]:
        """What can be asked for: metrics, with a filter where the task has several."""
        if len(self.filters) == 1:
            return self.metrics
        return tuple(f"{metric},{way}" for metric in self.metrics for way in self.filters)

    def score(self, metric: str) -> str:
        """`metric,filter`, as lm-eval names it in results. Raises EvaluationError unless it is one of `scores`."""
        name, _, way = metric.partition(",")
        if metric in self.scores:
            return f"{name},{way or self.filters[0]}"
        if name in self.metrics and (way,) == self.filters:
            return metric
        raise EvaluationError(
            f"lm-eval's task '{self.name}' has no metric '{metric}'. It has {', '.join(self.scores)}. Choose one"
        )

    @property
    def zero_shot(self) -> dict[str, Any]:
        """Keys that leave examples out, for a task that lm-eval runs with some."""
        return {"num_fewshot": 0} if self.examples else {}

    def load(self, keys: dict[str, Any]) -> Any:
        """lm-eval's task object, with these keys in place of its YAML's: lm-eval merges them inside a group alone."""
        return task_manager([self.name]).load([{"group": "data", "task": [keys]}])["tasks"][self.name]

    def from_hub(self, revision: str | None) -> dict[str, Any]:
        """The task on its own data set, at lm-eval's default revision or at another one."""
        pin = {"dataset_kwargs": {**self.options, "revision": revision}} if revision else {}
        return {"task": self.name, **self.zero_shot, **pin}

    def from_file(self, items: Path, cache: Path) -> dict[str, Any]:
        """The task on the rows of one local JSONL or Parquet file; `cache` takes temporary files."""
        scored = "test" if self.test else "validation"
        splits = {f"{name}_split": name if name == scored else None for name in ("training", "validation", "test")}
        return {
            "task": self.name,
            "dataset_path": "parquet" if items.suffix == ".parquet" else "json",
            "dataset_name": None,
            "dataset_kwargs": {"data_files": {scored: str(items)}, "cache_dir": str(cache)},
            **splits,
            **self.zero_shot,
            **{key: None for key in self.examples if key != "num_fewshot"},
        }


@cache
def lm_eval_task(name: str) -> LmEvalTask:
    """The task of this name.

    Raises:
        EvaluationError: lm-eval has no such task, or one that can't be run here: a group, a task that is a Python class
            or makes its own items, one that reads images or sound or runs generated code.
    """
    entry = task_manager([name]).task_index.get(name) or every_task().task_index.get(name)
    if entry is None:
        raise EvaluationError(unknown_task(name))
    keys: dict[str, Any] = entry.cfg or {}
    if reason := obstacle(name, entry.kind.name, keys):
        raise EvaluationError(f"lm-eval's task '{name}' can't be run: {reason}")
    metadata = keys["metadata"] if isinstance(keys.get("metadata"), dict) else {}
    output_type = keys.get("output_type", "generate_until")
    return LmEvalTask(
        name=name,
        output_type=output_type,
        dataset=keys["dataset_path"],
        config=keys.get("dataset_name"),
        split=keys.get("test_split") or keys["validation_split"],
        test=bool(keys.get("test_split")),
        metrics=metrics_of(keys, output_type),
        filters=tuple(entry["name"] for entry in keys.get("filter_list") or [{"name": "none"}]),
        version=metadata.get("version"),
        options={key: value for key, value in (keys.get("dataset_kwargs") or {}).items() if key != "trust_remote_code"},
        examples=tuple(key for key in ("num_fewshot", "fewshot_split", "fewshot_config") if keys.get(key)),
    )


def obstacle(name: str, kind: str, keys: dict[str, Any]) -> str | None:
    """Why a task can't be run here and what to do, or None."""
    if kind in ("GROUP", "TAG"):
        members = [str(entry) for entry in members_of(name, keys)]
        return f"it stands for several tasks. Name one of these: {', '.join(members)}"[:300]
    if kind == "PY_TASK":
        return "it is a Python class, whose metrics and data can't be read beforehand. Choose a task given in YAML"
    if keys.get("doc_to_image") or keys.get("doc_to_audio"):
        return "it reads images or sound. Choose a task of text"
    if keys.get("unsafe_code"):
        return "it runs code that a model has written. Choose another task"
    if keys.get("output_type", "generate_until") not in OUTPUT_TYPES:
        return f"it asks for '{keys['output_type']}'. Choose a task that asks for {', '.join(OUTPUT_TYPES)}"
    if not keys.get("dataset_path"):
        return "it makes its own items. Choose a task with a data set"
    if not (keys.get("test_split") or keys.get("validation_split")):
        return "it has neither a test nor a validation split. Choose another task"
    return None


def members_of(name: str, keys: dict[str, Any]) -> list[str]:
    if "group" not in keys:
        return sorted(every_task().task_index[name].tags)
    tasks = keys.get("task", [])
    names = [tasks] if isinstance(tasks, str) else tasks
    return [entry if isinstance(entry, str) else entry.get("task") or entry.get("group") for entry in names]


def metrics_of(keys: dict[str, Any], output_type: str) -> tuple[str, ...]:
    """Names of a task's metrics. lm-eval names a function in its YAML, `!function utils.rouge1`, after the function.

    It doesn't if the task processes results itself: such a metric has no name to ask for.
    """
    from lm_eval.api.registry import DEFAULT_METRIC_REGISTRY

    if keys.get("metric_list") is None:
        return tuple(DEFAULT_METRIC_REGISTRY[output_type])
    names = [str(entry["metric"]) for entry in keys["metric_list"]]
    if keys.get("process_results"):
        return tuple(name for name in names if "/" not in name)
    return tuple(name.rsplit(".", 1)[-1] if "/" in name else name for name in names)


def unknown_task(name: str) -> str:
    """Names close to an unknown one, as a message."""
    close = difflib.get_close_matches(name, every_task().all_subtasks, n=5)
    hint = f"Close to it: {', '.join(close)}" if close else "`lm-eval ls tasks` lists all"
    return f"lm-eval {importlib.metadata.version('lm-eval')} has no task '{name}'. {hint}"


def task_manager(tasks: Iterable[str]) -> Any:
    """lm-eval's task manager over the folders of these tasks alone: to index all of its tasks takes 8 s."""
    import lm_eval.tasks

    # Its warnings repeat for every run and request: metrics with default aggregation, a model passed as an object.
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    folders = sorted({folder for task in tasks for folder in folders_of(task)})
    return lm_eval.tasks.TaskManager(include_path=folders, include_defaults=False)


@cache
def every_task() -> Any:
    import lm_eval.tasks

    return lm_eval.tasks.TaskManager()


@cache
def folders_of(task: str) -> list[Path]:
    """The folders of lm-eval's YAML files that may define a task."""
    import lm_eval.tasks

    root = Path(lm_eval.tasks.__file__).parent
    if task in FOLDERS:
        return [root / FOLDERS[task]]
    line = re.compile(rb"""^\s*["']?task["']?\s*:\s*["']?%b["']?\s*(#.*)?$""" % re.escape(task.encode()), re.MULTILINE)
    folders = {path.parent for path in root.rglob("*.yaml") if line.search(path.read_bytes())}
    if not folders and (entry := every_task().task_index.get(task)) and entry.yaml_path:
        folders = {entry.yaml_path.parent}
    return [folder for folder in folders if folders.isdisjoint(folder.parents)]  # lm-eval descends by itself
