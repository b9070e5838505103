"""lm-eval's own `niah_*` tasks on the same model, for comparison with this project's prompts.

lm-eval makes its prompts when a task is loaded, 500 of them, from a random state of the whole process; essays come from
a data set of the hub. Prompts can be far shorter than the length that they stand for. How deep a needle is hidden isn't
recorded there: it is read from the prompt and rounded to a tenth.
"""

import contextlib
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from tlm_repro.config.schema import LM_EVAL_SAMPLES
from tlm_repro.errors import EvaluationError
from tlm_repro.evaluation.needle.samples import NeedleSample
from tlm_repro.evaluation.needle.tasks import NEEDLE_TASKS
from tlm_repro.evaluation.progress import plain_progress
from tlm_repro.spec.evaluation import NeedleSamplesSpec, NeedleTaskName

RANDOM_SEED = 1234  # lm-eval's own default


def stock_samples(tokenizer: Any, spec: NeedleSamplesSpec) -> list[NeedleSample]:
    """lm-eval's prompts of each task and length, as samples: asked in the same way, they get lm-eval's answers.

    Raises:
        EvaluationError: a task's data can't be had, or more samples are asked for than lm-eval makes.
    """
    if spec.samples > LM_EVAL_SAMPLES:
        raise EvaluationError(
            f"lm-eval makes {LM_EVAL_SAMPLES} samples of a task at a length, {spec.samples} are asked for: "
            "ask for fewer, or set generator: own"
        )
    with tempfile.TemporaryDirectory(prefix="tlm-tokenizer-") as folder, plain_progress(sys.stderr):
        tokenizer.save_pretrained(folder)
        return [
            sample(task, length, document, tokenizer)
            for task in spec.tasks
            for length in spec.lengths
            for document in stock_documents(task, length, folder)[: spec.samples]
        ]


def stock_documents(task: NeedleTaskName, length: int, tokenizer: str) -> list[dict[str, Any]]:
    """What lm-eval's task `niah_<task>` makes for one length."""
    import lm_eval.tasks

    folder = Path(lm_eval.tasks.__file__).parent / "ruler"
    metadata = {"tokenizer": tokenizer, "max_seq_lengths": [length]}
    state = random.getstate()
    random.seed(RANDOM_SEED)
    try:
        # Importing the tasks tries to download nltk's data and prints that it failed.
        with contextlib.redirect_stdout(sys.stderr):
            manager = lm_eval.tasks.TaskManager(include_path=folder, include_defaults=False, metadata=metadata)
            loaded = manager.load([f"niah_{task}"])["tasks"][f"niah_{task}"]
            return list(loaded.test_docs())
    except Exception as error:  # whatever `datasets`, nltk and the HTTP client raise without a network
        needs = "no data" if NEEDLE_TASKS[task].haystack == "noise" else "its essays from the hub and nltk's punkt_tab"
        reason = next(iter(str(error).strip().splitlines()), "no reason given")
        raise EvaluationError(
            f"lm-eval's niah_{task} at {length} tokens can't be loaded, it needs {needs} ({type(error).__name__}: "
            f"{reason}): bring them into the caches of `datasets` and nltk, leave the task out, or set generator: own"
        ) from error
    finally:
        random.setstate(state)


def sample(task: NeedleTaskName, length: int, document: dict[str, Any], tokenizer: Any) -> NeedleSample:
    """One of lm-eval's documents as a sample: its text and the answer's first words, as lm-eval joins them."""
    text = f"{document['input']} {document['gen_prefix']}"
    tokens = len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    values = tuple(document["outputs"])
    _, _, context = document["input"].partition("\n")
    context = context.rpartition("\n")[0]
    depths = tuple(round(context.find(value) / max(len(context), 1), 1) for value in values)
    return NeedleSample(task, length, document["index"], text, tokens, (), values, depths)
