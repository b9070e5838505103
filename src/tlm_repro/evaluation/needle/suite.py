"""Needle in a haystack: one model's scores by task, length and depth (paper Appendix A; RULER, arXiv 2404.06654)."""

import sys
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tlm_repro.artifacts.fingerprint import fingerprint
from tlm_repro.errors import ArtifactError, EvaluationError
from tlm_repro.evaluation.needle.samples import NeedleSample, cell, opened_samples, read_samples, tokenizer_hash
from tlm_repro.evaluation.needle.scores import summarise
from tlm_repro.evaluation.partial import NOTHING_KEPT, Kept
from tlm_repro.evaluation.progress import plain_progress
from tlm_repro.evaluation.scoring import Scores
from tlm_repro.spec.evaluation import NeedleSpec, RopeScaling
from tlm_repro.statistics.intervals import wilson

if TYPE_CHECKING:
    from tlm_repro.evaluation.inputs import Context
    from tlm_repro.records.manifests import SamplesManifest


def check_needle(spec: NeedleSpec, context: "Context") -> None:
    """Raises EvaluationError where no samples are given, and ArtifactError where they aren't those of the spec."""
    if spec.generator == "own" and context.inputs.samples is None:
        raise EvaluationError(
            "suite 'niah' reads samples: make them with tlm-repro needle-samples and pass their manifest.json as "
            "--samples, or set generator: lm_eval"
        )
    if spec.generator == "own" and context.inputs.samples is not None:
        opened_samples(context.inputs.samples, spec.samples)


def score_needle(model: Any, tokenizer: Any, spec: NeedleSpec, context: "Context") -> Scores:
    """Metrics `niah_<task>_<length>` and details, as an evaluation file holds them.

    Raises:
        ArtifactError: the samples are others than the spec's, or were made with another tokenizer than the model's.
        EvaluationError: the model can't read such lengths, or its positions can't be scaled as asked.
    """
    inputs = context.inputs
    if spec.generator == "lm_eval":
        from tlm_repro.evaluation.needle.lm_eval import stock_samples

        samples, made = stock_samples(tokenizer, spec.samples), None
    else:
        if inputs.samples is None:
            raise EvaluationError("no samples are given: pass their manifest.json as --samples")
        manifest, samples = read_samples(inputs.samples, spec.samples)
        check_tokenizer(manifest, tokenizer)
        made = manifest.id
    with plain_progress(sys.stderr):
        answers, scaling = ask(
            model,
            tokenizer,
            samples,
            new_tokens=spec.samples.generated_tokens,
            scaling=spec.rope_scaling,
            batch_size=inputs.batch_size,
            kept=context.kept,
        )
    source = {"samples": made, "batch_size": inputs.batch_size}
    return scores(model, tokenizer, spec, samples, answers, scaling, source)


def scores(
    model: Any,
    tokenizer: Any,
    spec: NeedleSpec,
    samples: Sequence[NeedleSample],
    answers: Sequence[str],
    scaling: dict[str, Any],
    source: dict[str, Any],
) -> Scores:
    from tlm_repro.evaluation.rope import training_length

    metrics, needles = summarise(samples, answers)
    details = {
        "needles": needles,
        "intervals": {name: list(wilson(metric.value, metric.items)) for name, metric in metrics.items()},
        "prompt_tokens": {
            name: [min(s.tokens for s in part), max(s.tokens for s in part)]
            for name in metrics
            if (part := [s for s in samples if cell(s.task, s.length) == name])
        },
        "generator": spec.generator,
        "generated_tokens": spec.samples.generated_tokens,
        "rope_scaling": scaling,
        "training_length": training_length(model),
        "tokenizer": tokenizer_hash(tokenizer),
        "bos_policy": "none",
        **source,
    }
    return metrics, details


def check_tokenizer(manifest: "SamplesManifest", tokenizer: Any) -> None:
    """Raises ArtifactError where the samples' lengths were measured by another tokenizer than the model's."""
    made, own = manifest.summary.tokenizer, tokenizer_hash(tokenizer)
    if made != own:
        raise ArtifactError(
            f"the samples {manifest.id} were measured with tokenizer {made}, the model's is {own}: make samples with "
            "its own by tlm-repro needle-samples"
        )


def ask(
    model: Any,
    tokenizer: Any,
    samples: Sequence[NeedleSample],
    *,
    new_tokens: int,
    scaling: RopeScaling,
    batch_size: int,
    kept: Kept = NOTHING_KEPT,
) -> tuple[list[str], dict[str, Any]]:
    """The model's answers in the samples' order, and how its positions were scaled at each length.

    Samples of one task and length are asked together, the longest lengths first; their answers are kept as soon as all
    are there.
    """
    from tlm_repro.evaluation.needle.answers import Question, answer, progress_bar
    from tlm_repro.evaluation.rope import check_length, scaled

    check_length(model, max(sample.length for sample in samples), scaling)
    answers = [""] * len(samples)
    done: dict[str, Any] = {}
    cells: dict[tuple[int, str], list[int]] = defaultdict(list)
    for number, sample in enumerate(samples):
        cells[sample.length, sample.task].append(number)
    about = {"tokenizer": tokenizer_hash(tokenizer), "new_tokens": new_tokens, "scaling": scaling.canonical()}
    with progress_bar(len(samples)) as bar:
        for (length, task), numbers in sorted(cells.items(), key=lambda cell: -cell[0][0]):
            questions = [Question(encoded(tokenizer, samples[number]), samples[number].values) for number in numbers]
            key = {"questions": fingerprint([[question.ids, question.values] for question in questions], 16), **about}
            with scaled(model, scaling, length) as done[str(length)]:
                given = kept.get(cell(task, length), key)
                if given is None:
                    given = answer(
                        model, tokenizer, questions, new_tokens=new_tokens, batch_size=batch_size, done=bar.update
                    )
                    kept.put(cell(task, length), key, given)
                else:
                    bar.update(len(numbers))
            for number, text in zip(numbers, given, strict=True):
                answers[number] = text
    return answers, {"kind": scaling.kind, "lengths": done}


def encoded(tokenizer: Any, sample: NeedleSample) -> list[int]:
    """The prompt's token ids. Raises ArtifactError where they are more or fewer than the sample says."""
    ids = tokenizer(sample.prompt, add_special_tokens=False, verbose=False)["input_ids"]
    if len(ids) != sample.tokens:
        raise ArtifactError(
            f"sample {sample.index} of {cell(sample.task, sample.length)} has {len(ids)} tokens, {sample.tokens} were "
            "counted when it was made: make the samples anew with the model's own tokenizer"
        )
    return ids
