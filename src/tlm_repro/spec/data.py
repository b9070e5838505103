"""What tokenising is asked to do: corpora, tokenizers and the split."""

from typing import Annotated, Literal

from pydantic import Field

from tlm_repro.artifacts.fingerprint import fingerprint
from tlm_repro.spec.base import Integer, Number, Section, Spec, slug


class PackageCorpus(Spec):
    """One document a text file, from an installed Python package: the default, since pip alone brings it."""

    kind: Literal["package"] = "package"
    package: str = Field(pattern=r"^[A-Za-z0-9][\w.-]*$", description="The installed package.")
    version: str = Field(description="Its version; another one installed is an error.")
    pattern: str = Field(default="**/*.txt", pattern=r"^[^/]", description="Which of its files are documents.")

    @property
    def title(self) -> str:
        return self.package


class FilesCorpus(Spec):
    """Local files: one document a text file, or one a row of JSONL or Parquet. Their contents are no part of an id."""

    kind: Literal["files"] = "files"
    paths: tuple[str, ...] = Field(
        min_length=1, description="Files or patterns such as `texts/*.txt`, relative to where the workflow runs."
    )
    format: Literal["text", "jsonl", "parquet"] = Field(
        description="A document a file, or a document a row. JSONL may be compressed: `.gz`, `.bz2`, `.xz` or `.zst`."
    )
    field: str = Field(default="text", description="The rows' field that holds the text.")
    version: str | None = Field(default=None, description="Your name for the contents: change it when they change.")

    @property
    def title(self) -> str:
        return "files"


class HubCorpus(Spec):
    """A Hugging Face data set, streamed."""

    kind: Literal["hub"] = "hub"
    name: str = Field(
        pattern=r"[A-Za-z0-9]", description="`owner/name` on the hub, or a local folder that `datasets` can load."
    )
    config: str | None = Field(default=None, description="The data set's configuration.")
    split: str = Field(description="The data set's split.")
    field: str = Field(default="text", description="The rows' field that holds the text.")
    revision: str = Field(default="main", description="Branch, tag or commit; only a commit is permanent.")

    @property
    def title(self) -> str:
        return self.name.rstrip("/").split("/")[-1]


AnyCorpus = PackageCorpus | FilesCorpus | HubCorpus
Corpus = Annotated[AnyCorpus, Field(discriminator="kind")]


class TrainedTokenizer(Spec):
    """Byte-level BPE with Llama 3's pre-tokenisation pattern, trained on the corpus's training documents."""

    kind: Literal["train"] = "train"
    vocab_size: int = Field(ge=258, le=2**22, description="Entries, the special tokens included.")
    training_bytes: int | None = Field(default=None, ge=1, description="Bytes of text it is trained on; null: all.")


class PretrainedTokenizer(Spec):
    """Any Hugging Face tokenizer, by hub name or folder. `vocab_size` is the model's, at least the tokenizer's."""

    kind: Literal["pretrained"] = "pretrained"
    name: str = Field(description="Hub name or local folder.")
    revision: str = Field(default="main", description="Branch, tag or commit; only a commit is permanent.")
    vocab_size: int = Field(ge=2, le=2**22, description="The model's, at least the tokenizer's.")


Tokenizer = Annotated[TrainedTokenizer | PretrainedTokenizer, Field(discriminator="kind")]


class Tokenisation(Section):
    """The corpus, its split and its tokenizer."""

    corpus: Corpus = Field(description="Where documents come from: `package`, `files` or `hub`.")
    tokenizer: Tokenizer = Field(description="`train` a byte-level BPE on the corpus, or take a `pretrained` one.")
    validation_fraction: Number = Field(
        gt=0, lt=1, description="Share of documents held out, by a hash of their name. [ours]"
    )
    train_tokens: Integer | None = Field(
        default=None, ge=1, description="Tokenise at most this many tokens; null: all."
    )
    validation_tokens: Integer | None = Field(
        default=None, ge=1, description="Hold out at most this many tokens; null: all."
    )
    shard_tokens: Integer = Field(default=100_000_000, ge=1024, le=2**32, description="Tokens in one shard file.")
    split_seed: Integer = Field(default=0, ge=0, description="Seed of the split into train and validation.")


class DataSpec(Tokenisation, Spec):
    """A tokenised corpus. A document is held out if the hash of its name falls below the fraction.

    Order and number of documents don't matter to the split.
    """

    @property
    def name(self) -> str:
        """`<corpus>-<fingerprint>`, the folder under results/data."""
        return f"{slug(self.corpus.title)}-{fingerprint(self.canonical())}"


class HeldOut(Spec):
    """The validation documents of the data set that the models were trained on."""

    kind: Literal["held_out"] = "held_out"


AnyText = Annotated[HeldOut | AnyCorpus, Field(discriminator="kind")]
