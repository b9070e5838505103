"""Dry runs of several configurations in one process: Snakemake's start costs more than planning.

Usage: python dry_runs.py TARGET CONFIG [CONFIG ...]; prints a JSON list with the output for each configuration.
"""

import contextlib
import io
import json
import sys

from snakemake.cli import main


def dry_run(target: str, config: str) -> str:
    """What `snakemake -n` prints. Raises AssertionError, with that, if it fails."""
    output, code = io.StringIO(), None
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            main(["-n", target, "--configfile", config])
        except SystemExit as stop:
            code = stop.code
    assert code == 0, output.getvalue()
    return output.getvalue()


if __name__ == "__main__":
    print(json.dumps([dry_run(sys.argv[1], config) for config in sys.argv[2:]]))
