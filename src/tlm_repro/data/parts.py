"""Tokenising shared by many jobs: a plan, and parts that don't depend on each other.

`start` lists the corpus's files, groups them into parts and makes the tokenizer. `tokenise_parts` is one of N jobs: it
does parts j, j + N, … A part is a folder with a manifest, and is done once. `gathering.gather` joins them.
"""

import contextlib
import shutil
import time
from pathlib import Path
from typing import Any

from tlm_repro.artifacts.checksums import sha256_file
from tlm_repro.artifacts.files import check_folder_is_ours, read_json, write_json
from tlm_repro.artifacts.lock import exclusive
from tlm_repro.artifacts.manifest import Manifest, read_manifest, write_manifest
from tlm_repro.data.corpora import documents, grouped, reader
from tlm_repro.data.readers.base import Source
from tlm_repro.data.tokenisation import (
    FINISHED,
    OWN,
    Splits,
    finished,
    make_tokenizer,
    new_splits,
    room_on_disk,
    tokenise,
)
from tlm_repro.errors import ArtifactError, ConfigError
from tlm_repro.spec.base import Spec
from tlm_repro.spec.data import Corpus, DataSpec

PART_SHARD_TOKENS = 2**25  # what a part's writer buffers: 64 MB
MARGIN = 1.1  # a part is beyond the budgets if, by the sizes of the files before it, they are met so many times over


class Plan(Spec):
    """What the jobs share."""

    spec: DataSpec
    corpus: Corpus  # of the spec, at a fixed commit
    tokenizer_sha256: str
    eos_token_id: int
    parts: tuple[tuple[Source, ...], ...]

    def part_spec(self, index: int) -> dict[str, Any]:
        """All that a part's bytes depend on."""
        rest = {"data": self.spec.canonical(), "tokenizer": self.tokenizer_sha256, "eos": self.eos_token_id}
        return {**rest, "sources": [source.canonical() for source in self.parts[index]]}

    def title(self, index: int) -> str:
        files = self.parts[index]
        return f"part {index} ({files[0].name}{f' and {len(files) - 1} more files' if len(files) > 1 else ''})"


def plan_path(folder: Path) -> Path:
    return folder / "parts" / "plan.json"


def record_path(folder: Path, job: int, jobs: int) -> Path:
    return folder / "parts" / f"job-{job}-of-{jobs}.json"


def part_folder(folder: Path, index: int) -> Path:
    return folder / "parts" / f"{index:05}"


def start(spec: DataSpec, folder: Path) -> Plan:
    """Writes the tokenizer and `parts/plan.json` to `folder`, the data set's; parts of an equal plan stay valid.

    Raises:
        DataError: the corpus or the tokenizer can't be had.
    """
    check_folder_is_ours(folder, OWN)
    with exclusive(folder), room_on_disk(folder, "free some space and run this again"):
        corpus_reader = reader(spec.corpus)
        sources = corpus_reader.sources()
        corpus = corpus_reader.pinned(sources)
        done = finished(spec, folder)
        if done is None:
            for name in ("manifest.json", FINISHED, "tokenizer"):
                remove(folder / name)
            tokenizer = make_tokenizer(spec.model_copy(update={"corpus": corpus}))
            tokenizer.save_pretrained(folder / "tokenizer")
            end = tokenizer.eos_token_id
        else:
            end = done.summary["eos_token_id"]
        plan = Plan(
            spec=spec,
            corpus=corpus,
            tokenizer_sha256=sha256_file(folder / "tokenizer" / "tokenizer.json"),
            eos_token_id=end,
            parts=grouped(corpus, sources),
        )
        write_json(plan_path(folder), plan.canonical())
        return plan


def read_plan(folder: Path) -> Plan:
    """Raises ArtifactError when there is no plan, or the tokenizer beside it isn't the one it was made with."""
    path = plan_path(folder)
    try:
        plan = Plan.from_values(read_json(path), str(path))
    except ConfigError as error:
        raise ArtifactError(f"{error}: delete it and run `tlm-repro tokenize-start` again") from None
    file = folder / "tokenizer" / "tokenizer.json"
    if not file.is_file() or sha256_file(file) != plan.tokenizer_sha256:
        raise ArtifactError(f"{file} isn't the tokenizer of {path}: run `tlm-repro tokenize-start` again")
    return plan


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def finished_part(plan: Plan, folder: Path, index: int) -> Manifest | None:
    """The manifest of a part that is done and whole."""
    with contextlib.suppress(ArtifactError):
        manifest = read_manifest(part_folder(folder, index) / "manifest.json", kind="part")
        if manifest.spec == plan.part_spec(index):
            return manifest
    return None


