"""The model to evaluate: a run of this project, a Hugging Face folder, a model on the hub, or a GGUF file."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlm_repro.architectures.accounting import forward_flops, parameters, training_flops
from tlm_repro.artifacts.checksums import sha256_file
from tlm_repro.artifacts.fingerprint import fingerprint
from tlm_repro.records.manifests import ModelManifest
from tlm_repro.records.metrics import METRICS
from tlm_repro.spec.run import RunSpec

if TYPE_CHECKING:
    from tlm_repro.models.decoder import LanguageModel


@dataclass(frozen=True)
class Subject:
    """A model before it is loaded.

    Attributes:
        identity: changes whenever a weight or the tokenizer may have changed; part of the key of partial results.
        block: the evaluation file's entries about the model: `run` and `model` for a run of this project, else
            `external`.
        run: None for a model trained elsewhere, as are `metrics` and `training`.
        load: returns (model in evaluation mode, tokenizer) on a device, as transformers' classes.
        load_decoder: returns the decoder of a run of this project on a device, without transformers.
        metrics: the run's metrics.jsonl.
        training: time and device of its training.
    """

    name: str
    identity: str
    block: dict[str, Any]
    run: RunSpec | None
    load: Callable[[str], tuple[Any, Any]]
    load_decoder: Callable[[str], "LanguageModel"] | None = None
    metrics: Path | None = None
    training: dict[str, Any] | None = None


def find_subject(model: str) -> Subject:
    """The model that a `--model` option names.

    Args:
        model: the manifest.json of a finished run or its folder; a Hugging Face folder; `owner/name` on the hub,
            optionally with `@revision`; a .gguf file; or `package:file.gguf` in an installed Python package.

    Raises:
        ArtifactError: the manifest is of another kind, or a file of the run doesn't match it.
        EvaluationError: the model doesn't exist or is unavailable.
    """
    path = Path(model)
    manifest = path / "manifest.json" if path.is_dir() else path
    if path.name == "manifest.json" or (manifest.is_file() and path.is_dir()):
        return run_subject(ModelManifest.read(manifest, verify="sha256"))
    return external_subject(model)


def run_subject(manifest: ModelManifest) -> Subject:
    def load(device: str) -> tuple[Any, Any]:
        from tlm_repro.models.hugging_face import pretrained

        return pretrained.load_run(manifest, device=device)

    def load_decoder(device: str) -> "LanguageModel":
        from tlm_repro.models.folder import read_decoder

        return read_decoder(manifest.folder / "model", device=device)

    run = manifest.spec
    files = {name: entry["sha256"] for name, entry in manifest.files.items()}
    return Subject(
        name=manifest.id,
        identity=fingerprint(files, length=16),
        block={"run": {"id": manifest.id, **run.labels.canonical()}, "model": model_facts(run)},
        run=run,
        load=load,
        load_decoder=load_decoder,
        metrics=manifest.folder / METRICS if METRICS in manifest.files else None,
        training={
            "device": manifest.device,
            "wall_time_s": manifest.wall_time_s,
            "device_seconds": manifest.summary.device_seconds,
        },
    )


def external_subject(model: str) -> Subject:
    from tlm_repro.models.hugging_face import pretrained

    spec = pretrained.resolve_revision(pretrained.parse_reference(model))
    files = pretrained.local_files(spec)
    contents = {name: sha256_file(file) for name, file in files.items()}
    # A commit on the hub identifies its files. A local folder or file is identified by its contents.
    block = {"name": spec.name, "source": "package" if spec.package else "folder" if files else "hub"}
    if contents:
        block |= {"path": f"{spec.package}:{spec.gguf}" if spec.package else model, "hash": fingerprint(contents, 16)}
    else:
        block |= {"path": str(spec.path), "revision": spec.revision}
    return Subject(
        name=spec.name,
        identity=fingerprint(contents or {"path": spec.path, "revision": spec.revision}, length=16),
        block={"external": block},
        run=None,
        load=lambda device: pretrained.load_external(spec, device=device),
    )


def model_facts(run: RunSpec) -> dict[str, Any]:
    """A model's sizes for tables. FLOPs are those of one sequence's forward pass and of the whole training."""
    model = run.model
    return {
        "parameters": parameters(model).total,
        "forward_flops": forward_flops(model, model.sequence_length),
        "training_flops": training_flops(model, run.training.tokens),
        "tokens": run.training.tokens,
        "layers": model.layers,
        "model_width": model.model_width,
        "intermediate_sizes": list(model.intermediate_sizes),
    }
