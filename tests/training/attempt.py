"""One attempt at a run in a process of its own, for tests that kill it."""

import functools
import json
import os
import sys
from pathlib import Path
from typing import Any

from attempts import untracked

from tlm_repro.data.shards import TokenData
from tlm_repro.errors import TLMError
from tlm_repro.spec.run import RunSpec
from tlm_repro.training import compilation
from tlm_repro.training.trainer import pretrain


def attempt(spec: str, manifest: str, place: str, options: dict[str, Any], environment: dict[str, str]) -> None:
    """Trains `spec` into `place`/run, state in `place`/checkpoints; an error ends in its exit code."""
    os.environ.update(environment)
    folder = Path(place)
    folder.mkdir(parents=True, exist_ok=True)
    run = RunSpec.from_json(spec)
    assert isinstance(run, RunSpec)
    if backend := options.pop("backend", None):  # torch's code generator would take minutes
        compilation.compile_layers = functools.partial(compilation.compile_layers, backend=backend)
    try:
        summary = pretrain(
            run,
            TokenData.open(Path(manifest)),
            folder=folder / "run",
            checkpoints=folder / "checkpoints",
            execution=untracked(**options),
        )
    except TLMError as error:
        (folder / f"error-{environment.get('RANK', 0)}.txt").write_text(str(error))
        sys.exit(error.exit_code)
    (folder / f"summary-{environment.get('RANK', 0)}.json").write_text(json.dumps(summary))
