"""Needle in a haystack: a model's scores by task, length and depth (paper Appendix A; RULER, arXiv 2404.06654)."""

import sys
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tlm_repro.artifacts.fingerprint import fingerprint
from tlm_repro.errors import ArtifactError, EvaluationError
from tlm_repro.evaluation.needle.samples import NeedleSample, metric_name, open_samples, read_samples, tokenizer_hash
from tlm_repro.evaluation.needle.scores import summarise
from tlm_repro.evaluation.partial import NO_PARTIAL_RESULTS, PartialResults
from tlm_repro.evaluation.progress_bars import bars_as_lines
from tlm_repro.evaluation.scoring import Scores
from tlm_repro.spec.evaluation import NeedleSpec, RopeScaling
from tlm_repro.statistics.intervals import wilson

if TYPE_CHECKING:
    from tlm_repro.evaluation.inputs import Context
    from tlm_repro.records.manifests import SamplesManifest


def check_needle(spec: NeedleSpec, context: "Context") -> None:
    """Raises EvaluationError if there are no samples, and ArtifactError if they aren't those of the spec."""
    if spec.generator == "own" and context.inputs.samples is None:
        raise EvaluationError(
            "suite 'niah' needs samples: make them with tlm-repro needle-samples and pass their manifest.json as "
            "--samples, or set generator: lm_eval"
        )
    if spec.generator == "own" and context.inputs.samples is not None:
        open_samples(context.inputs.samples, spec.samples)


def score_needle(model: Any, tokenizer: Any, spec: NeedleSpec, context: "Context") -> Scores:
    """Metrics `niah_<task>_<length>` and details for an evaluation file.

    Raises:
        ArtifactError: the samples aren't those of the spec, or were made with another tokenizer than the model's.
        EvaluationError: the model can't read the lengths, or its positions can't be scaled as configured.
    """
    inputs = context.inputs
    if spec.generator == "lm_eval":
        from tlm_repro.evaluation.needle.lm_eval import stock_samples

        samples, samples_id = stock_samples(tokenizer, spec.samples), None
    else:
        if inputs.samples is None:
            raise EvaluationError("suite 'niah' needs samples: pass their manifest.json as --samples")
        manifest, samples = read_samples(inputs.samples, spec.samples)
        check_tokenizer(manifest, tokenizer)
        samples_id = manifest.id
    with bars_as_lines(sys.stderr):
        answers, scaling = collect_answers(
            model,
            tokenizer,
            samples,
            new_tokens=spec.samples.generated_tokens,
            scaling=spec.rope_scaling,
            batch_size=inputs.batch_size,
            partial=context.partial,
        )
    source = {"samples": samples_id, "batch_size": inputs.batch_size}
    return score_answers(model, tokenizer, spec, samples, answers, scaling, source)


def score_answers(
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
            if (part := [s for s in samples if metric_name(s.task, s.length) == name])
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
    """Raises ArtifactError if the samples' lengths were measured with another tokenizer than the model's."""
    of_samples, of_model = manifest.summary.tokenizer, tokenizer_hash(tokenizer)
    if of_samples != of_model:
        raise ArtifactError(
            f"the samples {manifest.id} were measured with tokenizer {of_samples}, but the model's is {of_model}: make "
            "samples for this model with tlm-repro needle-samples"
        )


def collect_answers(
    model: Any,
    tokenizer: Any,
    samples: Sequence[NeedleSample],
    *,
    new_tokens: int,
    scaling: RopeScaling,
    batch_size: int,
    partial: PartialResults = NO_PARTIAL_RESULTS,
) -> tuple[list[str], dict[str, Any]]:
    """The model's answers in the samples' order, and the scaling of its positions at each length.

    Samples of one task and length are answered together, the longest length first. Their answers are stored among the
    partial results when they are complete.
    """
    from tlm_repro.evaluation.needle.answers import Question, generate_answers, progress_bar
    from tlm_repro.evaluation.rope import check_length, scaled

    check_length(model, max(sample.length for sample in samples), scaling)
    answers = [""] * len(samples)
    scaling_by_length: dict[str, Any] = {}
    groups: dict[tuple[int, str], list[int]] = defaultdict(list)
    for number, sample in enumerate(samples):
        groups[sample.length, sample.task].append(number)
    settings = {"tokenizer": tokenizer_hash(tokenizer), "new_tokens": new_tokens, "scaling": scaling.canonical()}
    with progress_bar(len(samples)) as bar:
        for (length, task), numbers in sorted(groups.items(), key=lambda group: -group[0][0]):
            questions = [Question(prompt_ids(tokenizer, samples[number]), samples[number].values) for number in numbers]
            contents = [[question.ids, question.values] for question in questions]
            name, key = metric_name(task, length), {"questions": fingerprint(contents, 16), **settings}
            with scaled(model, scaling, length) as scaling_by_length[str(length)]:
                texts = partial.get(name, key)
                if texts is None:
                    texts = generate_answers(
                        model, tokenizer, questions, new_tokens=new_tokens, batch_size=batch_size, advance=bar.update
                    )
                    partial.put(name, key, texts)
                else:
                    bar.update(len(numbers))
            for number, text in zip(numbers, texts, strict=True):
                answers[number] = text
    return answers, {"kind": scaling.kind, "lengths": scaling_by_length}


def prompt_ids(tokenizer: Any, sample: NeedleSample) -> list[int]:
    """The prompt's token ids. Raises ArtifactError if their number differs from the sample's."""
    ids = tokenizer(sample.prompt, add_special_tokens=False, verbose=False)["input_ids"]
    if len(ids) != sample.tokens:
        raise ArtifactError(
            f"sample {sample.index} of {metric_name(sample.task, sample.length)} has {len(ids)} tokens, but had "
            f"{sample.tokens} when it was made: make the samples again with the model's tokenizer"
        )
    return ids
