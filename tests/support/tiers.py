"""Tiers of tests, and which of them share a process. tests/conftest.py takes the hooks from here.

`fast`      functions: no process is started, neither transformers nor datasets is loaded. Under a minute: `make check`
`process`   starts processes, trains, or loads models and data sets through Hugging Face's libraries
`workflow`  runs Snakemake, DVC or a cluster

A test is fast unless TIERS names its file or a folder above it. `@pytest.mark.process` makes an exception of one test
in a fast file. The fast tier is guarded: a test that starts a process or imports one of HEAVY fails with the remedy.
"""

import inspect
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
NAMES = ("fast", "process", "workflow")
# The longest path counts.
TIERS = {
    "cluster": "workflow",
    "data": "process",
    "data/test_batches.py": "fast",
    "evaluation": "process",
    "models/hugging_face": "process",
    **{f"models/test_{name}.py": "process" for name in ("decoder", "folder", "initialisation")},
    "novelty": "process",
    "sharing": "workflow",
    "test_cli.py": "process",
    "test_contributing.py": "workflow",
    "test_workflow.py": "workflow",
    "training": "process",
    "workflow": "workflow",
}
# Folders whose files share what takes long to make. With pytest-xdist, one process runs all tests of such a folder; of
# other folders, all tests of a file.
TOGETHER = ("sharing",)
HEAVY = ("accelerate", "datasets", "lm_eval", "transformers")
STARTS = ("os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen")


def tier_of(path: Path) -> str:
    """The tier of a file of tests."""
    parts = path.relative_to(TESTS).parts
    prefixes = ("/".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((TIERS[prefix] for prefix in prefixes if prefix in TIERS), "fast")


def group_of(path: Path) -> str:
    """Tests of one group run in one process, one after another."""
    file = path.relative_to(TESTS)
    return file.parts[0] if file.parts[0] in TOGETHER else file.as_posix()


def is_import_of_a_library() -> bool:
    """Whether what happens now is done by an installed library that is being imported.

    Importing torch built for CUDA has ctypes ask ldconfig for a library; importing Matplotlib for the first time in a
    home asks fc-list for its fonts.
    """
    frame = inspect.currentframe()
    while frame is not None and "site-packages" not in frame.f_code.co_filename:
        if frame.f_code.co_filename.startswith(str(TESTS.parent)) and frame.f_code.co_filename != __file__:
            return False
        frame = frame.f_back
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        if frame.f_code.co_filename.startswith(str(TESTS)):
            return False
        frame = frame.f_back
    return frame is not None


class Guard:
    """Refuses what a fast test must not do, while it is on. An audit hook of Python's: it can't be removed."""

    on = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        package = arguments[0].partition(".")[0] if event == "import" else ""
        if package in HEAVY or (event in STARTS and not is_import_of_a_library()):
            self.on = False
            what = f"imports {package}" if package else "starts a process"
            pytest.fail(f"A fast test {what}. Mark it `process`, or name its file in TIERS of tests/support/tiers.py.")


GUARD = Guard()


def pytest_configure() -> None:
    sys.addaudithook(GUARD)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`-m fast` doesn't import the files of other tiers."""
    if config.option.markexpr == "fast" and collection_path.name.startswith("test_"):
        return True if tier_of(collection_path) != "fast" else None
    return None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """With `-m fast` the guard is on while files are imported. Otherwise others may have imported all there is."""
    GUARD.on = collector.config.option.markexpr == "fast"
    try:
        return (yield)
    finally:
        GUARD.on = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks each test with its tier and group, and sorts by tier.

    In one process fast tests come first. Among several the slow ones do: no process then waits long for another's last.
    """
    for item in items:
        if not any(item.get_closest_marker(name) for name in NAMES):
            item.add_marker(tier_of(item.path))
        item.add_marker(pytest.mark.xdist_group(group_of(item.path)))
    items.sort(
        key=lambda item: max(NAMES.index(name) for name in NAMES if item.get_closest_marker(name)),
        reverse="PYTEST_XDIST_WORKER" in os.environ,
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    GUARD.on = item.get_closest_marker("fast") is not None
    try:
        return (yield)
    finally:
        GUARD.on = False
