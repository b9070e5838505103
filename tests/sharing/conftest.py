"""A producer's repository with finished products and both remotes, and clones of it: real git, real DVC."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from products import finish
from small_workflow import ROOT, small_config

SHARED = (".dvc/config", ".dvc/.gitignore", ".dvcignore", ".gitignore", "dvc.yaml", "Snakefile")
EMPTY = ".dvc/cache/files/md5/d7/51713988987e9331980363e24189ce.dir"
Run = Callable[..., str]


def environment(folder: Path) -> dict[str, str]:
    # Not the parent of a resolved path: the environment's python is a link to the system's.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    identity = {f"GIT_{who}_{what}": "t@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    private = {"HOME": str(folder), "DVC_NO_ANALYTICS": "1", "TLM_CACHE": str(folder / "checksums")}
    return {**os.environ, **identity, **private, "PATH": path, "DVC_SITE_CACHE_DIR": str(folder / "dvc")}


@pytest.fixture(scope="session")
def run() -> Run:
    def execute(folder: Path, command: str, *, code: int = 0) -> str:
        """Output of a shell command in a repository; its exit code must be `code`."""
        done = subprocess.run(
            command, shell=True, cwd=folder, capture_output=True, text=True, env=environment(folder.parent)
        )
        output = done.stdout + done.stderr
        assert done.returncode == code, f"{command}: {output}"
        return output

    return execute


def repository(folder: Path, run: Run) -> Path:
    """What the repository holds for the workflow and for DVC, with a small configuration, committed."""
    for name in SHARED:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    for name in ("workflow", "profiles"):
        shutil.copytree(ROOT / name, folder / name)
    (folder / EMPTY).parent.mkdir(parents=True)
    (folder / EMPTY).write_text("[]")
    config = small_config()
    config["experiments"] = {name: config["experiments"][name] for name in ("motivation", "main")}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    run(folder, f"git init -q -b main && git add -A && git add -f {EMPTY} && git commit -qm repository")
    return folder


@pytest.fixture(scope="session")
def producer(tmp_path_factory: pytest.TempPathFactory, run: Run) -> Path:
    """All finished and published. Tests read it, or clone it."""
    folder = repository(tmp_path_factory.mktemp("lab") / "producer", run)
    finish(folder)
    run(folder, "tlm-repro publish && git add dvc.lock artifacts && git commit -qm results")
    return folder


@pytest.fixture(scope="session")
def rendered(producer: Path, run: Run) -> Path:
    """The producer, with tables, figures and claims."""
    run(producer, "snakemake --cores 2 tables figures claims")
    return producer


@pytest.fixture
def lab(producer: Path, tmp_path: Path, run: Run) -> Path:
    """A folder of one's own for clones, with a copy of the weights' remote beside them."""
    weights = producer.parent / "tlm-repro-weights"
    shutil.copytree(weights, tmp_path / weights.name)
    run(tmp_path, f"git clone -q {producer} colleague")
    return tmp_path


@pytest.fixture
def clone(lab: Path) -> Path:
    return lab / "colleague"
