"""Installs the package and its pinned dependencies into a virtual environment, if that isn't up to date.

Usage: python tools/environment.py VENV REQUIREMENT [PACKAGE_WITHOUT_DEPENDENCIES ...]

The stamp in the environment is written last. Without a stamp the environment is made anew, because a killed
installation leaves packages that look complete and aren't. This runs before anything is installed, so it uses the
standard library only.
"""

import hashlib
import json
import subprocess
import sys
import venv
from pathlib import Path

OLDEST_PYTHON = (3, 11)


def description(requirement: str, bare: list[str]) -> dict[str, str]:
    """Everything that determines the contents of the environment."""
    contents = b"".join(Path(name).read_bytes() for name in ("pyproject.toml", "constraints.txt"))
    return {
        "sources": hashlib.sha256(contents).hexdigest(),
        "place": str(Path.cwd()),  # the package is installed in place: a moved checkout needs a new installation
        "python": sys.version.split()[0],
        "bare": " ".join(bare),
        "requirement": requirement,
    }


def up_to_date(stamp: Path, target: dict[str, str]) -> bool:
    """Whether the stamp describes the target, or the target with the `test` extras, which are a superset."""
    try:
        installed = json.loads(stamp.read_text())
    except (OSError, ValueError):
        return False
    return installed in (target, {**target, "requirement": ".[test]"})


def install(folder: Path, requirement: str, bare: list[str]) -> None:
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "--constraint", "constraints.txt", "--editable", requirement], check=True)
    if bare:
        subprocess.run([*pip, "--no-deps", *bare], check=True)


def main() -> None:
    if sys.version_info < OLDEST_PYTHON:
        version = sys.version.split()[0]
        sys.exit(f"Python {version} is too old. 3.11 or newer is needed. Run make with PYTHON=python3.11.")
    folder, requirement, bare = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    stamp, target = folder / "installed.json", description(requirement, bare)
    if up_to_date(stamp, target):
        return
    fresh = not stamp.exists()
    stamp.unlink(missing_ok=True)
    size = "2–3 GB, a few minutes" if fresh else "what is missing"
    print(f"Installing {requirement} with its pinned dependencies into {folder} ({size}) …", flush=True)
    try:
        if fresh:
            venv.create(folder, clear=True, with_pip=True)
        install(folder, requirement, bare)
    except subprocess.CalledProcessError as error:
        remedy = (
            "pip failed: see its message above"
            if "install" in error.cmd
            else "The new environment has no pip: install ensurepip (Debian: python3-venv)"
        )
        sys.exit(f"{remedy}. Then run the same command again.")
    stamp.write_text(json.dumps(target, indent=2) + "\n")


if __name__ == "__main__":
    main()
