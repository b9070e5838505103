"""Manifests with any spec and summary, for tests of what reads them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tlm_repro.architectures.accounting import forward_flops, parameters, training_flops
from tlm_repro.artifacts.files import write_json
from tlm_repro.artifacts.manifest import Kind, manifest_content
from tlm_repro.spec.run import RunSpec


def write_manifest(
    folder: Path,
    *,
    kind: Kind,
    id: str,
    spec: Mapping[str, Any],
    summary: Mapping[str, Any],
    files: Iterable[Path],
    device: str = "cpu",
    wall_time_s: float = 1.0,
) -> Path:
    """Writes `folder/manifest.json`; nothing checks that spec, summary and files agree."""
    content = manifest_content(
        folder, kind=kind, id=id, spec=spec, summary=summary, files=files, device=device, wall_time_s=wall_time_s
    )
    write_json(folder / "manifest.json", content)
    return folder / "manifest.json"


def model_summary(spec: RunSpec, **changes: Any) -> dict[str, Any]:
    """The summary of a finished run."""
    length, tokens = spec.model.sequence_length, spec.training.tokens
    facts = {
        "parameters": parameters(spec.model).total,
        "training_flops": training_flops(spec.model, tokens),
        "forward_flops_per_token": forward_flops(spec.model, length) // length,
        "tokens": tokens,
        "final_loss": 5.5,
        "validation_loss": 5.25,
        "tokens_per_second": 1000.0,
        "device_seconds": 8.0,
    }
    return facts | changes


def write_model_manifest(folder: Path, spec: RunSpec, *, device: str = "cpu", **changes: Any) -> Path:
    """The manifest of the run whose files lie in `folder`; files that a run has and `folder` lacks are written."""
    for name in ("spec.json", "metrics.jsonl", "model/config.json"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text("{}\n")
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json"]
    summary = model_summary(spec, **changes)
    return write_manifest(
        folder, kind="model", id=spec.id, spec=spec.canonical(), summary=summary, files=files, device=device
    )
