"""The demo's items: this project's own, in the schemas of the benchmarks' data sets."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tlm_repro.spec.evaluation import ZeroShotSpec

if TYPE_CHECKING:
    from tlm_repro.data.corpora import Document

DEMO_ITEMS = Path(__file__).parent / "demo"

# The spec's default. Raise it when a demo item or one of the two limits below changes: a new version is a new suite, so
# scores on old items can't pass for scores on new ones.
ITEMS_VERSION: int = ZeroShotSpec.model_fields["items_version"].default
DEMO_PAGES = 32
DEMO_PAGE_CHARACTERS = 4000


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
