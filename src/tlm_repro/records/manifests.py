"""The manifests of stage products, typed by kind: what a product was made from, what came of it, and its files."""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, Unpack

from pydantic import Field, PrivateAttr
from typing_extensions import TypedDict

from tlm_repro.architectures.accounting import forward_flops, parameters, training_flops
from tlm_repro.artifacts.fingerprint import fingerprint
from tlm_repro.artifacts.manifest import Kind, Product, manifest_content, read_manifest
from tlm_repro.errors import ArtifactError
from tlm_repro.records.base import Count, Hash, Loss, Mismatch, Positive, Record, Seconds, canonical, check_equal
from tlm_repro.spec.data import DataSpec
from tlm_repro.spec.evaluation import NeedleSamplesSpec
from tlm_repro.spec.metrics import NEEDLES
from tlm_repro.spec.run import RunSpec

PRODUCT_FOLDER = re.compile(r"-[0-9a-f]{8}$")
SHARD_HEADER = 128  # bytes before the tokens of a .npy file
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class FileEntry(TypedDict):
    """A file's bytes and the hash of its contents."""

    size: Count
    sha256: Sha256


class Manifest(Record):
    """`manifest.json` in the folder of a product. One subclass a kind types `spec` and `summary`.

    `wall_time_s` is that of all attempts, `device` that of the last.
    """

    KIND: ClassVar[Kind]
    schema_: Literal[1] = Field(alias="schema")
    kind: str
    id: str
    spec: Any
    summary: Any
    files: dict[str, FileEntry] = Field(min_length=1)
    versions: dict[str, str]
    device: str
    wall_time_s: Seconds
    _folder: Path = PrivateAttr(default=Path())

    @property
    def folder(self) -> Path:
        """Where the product lies now."""
        return self._folder

    def path(self, name: str) -> Path:
        """The path of a file of the product. Raises ArtifactError where the manifest doesn't name it."""
        if name not in self.files:
            raise ArtifactError(
                f"{self.folder}/manifest.json lists no file '{name}': it lists {', '.join(sorted(self.files))}. Delete "
                "the folder and run its stage again."
            )
        return self.folder / name

    @classmethod
    def read(cls, path: Path, *, verify: Literal["size", "sha256"] = "size") -> Self:
        """Reads a manifest and checks it, and its files by size, or by sha256 too: once, then it is remembered.

        Raises ArtifactError, naming the file, where it describes another kind of product, contradicts itself or its
        files, or can't be read.
        """
        product = read_manifest(path, kind=cls.KIND, verify=verify)
        values = {name: value for name, value in vars(product).items() if name != "folder"}
        record = cls.from_values({"schema": 1, **values}, path)
        record._folder = path.parent
        return record

    @classmethod
    def write_product(
        cls,
        folder: Path,
        **product: Unpack[Product],
    ) -> Path:
        """Writes `folder/manifest.json`, the last act of a stage, and returns its path."""
        cls.create(manifest_content(folder, kind=cls.KIND, **product)).write(folder / "manifest.json")
        return folder / "manifest.json"

    def check_name(self, path: Path) -> None:
        folder = path.absolute().parent.name
        if PRODUCT_FOLDER.search(folder):
            check_equal("id", self.id, folder, "The folder has the product's id,")

    def check_files(self, expected: Collection[str]) -> None:
        """Raises Mismatch where one of these files isn't named."""
        if absent := sorted(set(expected) - set(self.files)):
            raise Mismatch("files", sorted(self.files), f"'{absent[0]}' is one of them.")


class PartSplit(Record):
    """Training or held-out tokens of one part, perhaps none: `bytes` of UTF-8 text, lengths of `shards` in tokens."""

    documents: Count
    tokens: Count
    bytes: Count
    shards: tuple[Positive, ...]

    def check(self) -> None:
        check_equal("tokens", self.tokens, sum(self.shards), "The shards hold")