def tokenise_parts(folder: Path, *, job: int, jobs: int, workers: int) -> dict[str, Any]:
    """Does parts `job`, `job` + `jobs`, … that aren't done yet; writes and returns what this job did.

    It stops at the first part that lies beyond the budgets, going by the parts that are done and the sizes of the
    files before it. `gather` needs none of those, or does it itself.

    Raises:
        ConfigError: there is no job of that number.
        ArtifactError: there is no plan.
        DataError: a source can't be read, or the disk is full; parts that are done stay.
    """
    if not 0 <= job < jobs:
        raise ConfigError(f"job {job} of {jobs}: jobs are numbered from 0 to {jobs - 1}")
    plan = read_plan(folder)
    record: dict[str, Any] = {"job": job, "jobs": jobs, "parts": [], "beyond": []}
    if finished(plan.spec, folder) is None:
        mine = range(job, len(plan.parts), jobs)
        for index in mine:
            if beyond(plan, folder, index):
                record["beyond"] = [one for one in mine if one >= index]
                break
            tokenise_part(plan, folder, index, workers=workers)
            record["parts"].append(index)
    write_json(record_path(folder, job, jobs), record)
    return record


def beyond(plan: Plan, folder: Path, index: int) -> bool:
    """Whether the files before a part hold more than enough tokens, as far as the parts that are done can tell."""
    if plan.spec.train_tokens is None:
        return False
    sizes = [sum(source.size for source in part) for part in plan.parts]
    size, train, validation = 0, 0, 0
    for one in range(len(plan.parts)):
        # A part's own product stops at the budgets, so this can only be too low.
        manifest = finished_part(plan, folder, one)
        if manifest is not None:
            size += sizes[one]
            train += manifest.summary["train"]["tokens"]
            validation += manifest.summary["validation"]["tokens"]
    if not size:
        return False
    share = sum(sizes[:index]) / size / MARGIN
    return train * share >= plan.spec.train_tokens and validation * share >= (plan.spec.validation_tokens or 1)


def tokenise_part(plan: Plan, folder: Path, index: int, *, workers: int) -> None:
    """Makes one part, unless it is done already."""
    target = part_folder(folder, index)
    rest = f"the parts that are done stay: free some space and go on with {plan.title(index)}"
    with exclusive(target):
        if finished_part(plan, folder, index) is not None:
            return
        began = time.monotonic()
        empty(target)
        try:
            with room_on_disk(folder, rest):
                splits = new_splits(plan.spec, target, shard_tokens=min(PART_SHARD_TOKENS, plan.spec.shard_tokens))
                tokenise_sources(plan, folder, index, splits, target, workers=workers)
                files = [path for path in target.rglob("*") if path.is_file() and path.name != ".lock"]
                write_manifest(
                    target,
                    kind="part",
                    id=f"{plan.spec.name}/{index}",
                    spec=plan.part_spec(index),
                    summary={split.name: split.summary() for split in splits},
                    files=files,
                    device="cpu",
                    wall_time_s=time.monotonic() - began,
                )
        except BaseException:
            empty(target)
            raise


def empty(folder: Path) -> None:
    """Removes all that an earlier attempt at a part wrote, the manifest first."""
    remove(folder / "manifest.json")
    for path in folder.iterdir():
        if path.name != ".lock":
            remove(path)


def tokenise_sources(plan: Plan, folder: Path, index: int, splits: Splits, target: Path, *, workers: int) -> None:
    tokenise(
        documents(plan.corpus, plan.parts[index]),
        splits,
        plan.spec,
        tokenizer=folder / "tokenizer",
        held_out_file=target / "validation.jsonl",
        eos_token_id=plan.eos_token_id,
        workers=workers,
    )
