"""Tokenising a corpus in several jobs: a plan, and independent parts.

`write_plan` lists the corpus's files, groups them into parts and makes the tokenizer. `tokenise_parts` is job j of N:
it tokenises parts j, j + N, … A part is a folder with a manifest and is made once. `gathering.gather` joins the parts.
"""

import contextlib
import shutil
import time
from pathlib import Path
from typing import Any

from tlm_repro.artifacts.checksums import sha256_file
from tlm_repro.artifacts.files import check_folder_is_ours, read_json, write_json
from tlm_repro.artifacts.lock import exclusive
from tlm_repro.data.corpora import documents, group_into_parts, reader
from tlm_repro.data.readers.base import Source
from tlm_repro.data.tokenisation import (
    MANIFEST_COPY,
    PRODUCT_FILES,
    Splits,
    finished_manifest,
    full_disk_as_data_error,
    make_tokenizer,
    new_splits,
    tokenise,
)
from tlm_repro.errors import ArtifactError, ConfigError
from tlm_repro.records.manifests import PartManifest
from tlm_repro.records.tokenisation import TokenisationJob
from tlm_repro.spec.base import Spec
from tlm_repro.spec.data import Corpus, DataSpec

PART_SHARD_TOKENS = 2**25  # tokens in a part's write buffer: 64 MB
MARGIN = 1.1  # a part is beyond the budgets if the files before it are estimated to hold this many times the budgets


class Plan(Spec):
    """The plan that all jobs read."""

    spec: DataSpec
    corpus: Corpus  # the spec's, at a fixed commit
    tokenizer_sha256: str
    eos_token_id: int
    parts: tuple[tuple[Source, ...], ...]

    def part_spec(self, index: int) -> dict[str, Any]:
        """Everything that a part's bytes depend on."""
        return {
            "data": self.spec.canonical(),
            "tokenizer": self.tokenizer_sha256,
            "eos": self.eos_token_id,
            "sources": [source.canonical() for source in self.parts[index]],
        }

    def title(self, index: int) -> str:
        files = self.parts[index]
        return f"part {index} ({files[0].name}{f' and {len(files) - 1} more files' if len(files) > 1 else ''})"


def plan_path(folder: Path) -> Path:
    return folder / "parts" / "plan.json"


def record_path(folder: Path, job: int, jobs: int) -> Path:
    return folder / "parts" / f"job-{job}-of-{jobs}.json"


def part_folder(folder: Path, index: int) -> Path:
    return folder / "parts" / f"{index:05}"


def write_plan(spec: DataSpec, folder: Path) -> Plan:
    """Writes the tokenizer and `parts/plan.json` to the data set's `folder`. Parts of an equal plan stay valid.

    Raises:
        DataError: the corpus or the tokenizer is unavailable.
    """
    check_folder_is_ours(folder, PRODUCT_FILES)
    with exclusive(folder), full_disk_as_data_error(folder, "free some space and run the same command again"):
        corpus_reader = reader(spec.corpus)
        sources = corpus_reader.sources()
        corpus = corpus_reader.at_version_of(sources)
        finished = finished_manifest(spec, folder)
        if finished is None:
            for name in ("manifest.json", MANIFEST_COPY, "tokenizer"):
                remove(folder / name)
            tokenizer = make_tokenizer(spec.model_copy(update={"corpus": corpus}))
            tokenizer.save_pretrained(folder / "tokenizer")
            eos_token_id = tokenizer.eos_token_id
        else:
            eos_token_id = finished.summary.eos_token_id
        plan = Plan(
            spec=spec,
            corpus=corpus,
            tokenizer_sha256=sha256_file(folder / "tokenizer" / "tokenizer.json"),
            eos_token_id=eos_token_id,
            parts=group_into_parts(corpus, sources),
        )
        write_json(plan_path(folder), plan.canonical())
        return plan


def read_plan(folder: Path) -> Plan:
    """Reads the plan. Raises ArtifactError if there is none, or the tokenizer isn't the one it was made with."""
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


def finished_part(plan: Plan, folder: Path, index: int) -> PartManifest | None:
    """The manifest of a part; None if the part is unfinished or damaged."""
    with contextlib.suppress(ArtifactError):
        manifest = PartManifest.read(part_folder(folder, index) / "manifest.json")
        if manifest.spec == plan.part_spec(index):
            return manifest
    return None


def tokenise_parts(folder: Path, *, job: int, jobs: int, workers: int) -> TokenisationJob:
    """Makes parts `job`, `job` + `jobs`, … that aren't finished; writes and returns the job's record.

    Stops at the first part beyond the budgets, as estimated from the finished parts and the sizes of the files before
    it. `gather` doesn't need such parts, or makes them itself.

    Raises:
        ConfigError: there is no job of that number.
        ArtifactError: there is no plan.
        DataError: a source can't be read, or the disk is full. Finished parts are kept.
    """
    if not 0 <= job < jobs:
        raise ConfigError(f"job {job} of {jobs}: jobs are numbered from 0 to {jobs - 1}")
    plan = read_plan(folder)
    made: list[int] = []
    beyond: list[int] = []
    if finished_manifest(plan.spec, folder) is None:
        indices = range(job, len(plan.parts), jobs)
        for index in indices:
            if is_beyond_budgets(plan, folder, index):
                beyond = [later for later in indices if later >= index]
                break
            tokenise_part(plan, folder, index, workers=workers)
            made.append(index)
    record = TokenisationJob.create({"job": job, "jobs": jobs, "parts": made, "beyond": beyond})
    record.write(record_path(folder, job, jobs))
    return record


def is_beyond_budgets(plan: Plan, folder: Path, index: int) -> bool:
    """Whether the files before a part hold more than enough tokens, as estimated from the finished parts."""
    if plan.spec.train_tokens is None:
        return False
    sizes = [sum(source.size for source in part) for part in plan.parts]
    size, train, validation = 0, 0, 0
    for part in range(len(plan.parts)):
        # A part stops at the budgets, so the estimate is never too high.
        manifest = finished_part(plan, folder, part)
        if manifest is not None:
            size += sizes[part]
            train += manifest.summary.train.tokens
            validation += manifest.summary.validation.tokens
    if not size:
        return False
    share = sum(sizes[:index]) / size / MARGIN
    return train * share >= plan.spec.train_tokens and validation * share >= (plan.spec.validation_tokens or 1)


def tokenise_part(plan: Plan, folder: Path, index: int, *, workers: int) -> None:
    """Makes one part, unless it is finished."""
    target = part_folder(folder, index)
    remedy = f"free some space and run the same command again to continue with {plan.title(index)}"
    with exclusive(target):
        if finished_part(plan, folder, index) is not None:
            return
        start = time.monotonic()
        empty(target)
        try:
            with full_disk_as_data_error(folder, remedy):
                splits = new_splits(plan.spec, target, shard_tokens=min(PART_SHARD_TOKENS, plan.spec.shard_tokens))
                tokenise_sources(plan, folder, index, splits, target, workers=workers)
                files = [path for path in target.rglob("*") if path.is_file() and path.name != ".lock"]
                PartManifest.write_product(
                    target,
                    id=f"{plan.spec.name}/{index}",
                    spec=plan.part_spec(index),
                    summary={split.name: split.summary() for split in splits},
                    files=files,
                    device="cpu",
                    wall_time_s=time.monotonic() - start,
                )
        except BaseException:
            empty(target)
            raise


def empty(folder: Path) -> None:
    """Removes everything that an earlier attempt at a part wrote, the manifest first."""
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
