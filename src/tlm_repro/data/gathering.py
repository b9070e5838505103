"""Joining the parts of several jobs into one data set, byte for byte as `tokenisation.build` writes it."""

import io
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tlm_repro.artifacts.files import atomic_path, read_json, write_json
from tlm_repro.artifacts.fingerprint import fingerprint
from tlm_repro.artifacts.lock import exclusive
from tlm_repro.data.parts import (
    PART_SHARD_TOKENS,
    Plan,
    finished_part,
    part_folder,
    plan_path,
    read_plan,
    record_path,
    remove,
    tokenise_sources,
)
from tlm_repro.data.shards import TokenArray, shard_name
from tlm_repro.data.tokenisation import (
    Progress,
    Split,
    budgets_met,
    check_split,
    dtype_name,
    finished_manifest,
    full_disk_as_data_error,
    new_splits,
    write_data_manifest,
)
from tlm_repro.errors import ArtifactError
from tlm_repro.records.manifests import PartManifest, PartSplit
from tlm_repro.records.tokenisation import TokenisationJob
from tlm_repro.spec.data import DataSpec

COPIED_TOKENS = 2**23  # at a time


class JoinedParts:
    """The parts in order, cut off at the budgets."""

    def __init__(self, plan: Plan, folder: Path, *, jobs: int, workers: int) -> None:
        self.plan, self.folder, self.jobs, self.workers = plan, folder, jobs, workers
        self.splits = new_splits(plan.spec, folder, shard_tokens=plan.spec.shard_tokens)
        self.pieces: dict[str, list[tuple[Path, int]]] = {split.name: [] for split in self.splits}
        self.held_out_files: list[Path] = []
        for index in range(len(plan.parts)):
            if budgets_met(self.splits):
                break
            self.add(index)

    def add(self, index: int) -> None:
        """Adds a whole part or, if it must be cut off, tokenises its files again up to the budgets."""
        manifest = self.part(index)
        if manifest is None or self.must_be_cut(manifest):
            self.add_cut(index)
            return
        for split in self.splits:
            if split.full:
                continue
            summary = split_summary(manifest, split)
            split.documents += summary.documents
            split.tokens += summary.tokens
            split.bytes += summary.bytes
            self.add_shards(split, manifest.folder, summary.shards)

    def add_shards(self, split: Split, folder: Path, lengths: Sequence[int]) -> None:
        paths = [folder / split.name / shard_name(number) for number in range(len(lengths))]
        self.pieces[split.name] += zip(paths, lengths, strict=True)
        if split.name == "validation":
            self.held_out_files.append(folder / "validation.jsonl")

    def add_cut(self, index: int) -> None:
        target = self.folder / "parts" / f"cut-{index:05}"
        remove(target)
        fresh = new_splits(self.plan.spec, target, shard_tokens=min(PART_SHARD_TOKENS, self.plan.spec.shard_tokens))
        train, validation = (replace(split, writer=new.writer) for split, new in zip(self.splits, fresh, strict=True))
        tokenise_sources(self.plan, self.folder, index, (train, validation), target, workers=self.workers)
        for split in (train, validation):
            self.add_shards(split, target, split.writer.lengths)
        self.splits = train, validation

    def part(self, index: int) -> PartManifest | None:
        """The part's manifest, or None if its job skipped it as beyond the budgets.

        Raises:
            ArtifactError: the part isn't finished.
        """
        manifest = finished_part(self.plan, self.folder, index)
        if manifest is not None:
            return manifest
        job = index % self.jobs
        record = record_path(self.folder, job, self.jobs)
        if record.is_file() and index in TokenisationJob.read(record).beyond:
            return None
        raise ArtifactError(
            f"{part_folder(self.folder, index)} holds no finished {self.plan.title(index)}: run "
            f"`tlm-repro tokenize-part --folder {self.folder} --job {job} --jobs {self.jobs}`"
        )

    def must_be_cut(self, manifest: PartManifest) -> bool:
        """Whether a budget is met, or reading ends, within a part."""
        train, validation = self.splits
        if not train.documents and not validation.documents:  # the first part already stops at the budgets
            return False
        met = (
            split.budget is not None
            and not split.full
            and split.tokens + split_summary(manifest, split).tokens >= split.budget
            for split in self.splits
        )
        return any(met) or (train.full and validation.budget is None)

    def fingerprint(self) -> str:
        pieces = {name: [[str(path), length] for path, length in shards] for name, shards in self.pieces.items()}
        return fingerprint({"plan": self.plan.canonical(), "pieces": pieces}, 16)


