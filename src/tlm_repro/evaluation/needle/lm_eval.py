"""lm-eval's own `niah_*` tasks, for comparison with this project's prompts.

lm-eval makes 500 prompts when a task is loaded, from the global random state; its essays come from a data set on the
hub. Prompts can be much shorter than their nominal length. lm-eval doesn't record the depth of a needle, so it is
measured in the prompt and rounded to a tenth.
"""

import contextlib
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from tlm_repro.artifacts.files import read_json, write_json
from tlm_repro.config.schema import LM_EVAL_SAMPLES
from tlm_repro.errors import EvaluationError
from tlm_repro.evaluation.needle.samples import NeedleSample
from tlm_repro.evaluation.needle.tasks import NEEDLE_TASKS
from tlm_repro.evaluation.progress_bars import bars_as_lines
from tlm_repro.spec.evaluation import NeedleSamplesSpec, NeedleTaskName

RANDOM_SEED = 1234  # lm-eval's default


def stock_samples(tokenizer: Any, spec: NeedleSamplesSpec) -> list[NeedleSample]:
    """lm-eval's prompts for each task and length, as samples. Their answers are the same as in lm-eval.

    Raises:
        EvaluationError: a task's data is unavailable, or the spec has more samples than lm-eval makes.
    """
    if spec.samples > LM_EVAL_SAMPLES:
        raise EvaluationError(
            f"samples is {spec.samples}, but lm-eval makes {LM_EVAL_SAMPLES} for a task and length: "
            "reduce samples, or set generator: own"
        )
    with tempfile.TemporaryDirectory(prefix="tlm-tokenizer-") as folder, bars_as_lines(sys.stderr):
        save_without_code(tokenizer, Path(folder))
        return [
            to_sample(task, length, document, tokenizer)
            for task in spec.tasks
            for length in spec.lengths
            for document in stock_documents(task, length, folder)[: spec.samples]
        ]


def save_without_code(tokenizer: Any, folder: Path) -> None:
    """Saves a tokenizer for lm-eval, which would run the code that `auto_map` of its settings names."""
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    settings = read_json(path)
    if settings.pop("auto_map", None) is not None:
        write_json(path, settings)


def stock_documents(task: NeedleTaskName, length: int, tokenizer: str) -> list[dict[str, Any]]:
    """The documents of lm-eval's task `niah_<task>` for one length."""
    import lm_eval.tasks

    folder = Path(lm_eval.tasks.__file__).parent / "ruler"
    metadata = {"tokenizer": tokenizer, "max_seq_lengths": [length]}
    state = random.getstate()
    random.seed(RANDOM_SEED)
    try:
        # Importing the tasks tries to download nltk's data and prints if that fails.
        with contextlib.redirect_stdout(sys.stderr):
            manager = lm_eval.tasks.TaskManager(include_path=folder, include_defaults=False, metadata=metadata)
            loaded = manager.load([f"niah_{task}"])["tasks"][f"niah_{task}"]
            return list(loaded.test_docs())
    except Exception as error:  # `datasets`, nltk and the HTTP client raise many types without a network
        needs = "no data" if NEEDLE_TASKS[task].haystack == "noise" else "its essays from the hub and nltk's punkt_tab"
        reason = next(iter(str(error).strip().splitlines()), "no reason given")
        raise EvaluationError(
            f"lm-eval's niah_{task} at {length} tokens, which needs {needs}, can't be loaded ({type(error).__name__}: "
            f"{reason}): download them into the caches of `datasets` and nltk, remove the task, or set generator: own"
        ) from error
    finally:
        random.setstate(state)


def to_sample(task: NeedleTaskName, length: int, document: dict[str, Any], tokenizer: Any) -> NeedleSample:
    """Converts one of lm-eval's documents to a sample. The prompt ends in the first words of the answer, as there."""
    text = f"{document['input']} {document['gen_prefix']}"
    tokens = len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    values = tuple(document["outputs"])
    _, _, context = document["input"].partition("\n")
    context = context.rpartition("\n")[0]
    depths = tuple(round(context.find(value) / max(len(context), 1), 1) for value in values)
    return NeedleSample(task, length, document["index"], text, tokens, (), values, depths)
