"""Brings a virtual environment to the state that pyproject.toml and constraints.txt ask for, if it isn't there yet.

Usage: python tools/environment.py VENV REQUIREMENT [PACKAGE_WITHOUT_DEPENDENCIES ...]

The stamp in the environment is written last. Without it the environment is made anew: an installation that was killed
leaves packages that look complete and aren't. Standard library only: it runs before anything is installed.
"""

import hashlib
import json
import subprocess
import sys
import venv
from pathlib import Path

OLDEST_PYTHON = (3, 11)


def wanted(requirement: str, bare: list[str]) -> dict[str, str]:
    """What decides the environment's contents; `test` extras are a superset of the plain requirement."""
    contents = b"".join(Path(name).read_bytes() for name in ("pyproject.toml", "constraints.txt"))
    return {
        "sources": hashlib.sha256(contents).hexdigest(),
        "place": str(Path.cwd()),  # the package is installed in place: a moved checkout needs it anew
        "python": sys.version.split()[0],
        "bare": " ".join(bare),
        "requirement": requirement,
    }


def satisfied(stamp: Path, target: dict[str, str]) -> bool:
    try:
        found = json.loads(stamp.read_text())
    except (OSError, ValueError):
        return False
    superset = found.get("requirement") == ".[test]"
    return found == target or (superset and found == {**target, "requirement": ".[test]"})


def install(folder: Path, requirement: str, bare: list[str]) -> None:
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "--constraint", "constraints.txt", "--editable", requirement], check=True)
    if bare:
        subprocess.run([*pip, "--no-deps", *bare], check=True)


def main() -> None:
    if sys.version_info < OLDEST_PYTHON:
        sys.exit(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}: call make with PYTHON=python3.11")
    folder, requirement, bare = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    stamp, target = folder / "installed.json", wanted(requirement, bare)
    if satisfied(stamp, target):
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
        what = (
            "pip failed; its message stands above"
            if "install" in error.cmd
            else "no pip for a new environment: install ensurepip (Debian: python3-venv)"
        )
        sys.exit(f"{what}. Then run the same command again.")
    stamp.write_text(json.dumps(target, indent=2) + "\n")


if __name__ == "__main__":
    main()
