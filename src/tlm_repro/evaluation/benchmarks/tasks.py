"""The zero-shot benchmarks of the paper's Table 2: which lm-eval task gives which column, and where demo items lie."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlm_repro.artifacts.checksums import sha256_file
from tlm_repro.artifacts.fingerprint import fingerprint
from tlm_repro.errors import EvaluationError
from tlm_repro.spec.evaluation import ZeroShotSpec

if TYPE_CHECKING:
    from tlm_repro.data.readers.base import Document

DEMO_ITEMS = Path(__file__).parent / "demo"

# The spec's default. A change of a demo item or of the two limits below raises it: a new version is a new suite, and
# scores on old items can't pass for scores on new ones.
ITEMS_VERSION: int = ZeroShotSpec.model_fields["items_version"].default
DEMO_PAGES = 32
DEMO_PAGE_CHARACTERS = 4000


@dataclass(frozen=True)
class Benchmark:
    """One lm-eval task.

    `folder` is where lm-eval keeps it, under its tasks; `split` is the one it scores; `metrics` maps columns of
    Table 2 to lm-eval's metrics.
    """

    folder: str
    split: str
    metrics: dict[str, str]


# By lm-eval task. Table 2 names the benchmarks only; the metrics are those in the column headers of the same authors'
# earlier papers (Titans, arXiv 2501.00663, Table 1). Splits are lm-eval's own.
BENCHMARKS: dict[str, Benchmark] = {
    "wikitext": Benchmark("wikitext", "test", {"wikitext_ppl": "word_perplexity"}),
    "lambada_openai": Benchmark("lambada", "test", {"lambada_ppl": "perplexity", "lambada_acc": "acc"}),
    "piqa": Benchmark("piqa", "validation", {"piqa": "acc"}),
    "hellaswag": Benchmark("hellaswag", "validation", {"hellaswag": "acc_norm"}),
    "winogrande": Benchmark("winogrande", "validation", {"winogrande": "acc"}),
    "arc_easy": Benchmark("arc", "test", {"arc_easy": "acc"}),
    "arc_challenge": Benchmark("arc", "test", {"arc_challenge": "acc_norm"}),
    "social_iqa": Benchmark("siqa", "validation", {"siqa": "acc"}),
    "boolq": Benchmark("super_glue/boolq", "validation", {"boolq": "acc"}),
}


def benchmark(task: str) -> Benchmark:
    """Raises EvaluationError, listing the known tasks, for an unknown one."""
    if task not in BENCHMARKS:
        raise EvaluationError(f"unknown zero-shot task '{task}': choose from {', '.join(BENCHMARKS)}")
    return BENCHMARKS[task]


def local_source(task: str, items: Path, cache: Path) -> dict[str, Any]:
    """The keys of a stock task that say where its data come from, pointing at one local JSONL or Parquet file."""
    split = benchmark(task).split
    splits = {f"{name}_split": name if name == split else None for name in ("training", "validation", "test")}
    return {
        "task": task,
        "dataset_path": {".jsonl": "json", ".parquet": "parquet"}[items.suffix],
        "dataset_name": None,
        "dataset_kwargs": {"data_files": {split: str(items)}, "cache_dir": str(cache)},
        **splits,
    }


def demo_pages(documents: Iterable["Document"]) -> Iterator[dict[str, str]]:
    """The starts of held-out documents in WikiText's schema: `DEMO_PAGES` of up to `DEMO_PAGE_CHARACTERS` each."""
    pages = 0
    for document in documents:
        page = document.text.strip()
        if len(page) > DEMO_PAGE_CHARACTERS:
            page = page[: DEMO_PAGE_CHARACTERS + 1].rsplit(" ", maxsplit=1)[0]
        if page:
            yield {"page": page}
            pages += 1
        if pages == DEMO_PAGES:
            return


def items_fingerprint() -> str:
    """Fingerprint of everything that `ITEMS_VERSION` stands for."""
    files = {path.name: sha256_file(path) for path in sorted(DEMO_ITEMS.glob("*.jsonl"))}
    return fingerprint({"files": files, "pages": DEMO_PAGES, "page_characters": DEMO_PAGE_CHARACTERS}, length=16)
