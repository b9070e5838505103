"""Files that say something wrong, as a person or a faulty disk would leave them: what the message names."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tlm_repro.errors import ArtifactError
from tlm_repro.records.base import Mismatch, Record
from tlm_repro.records.evaluation import Evaluation
from tlm_repro.records.manifests import DataManifest, ModelManifest
from tlm_repro.records.novelty import Novelty

FIXTURES = Path(__file__).parent / "fixtures/results"
VALIDATION, ZERO_SHOT, NEEDLES, NOVELTY, MODEL, DATA = (
    next(FIXTURES.glob(pattern))
    for pattern in (
        "evaluations/*/validation-*.json",
        "evaluations/*/zero_shot-*.json",
        "evaluations/*/niah-*.json",
        "novelty/*_s0-*.json",
        "models/*/manifest.json",
        "data/*/manifest.json",
    )
)


def assign(keys: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """A change of one value, by its keys."""

    def change(content: dict[str, Any]) -> None:
        *outer, last = keys.split(".")
        for key in outer:
            content = content[key]
        content[last] = value

    return change


def drop_a_layer(content: dict[str, Any]) -> None:
    for name in ("block", "mlp", "norm_ratio"):
        del content[name][2]


WRONG = {
    "a perplexity that isn't exp(loss)": (
        Evaluation,
        VALIDATION,
        assign("metrics.val_ppl.value", 300.0),
        r"metrics\.val_ppl\.value: 300\.0\. exp\(val_loss\) is \d+",
    ),
    "an accuracy of 7.5": (Evaluation, ZERO_SHOT, assign("metrics.piqa.value", 7.5), r"metrics\.piqa\.value: 7\.5\. "),
    "fewer than no items": (Evaluation, ZERO_SHOT, assign("metrics.piqa.items", -3), r"metrics\.piqa\.items: -3\. "),
    "another error": (Evaluation, ZERO_SHOT, assign("metrics.piqa.stderr", 0.0), r"metrics\.piqa\.stderr: 0\.0\. By"),
    "an edited spec": (
        Evaluation,
        VALIDATION,
        assign("spec.tokens", 65536),
        r"spec: '[0-9a-f]{8}'\. The file's name has the spec's fingerprint, 80e7ef7a\.",
    ),
    "labels of another run": (
        Evaluation,
        VALIDATION,
        assign("run.allocation", "uniform"),
        r"run\.id: .*\. Its labels make it 'transformer_760m-toy_uniform_s0-",
    ),
    "another score than the needles give": (
        Evaluation,
        NEEDLES,
        assign("metrics.niah_single_1_512.value", 0.5),
        r"metrics\.niah_single_1_512\.value: 0\.5\. The needles' share is 0\.0\.",
    ),
    "another correlation": (
        Novelty,
        NOVELTY,
        assign("correlation.mlp.r", 0.99),
        r"correlation\.mlp\.r: 0\.99\. Pearson's r of the means is ",
    ),
    "a layer dropped": (Novelty, NOVELTY, drop_a_layer, r"block: 5\. Entries, one a layer: 6\."),
    "a seed that isn't the training's": (
        ModelManifest,
        MODEL,
        assign("spec.training.seed", 5),
        r"spec: Labels have the seed 0, training 5\.",
    ),
    "labels of another allocation": (
        ModelManifest,
        MODEL,
        assign("spec.labels.allocation", "uniform"),
        r"spec: Labels have the allocation 'uniform', model the widths",
    ),
    "more parameters than the spec gives": (
        ModelManifest,
        MODEL,
        assign("summary.parameters", 1),
        r"summary\.parameters: 1\. By the spec it is \d+\.",
    ),
    "tokens that the shards don't hold": (
        DataManifest,
        DATA,
        assign("summary.train.tokens", 5),
        r"summary\.train\.tokens: 5\. The shards hold 3702975\.",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_file_that_says_something_wrong_is_refused_with_what_it_should_say(case: str) -> None:
    kind, path, change, message = WRONG[case]
    content = json.loads(path.read_text())
    change(content)
    with pytest.raises(ArtifactError, match=message) as refused:
        kind.from_values(content, path)
    assert str(refused.value).startswith(f"{path}: ")
    assert f"`dvc pull --force {path}`" in str(refused.value)


def test_unknown_keys_are_read_over_and_never_written() -> None:
    content = json.loads(VALIDATION.read_text())
    later = {**content, "of_a_later_version": 1}
    assert Evaluation.from_values(later, VALIDATION) == Evaluation.from_values(content, VALIDATION)
    with pytest.raises(ValidationError, match="of_a_later_version"):
        Evaluation.create(later)


def test_what_is_written_is_checked_before() -> None:
    content = json.loads(VALIDATION.read_text())
    content["metrics"]["val_ppl"]["value"] = 1.0
    with pytest.raises(Mismatch, match=r"metrics\.val_ppl\.value: 1\.0\. "):
        Evaluation.create(content)


def test_a_file_of_an_unknown_suite_or_of_no_object_is_refused() -> None:
    content = json.loads(VALIDATION.read_text())
    with pytest.raises(ArtifactError, match=r"suite: 'chess'\. Input should be 'validation', 'zero_shot' or 'niah'\."):
        Evaluation.from_values({**content, "suite": "chess"}, VALIDATION)
    for values in ([], None, "text", 3):
        with pytest.raises(ArtifactError, match="the whole file: "):
            Evaluation.from_values(values, VALIDATION)


def test_a_file_that_the_manifest_does_not_list_is_named() -> None:
    manifest: Record = DataManifest.from_values(json.loads(DATA.read_text()), DATA)
    assert isinstance(manifest, DataManifest)
    with pytest.raises(ArtifactError, match=r"lists no file 'b': it lists tokenizer/tokenizer\.json, "):
        manifest.path("b")
