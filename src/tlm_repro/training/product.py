"""The finished run on disk: model, spec, metrics, and the manifest that vouches for them."""

import contextlib
import shutil
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlm_repro.architectures.accounting import forward_flops, parameters, training_flops
from tlm_repro.artifacts.files import atomic_path, check_folder_is_ours, staging, write_json
from tlm_repro.errors import ArtifactError
from tlm_repro.models.folder import write_decoder
from tlm_repro.records.manifests import ModelManifest
from tlm_repro.records.metrics import METRICS, MetricsRow, read_rows
from tlm_repro.spec.run import RunSpec
from tlm_repro.training.checkpoint import Checkpoints

if TYPE_CHECKING:
    from tlm_repro.data.shards import TokenData
    from tlm_repro.models.decoder import LanguageModel

RECORD = "finished.json"
OWN = ("model", "spec.json", METRICS, "manifest.json")


def finished(spec: RunSpec, folder: Path, checkpoints: Path) -> dict[str, Any] | None:
    """The summary of the run's product if it is complete, else None.

    A workflow deletes the manifest of a job that it lost sight of. The copy in `checkpoints` then brings it back, if
    the product still matches, so that nothing is trained twice.

    Raises:
        ArtifactError: `folder` holds another run's product, one that doesn't match its manifest, or something else.
    """
    check_folder_is_ours(folder, OWN)
    manifest = folder / "manifest.json"
    if not manifest.exists() and (checkpoints / RECORD).exists():
        with contextlib.suppress(ArtifactError), atomic_path(manifest) as candidate:
            shutil.copyfile(checkpoints / RECORD, candidate)
            ModelManifest.read(candidate, verify="sha256")
    if not manifest.exists():
        return None
    product = ModelManifest.read(manifest)
    if product.id != spec.id:
        raise ArtifactError(f"{folder} holds the run {product.id}, this is {spec.id}: name another folder")
    return product.summary.content()


def write(
    spec: RunSpec,
    data: "TokenData",
    model: "LanguageModel",
    folder: Path,
    checkpoints: Checkpoints,
    *,
    device: str,
    seconds: float,
    device_seconds: float,
) -> dict[str, Any]:
    """Writes `model/` (weights, configuration, tokenizer), `spec.json`, `metrics.jsonl`, then `manifest.json`.

    The same state gives the same files, so a run killed in here is finished by calling this again. Returns the summary.
    `seconds` is the time of all attempts, `device_seconds` the same with each attempt's times its devices.
    """
    for stray in folder.glob(".model.*"):
        shutil.rmtree(stray, ignore_errors=True)
    with staging(folder, "model") as temporary:
        tokens = data.special_tokens()
        write_decoder(model, temporary, bos_token_id=tokens.get("bos_token"), eos_token_id=tokens.get("eos_token"))
        for name in data.manifest.files:
            if name.startswith("tokenizer/"):
                shutil.copyfile(data.manifest.path(name), temporary / Path(name).name)
    write_json(folder / "spec.json", spec.canonical())
    with atomic_path(folder / METRICS) as copy:
        shutil.copyfile(checkpoints.folder / METRICS, copy)
    summary = summarise(spec, read_rows(folder / METRICS)) | {"device_seconds": round(device_seconds, 3)}
    model_files = [path for path in (folder / "model").rglob("*") if path.is_file()]
    manifest = ModelManifest.write_product(
        folder,
        id=spec.id,
        spec=spec.canonical(),
        summary=summary,
        files=[*model_files, folder / "spec.json", folder / METRICS],
        device=device,
        wall_time_s=seconds,
    )
    with atomic_path(checkpoints.folder / RECORD) as record:
        shutil.copyfile(manifest, record)
    return summary


def summarise(spec: RunSpec, rows: list[MetricsRow]) -> dict[str, Any]:
    """What tables need of a run. Losses are in nats per token.

    `final_loss` is the mean training loss of the last twentieth of the steps; `tokens_per_second` counts optimiser
    steps alone, without validation and saving. Both are None where the metrics were lost. `skipped_steps` is there
    only where batches were skipped.
    """
    length, tokens = spec.training.sequence_length, spec.training.tokens
    losses = [(row.step, row.loss) for row in rows if row.loss is not None]
    tail = [loss for step, loss in losses if step > spec.training.steps * 0.95] or [loss for _, loss in losses[-1:]]
    speeds = [row.tokens_per_second for row in rows if row.tokens_per_second is not None]
    skipped = [row.step for row in rows if row.skipped]
    summary = {
        "parameters": parameters(spec.model).total,
        "training_flops": training_flops(spec.model, tokens),
        "forward_flops_per_token": forward_flops(spec.model, length) // length,
        "tokens": tokens,
        "final_loss": statistics.fmean(tail) if tail else None,
        "validation_loss": rows[-1].validation_loss if rows else None,
        "tokens_per_second": round(statistics.harmonic_mean(speeds), 1) if speeds else None,
    }
    return summary | ({"skipped_steps": skipped} if skipped else {})