class SplitSummary(PartSplit):
    """The same of a whole data set, of which no split is empty."""

    documents: Positive
    tokens: Positive
    bytes: Positive

    def check_shards(self, name: str, manifest: Manifest, *, longest: int, item: int) -> None:
        """Raises Mismatch where the shards aren't full but for the last, or a file can't hold its tokens.

        Args:
            longest: tokens of a full shard.
            item: bytes of a token.
        """
        if any(length != longest for length in self.shards[:-1]) or self.shards[-1] > longest:
            raise Mismatch(f"summary.{name}.shards", self.shards, f"All but the last have {longest} tokens.")
        for index, length in enumerate(self.shards):
            file = f"{name}/{index:05}.npy"
            manifest.check_files([file])
            check_equal(f"files.{file}.size", manifest.files[file]["size"], SHARD_HEADER + item * length, "It takes")
        shards = [file for file in manifest.files if file.startswith(f"{name}/")]
        check_equal(f"summary.{name}.shards", len(self.shards), len(shards), "Shards among the files:")


class DataSummary(Record):
    """A tokenised corpus: the model's vocabulary, the type of a token in a shard, and both splits."""

    vocab_size: Positive
    dtype: Literal["uint16", "uint32"]
    eos_token_id: Count
    tokenizer_sha256: Sha256
    train: SplitSummary
    validation: SplitSummary


class DataManifest(Manifest):
    """`results/data/<corpus>-<fingerprint>/manifest.json`."""

    KIND = "data"
    kind: Literal["data"]
    spec: Annotated[DataSpec, canonical]
    summary: DataSummary

    def check(self) -> None:
        spec, summary = self.spec, self.summary
        check_equal("id", self.id, spec.name, "By the spec it is")
        check_equal("summary.vocab_size", summary.vocab_size, spec.tokenizer.vocab_size, "The spec has")
        dtype = "uint16" if summary.vocab_size <= 2**16 else "uint32"
        check_equal("summary.dtype", summary.dtype, dtype, "By the vocabulary it is")
        if summary.eos_token_id >= summary.vocab_size:
            raise Mismatch("summary.eos_token_id", summary.eos_token_id, f"Ids are below {summary.vocab_size}.")
        self.check_files(["tokenizer/tokenizer.json", "validation.jsonl"])
        own = self.files["tokenizer/tokenizer.json"]["sha256"]
        check_equal("summary.tokenizer_sha256", summary.tokenizer_sha256, own, "files has")
        for name, split, budget in (
            ("train", summary.train, spec.train_tokens),
            ("validation", summary.validation, spec.validation_tokens),
        ):
            split.check_shards(name, self, longest=spec.shard_tokens, item=2 if dtype == "uint16" else 4)
            if budget is not None and split.tokens > budget:
                raise Mismatch(f"summary.{name}.tokens", split.tokens, f"The spec asks for {budget} at most.")


class PartSummary(Record):
    train: PartSplit
    validation: PartSplit


class PartManifest(Manifest):
    """`<data set>/parts/<number>/manifest.json`: some files of a corpus, while many jobs tokenise it."""

    KIND = "part"
    kind: Literal["part"]
    spec: dict[str, Any]
    summary: PartSummary

    def check(self) -> None:
        data = DataSpec.from_values(self.spec.get("data"), "spec.data")
        if self.id.rpartition("/")[0] != data.name:
            raise Mismatch("id", self.id, f"By the spec it is a part of '{data.name}'.")


class ModelSummary(Record):
    """A trained model. Losses in nats per token; None where the metrics were lost.

    `skipped_steps` is there only where batches were skipped; `device_seconds` counts each attempt's time times its
    devices.
    """

    parameters: Positive
    training_flops: Positive
    forward_flops_per_token: Positive
    tokens: Positive
    final_loss: Loss | None
    validation_loss: Loss | None
    tokens_per_second: Annotated[float, Field(gt=0)] | None
    skipped_steps: tuple[Positive, ...] = ()
    device_seconds: Seconds | None = None  # absent in the first manifests


