"""Each recipe of CONTRIBUTING.md, followed to the letter in a copy of the repository.

A recipe is a section whose title starts with "Add". Its fenced blocks are carried out in order:

- ```` ```python title="path" ```` writes a file; with `append`, its text goes to the end of one that exists;
- ```` ```yaml title="path" merge ```` merges its keys into a YAML file;
- ```` ```diff title="path" ```` replaces the lines with `-` or a space before them by those with `+` or a space;
- ```` ```console ```` runs each line that starts with `$ `; the lines below it must appear in what the command prints,
  in this order (`…` stands for any text).
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
LEFT_OUT = ("artifacts/", "docs/results/", "docs/images/")
SECTION = re.compile(r"^## (?P<title>Add .+)\n(?P<body>(?:(?!^## ).*\n?)*)", re.M)
FENCE = re.compile(r"^```(?P<language>\w+)(?P<info>[^\n]*)\n(?P<text>.*?)^```$", re.M | re.S)
TITLE = re.compile(r'title="(?P<path>[^"]+)"')


@dataclass(frozen=True)
class Block:
    language: str
    info: str
    text: str

    @property
    def path(self) -> str | None:
        match = TITLE.search(self.info)
        return match["path"] if match else None


def recipes() -> dict[str, list[Block]]:
    """Title → blocks of every recipe."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return {
        section["title"]: [
            Block(fence["language"], fence["info"], fence["text"]) for fence in FENCE.finditer(section["body"])
        ]
        for section in SECTION.finditer(text)
    }


RECIPES = recipes()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the tracked files, those that tests don't need left out, as a git repository of its own."""
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    for name in filter(None, listing):
        if name.startswith(LEFT_OUT) or not (ROOT / name).is_file():
            continue
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink():
            target.symlink_to(os.readlink(ROOT / name))
        else:
            shutil.copyfile(ROOT / name, target)
    shutil.copyfile(tmp_path / "config.yaml", tmp_path / "mine.yaml")
    return tmp_path


def merged(base: Any, change: Any) -> Any:
    """`base` with the keys of `change` put in, nested mappings merged."""
    if not isinstance(base, dict) or not isinstance(change, dict):
        return change
    return {**base, **{key: merged(base.get(key), value) for key, value in change.items()}}


def write(block: Block, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if "merge" in block.info.split():
        values = merged(yaml.safe_load(path.read_text(encoding="utf-8")), yaml.safe_load(block.text))
        path.write_text(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), encoding="utf-8")
    elif block.language == "diff":
        before, after = (
            "".join(line[1:] for line in block.text.splitlines(keepends=True) if line[0] in signs)
            for signs in ("- ", "+ ")
        )
        text = path.read_text(encoding="utf-8")
        assert text.count(before) == 1, f"{path} doesn't have these lines once:\n{before}"
        path.write_text(text.replace(before, after), encoding="utf-8")
    elif "append" in block.info.split():
        path.write_text(f"{path.read_text(encoding='utf-8')}\n\n{block.text}", encoding="utf-8")
    else:
        assert not path.exists(), f"{path} exists already: the recipe must say that it appends or merges"
        path.write_text(block.text, encoding="utf-8")


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """(command, lines it must print) of a console block; a backslash at the end of a line continues it."""
    command, expected = "", []
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if line.startswith("$ "):
            if command:
                yield command, expected
            command, expected = line.removeprefix("$ "), []
        elif line.strip():
            expected.append(line.strip())
    if command:
        yield command, expected


def run(command: str, folder: Path) -> str:
    binaries = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "PYTHONPATH": str(folder / "src"),
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, f"$ {command}\n{output}"
    return output


def test_every_kind_of_part_has_a_recipe():
    words = " ".join(RECIPES).lower()
    for part in ("curve", "architecture", "benchmark", "exhibit", "claim", "kind of corpus", "learning-rate schedule"):
        assert part in words


@pytest.mark.parametrize("title", RECIPES)
def test_recipe_does_what_it_says(title: str, checkout: Path):
    blocks = RECIPES[title]
    assert any(block.language == "console" for block in blocks), f"'{title}' runs nothing"
    for block in blocks:
        if block.path is not None:
            write(block, checkout / block.path)
        elif block.language == "console":
            for command, expected in commands(block.text):
                output = run(command, checkout)
                position = 0
                for line in expected:
                    pattern = ".*?".join(re.escape(part) for part in line.split("…"))
                    match = re.compile(pattern).search(output, position)
                    assert match, f"$ {command}\nexpected: {line}\n{output}"
                    position = match.end()
