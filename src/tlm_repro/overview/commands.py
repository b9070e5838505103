"""The commands `plan` and `status`, which cover all runs of a configuration. Neither imports torch."""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tlm_repro.errors import ConfigError

if TYPE_CHECKING:
    from tlm_repro.study.grid import Grid

CLEAR_SCREEN = "\033[2J\033[H"

app = typer.Typer()

ConfigFile = Annotated[Path, typer.Option("--config", help="The configuration, as Snakemake's --configfile.")]
Results = Annotated[Path, typer.Option("--results", help="The workflow's folder of results.")]


@app.command()
def plan(
    config: ConfigFile = Path("config.yaml"),
    device: Annotated[str, typer.Option(help="GPU, by its product name or its name in devices.csv.")] = "H100 SXM",
    mfu: Annotated[float, typer.Option(help="Assumed share of the peak that training uses.")] = 0.4,
    peak_tflops: Annotated[
        float | None, typer.Option(help="Dense peak of one GPU in TFLOP/s, for a GPU that isn't in devices.csv.")
    ] = None,
    price_per_gpu_hour: Annotated[
        float | None, typer.Option(help="Price of a GPU-hour, to print costs in its currency.")
    ] = None,
    tokenizing_rate: Annotated[
        float | None, typer.Option(help="Tokens per second of tokenising in all jobs; none: not estimated.")
    ] = None,
    results: Results = Path("results"),
    form: Annotated[Literal["text", "markdown", "json"], typer.Option("--format", help="Output format.")] = "text",
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Prints the cost of a configuration: runs, FLOPs, GPU-hours, disk, the longest chain, and what is finished."""
    from tlm_repro.overview.plan import check_assumptions, make_plan
    from tlm_repro.overview.plan_document import render, to_json

    grid = _load_grid(config)
    assumptions = check_assumptions(
        grid,
        device=device,
        mfu=mfu,
        peak_tflops=peak_tflops,
        price_per_gpu_hour=price_per_gpu_hour,
        tokenizing_rate=tokenizing_rate,
    )
    cost_plan = make_plan(grid, assumptions, results)
    if as_json or form == "json":
        typer.echo(json.dumps(to_json(cost_plan), indent=2, ensure_ascii=False))
    else:
        typer.echo(render(cost_plan, form))


@app.command()
def status(
    config: ConfigFile = Path("config.yaml"),
    results: Results = Path("results"),
    logs: Annotated[
        Path | None, typer.Option(help="The workflow's folder of logs; none: `logs` beside the results.")
    ] = None,
    stalled_minutes: Annotated[
        float, typer.Option(min=0, help="A run without a new metrics row for this long counts as stalled.")
    ] = 10,
    watch: Annotated[
        float, typer.Option(min=0, help="Refresh every this many seconds until all runs are finished; 0: print once.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; with --watch, one line each time.")] = False,
) -> None:
    """Prints each run's state, step, loss, speed, MFU, ETA, checkpoint and evaluations, and why a run failed."""
    from tlm_repro.overview.status import statuses
    from tlm_repro.overview.status_document import render, to_json

    grid = _load_grid(config)
    while True:
        runs = statuses(grid, results, logs or results.parent / "logs", stalled_s=60 * stalled_minutes)
        if as_json:
            document = to_json(grid.config.name, runs)
            typer.echo(json.dumps(document, indent=None if watch else 2, ensure_ascii=False))
        else:
            if watch and sys.stdout.isatty():
                typer.echo(CLEAR_SCREEN, nl=False)
            typer.echo(render(grid.config.name, runs))
        if not watch or all(run.state == "finished" for run in runs):
            return
        time.sleep(watch)


def _load_grid(config: Path) -> "Grid":
    from tlm_repro.config.loading import load
    from tlm_repro.study.grid import expand

    if not config.is_file():
        raise ConfigError(f"{config} doesn't exist: name a configuration with --config, such as config/paper.yaml")
    return expand(load(config))