class ModelManifest(Manifest):
    """`results/models/<run>/manifest.json`."""

    KIND = "model"
    kind: Literal["model"]
    spec: Annotated[RunSpec, canonical]
    summary: ModelSummary

    def check(self) -> None:
        spec, summary, model = self.spec, self.summary, self.spec.model
        check_equal("id", self.id, spec.id, "By the spec it is")
        length, tokens = model.sequence_length, spec.training.tokens
        for name, value in {
            "parameters": parameters(model).total,
            "training_flops": training_flops(model, tokens),
            "forward_flops_per_token": forward_flops(model, length) // length,
            "tokens": tokens,
        }.items():
            check_equal(f"summary.{name}", getattr(summary, name), value, "By the spec it is")
        if any(not 1 <= step <= spec.training.steps for step in summary.skipped_steps):
            raise Mismatch("summary.skipped_steps", summary.skipped_steps, f"Steps: 1 to {spec.training.steps}.")
        if len(summary.skipped_steps) > spec.training.skip_nonfinite:
            raise Mismatch("summary.skipped_steps", summary.skipped_steps, "The spec lets fewer be skipped.")
        self.check_files(["spec.json", "metrics.jsonl", "model/config.json"])


class CellSummary(Record):
    """The samples of one task at one length; `tokens` of the shortest and the longest prompt."""

    samples: Positive
    tokens: tuple[Positive, Positive]


class SamplesSummary(Record):
    """`tokenizer` is the hash of the one that measured the prompts; `cells` has `niah_<task>_<length>`."""

    tokenizer: Hash
    cells: dict[str, CellSummary]


class SamplesManifest(Manifest):
    """`results/needles/niah-<corpus>-<fingerprint>/manifest.json`."""

    KIND = "samples"
    kind: Literal["samples"]
    spec: Annotated[NeedleSamplesSpec, canonical]
    summary: SamplesSummary

    def check(self) -> None:
        spec, cells = self.spec, self.summary.cells
        check_equal("id", self.id, spec.name, "By the spec it is")
        names = {f"{NEEDLES}{task}_{length}": length for task in spec.tasks for length in spec.lengths}
        check_equal("summary.cells", sorted(cells), sorted(names), "The spec asks for")
        for name, length in names.items():
            key, (low, high) = f"summary.cells.{name}", cells[name].tokens
            check_equal(f"{key}.samples", cells[name].samples, spec.samples, "The spec has")
            if not low <= high <= length - spec.generated_tokens:
                raise Mismatch(f"{key}.tokens", (low, high), f"With the answer, {length} is the most.")
        self.check_files([f"{task}_{length}.parquet" for task in spec.tasks for length in spec.lengths])


class Source(Record):
    """Where the items of one task came from; null where it isn't known.

    `revision` is what was asked for, null for a mirror; `commit` is what the hub resolved it to. `sha256` is that of
    the rows, not of the file.
    """

    dataset: str
    config: str | None
    split: str
    revision: str | None
    commit: str | None
    rows: Positive
    sha256: Sha256
    task_version: float | str | None
    lm_eval: str


class BenchmarksSummary(Record):
    tasks: dict[str, Source]


class BenchmarksManifest(Manifest):
    """`manifest.json` of a folder that `tlm-repro fetch-benchmarks` made."""

    KIND = "benchmarks"
    kind: Literal["benchmarks"]
    spec: dict[str, Any]
    summary: BenchmarksSummary

    def check(self) -> None:
        tasks = self.summary.tasks
        own = f"benchmarks-{fingerprint({task: source.sha256 for task, source in tasks.items()})}"
        check_equal("id", self.id, own, "By the tasks' rows it is")
        spec = {"tasks": {task: {"revision": source.revision} for task, source in tasks.items()}}
        check_equal("spec", self.spec, spec, "By the summary it is")
        self.check_files([f"{task}/{name}" for task in tasks for name in ("items.parquet", "source.json")])
