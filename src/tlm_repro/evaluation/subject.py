"""Who is evaluated: a run of this project, a Hugging Face folder, a model of the hub, or a GGUF file."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tlm_repro.architectures.accounting import forward_flops, parameters, training_flops
from tlm_repro.artifacts.checksums import sha256_file
from tlm_repro.artifacts.fingerprint import fingerprint
from tlm_repro.evaluation.training_curve import METRICS
from tlm_repro.records.manifests import ModelManifest
from tlm_repro.spec.run import RunSpec


@dataclass(frozen=True)
class Subject:
    """A model before it is loaded.

    `identity` changes whenever a weight or the tokenizer may have: partial results are kept under it. `block` is what
    the evaluation file says of the model: `run` and `model` for a run of ours, `external` for any other. `run` is None
    for the latter, as are `metrics`, the run's rows by step, and `training`, the time and device of its training.
    `load` takes a device and gives (model in evaluation mode, tokenizer).
    """

    name: str
    identity: str
    block: dict[str, Any]
    run: RunSpec | None
    load: Callable[[str], tuple[Any, Any]]
    metrics: Path | None = None
    training: dict[str, Any] | None = None


def subject(model: str) -> Subject:
    """The model that a `--model` option names.

    Args:
        model: the manifest.json of a finished run or its folder; a Hugging Face folder; `owner/name` on the hub, with
            `@revision` if need be; a .gguf file; or `package:file.gguf`, in an installed Python package.

    Raises:
        ArtifactError: a manifest of another kind, or a file of the run that isn't what its manifest says.
        EvaluationError: none of these, or it can't be had.
    """
    path = Path(model)
    manifest = path / "manifest.json" if path.is_dir() else path
    if path.name == "manifest.json" or (manifest.is_file() and path.is_dir()):
        return of_run(ModelManifest.read(manifest, verify="sha256"))
    return of_external(model)


def of_run(manifest: ModelManifest) -> Subject:
    from tlm_repro.models import pretrained

    run = manifest.spec
    files = {name: entry["sha256"] for name, entry in manifest.files.items()}
    return Subject(
        name=manifest.id,
        identity=fingerprint(files, length=16),
        block={"run": {"id": manifest.id, **run.labels.canonical()}, "model": model_facts(run)},
        run=run,
        load=lambda device: pretrained.run(manifest, device=device),
        metrics=manifest.folder / METRICS if METRICS in manifest.files else None,
        training={
            "device": manifest.device,
            "wall_time_s": manifest.wall_time_s,
            "device_seconds": manifest.summary.device_seconds,
        },
    )


def of_external(model: str) -> Subject:
    from tlm_repro.models import pretrained

    spec = pretrained.resolved(pretrained.reference(model))
    files = pretrained.local_files(spec)
    contents = {file.name: sha256_file(file) for file in files}
    # A commit of the hub stands for its files; a local folder or file has only its contents.
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
        load=lambda device: pretrained.external(spec, device=device),
    )


def model_facts(run: RunSpec) -> dict[str, Any]:
    """What tables say of a model beside its scores. FLOPs: one sequence forward, and the whole training."""
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
