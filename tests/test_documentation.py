"""The documentation leads somewhere: links, the index of docs/, and the README's tree."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = [path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith((".", "results", "tests"))]
PATHS = [*ROOT.glob("*.md"), ROOT / "results/README.md", *(path for folder in FOLDERS for path in folder.rglob("*.md"))]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in PATHS)


def prose(page: Path) -> str:
    """The page without its code blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings: lower case, spaces as hyphens, other signs left out."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_to_a_file_and_a_heading(name: str):
    page = ROOT / name
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)) if "://" not in link]
    for path, _, anchor in (link.partition("#") for link in links):
        target = page.parent / path if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


@pytest.mark.parametrize("name", PAGES)
def test_every_path_of_the_repository_exists(name: str):
    folders = "config|containers|docs|profiles|src|tests|tools|workflow"
    text = (ROOT / name).read_text()
    made = set(re.findall(r'^```python title="([^"]+)"$', text, re.MULTILINE))  # files that a recipe has one write
    paths = re.findall(rf"(?<![\w./-])((?:{folders})/[\w./-]*\w|benchmarks/\w+\.py)", text)
    assert [path for path in paths if path not in made and not (ROOT / path).exists()] == []


def test_the_index_has_every_page_of_docs():
    links = re.findall(r"\]\(([^)\s]+)\)", (ROOT / "docs/README.md").read_text())
    assert {f"{path.name}" for path in (ROOT / "docs").glob("*.md")} - {"README.md"} <= set(links)


def test_the_tree_of_the_readme_is_that_of_the_package():
    (tree,) = re.findall(r"^src/tlm_repro/\n((?:  .+\n)+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    named = {name.strip() for line in tree.splitlines() for name in re.split(r" {2,}", line.strip())[0].split(",")}
    package = ROOT / "src/tlm_repro"
    packages = {f"{path.parent.name}/" for path in package.glob("*/__init__.py")}
    modules = {path.stem for path in package.glob("*.py") if not path.stem.startswith("__")}
    assert named == packages | modules