def split_summary(manifest: PartManifest, split: Split) -> PartSplit:
    """What a part holds of a split."""
    return manifest.summary.train if split.name == "train" else manifest.summary.validation


def gather(spec: DataSpec, folder: Path, *, jobs: int, workers: int) -> dict[str, Any]:
    """Joins the parts of `jobs` jobs into the data set in `folder`; returns the manifest's summary, as `build` does.

    Shards are copied one by one, each atomically, and a second attempt continues after the last one. The parts are
    deleted at the end, so the disk holds the tokens twice until then.

    Raises:
        ArtifactError: there is no plan, the plan has another spec, or a part is missing.
        DataError: a split is empty, or the disk is full.
    """
    remedy = "free some space and run the same command again to continue after the last shard"
    with exclusive(folder), full_disk_as_data_error(folder, remedy):
        finished = finished_manifest(spec, folder)
        if finished is not None:
            remove_parts(folder)
            return finished.summary.content()
        start = time.monotonic()
        plan = read_plan(folder)
        if plan.spec != spec:
            raise ArtifactError(f"{plan_path(folder)} has another spec: run `tlm-repro tokenize-start` again")
        joined = JoinedParts(plan, folder, jobs=jobs, workers=workers)
        for split in joined.splits:
            check_split(split, spec)
        remove_stale_shards(folder, joined.fingerprint())
        for split in joined.splits:
            split.writer.lengths = copy_stream(joined.pieces[split.name], folder / split.name, spec)
        with atomic_path(folder / "validation.jsonl") as temporary, temporary.open("wb") as target:
            for path in joined.held_out_files:
                with path.open("rb") as source:
                    shutil.copyfileobj(source, target)
        summary = write_data_manifest(spec, folder, joined.splits, eos_token_id=plan.eos_token_id, start=start)
        remove_parts(folder)
        return summary


def remove_stale_shards(folder: Path, origin: str) -> None:
    """Removes the shards of an earlier attempt, unless it joined the same parts (`origin` is their fingerprint)."""
    record = folder / "parts" / "gathered.json"
    if record.is_file() and read_json(record) == origin:
        return
    for name in ("train", "validation"):
        remove(folder / name)
    write_json(record, origin)


def copy_stream(pieces: list[tuple[Path, int]], folder: Path, spec: DataSpec) -> list[int]:
    """Writes the pieces' tokens as shards of `spec.shard_tokens`, except those that exist; returns all lengths."""
    tokens = TokenArray([path for path, _ in pieces], [length for _, length in pieces])
    dtype = np.dtype(dtype_name(spec))
    starts = range(0, len(tokens), spec.shard_tokens)
    lengths = [min(spec.shard_tokens, len(tokens) - start) for start in starts]
    for path in folder.glob(".*"):  # unfinished temporaries
        remove(path)
    with Progress(f"gathering {folder.name}", "tokens", len(tokens)) as progress:
        for number, (start, length) in enumerate(zip(starts, lengths, strict=True)):
            path, header = folder / shard_name(number), npy_header(dtype, length)
            if not path.is_file() or path.stat().st_size != len(header) + length * dtype.itemsize:
                with atomic_path(path) as temporary, temporary.open("wb") as file:
                    file.write(header)
                    for offset in range(0, length, COPIED_TOKENS):
                        for piece in tokens.pieces(start + offset, min(COPIED_TOKENS, length - offset)):
                            file.write(piece.data)
            progress.add(length)
    return lengths


def npy_header(dtype: np.dtype, length: int) -> bytes:
    """The header that `np.save` writes for an array of this length."""
    buffer = io.BytesIO()
    description = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(buffer, {"descr": description, "fortran_order": False, "shape": (length,)})
    return buffer.getvalue()


def remove_parts(folder: Path) -> None:
    """Deletes the parts' tokens. The plan and the jobs' records stay, because they are outputs of Snakemake rules."""
    for path in (folder / "parts").glob("*"):
        if path.is_dir() or path.name == "gathered.json":
            remove(path)
