"""The commands that look at a whole configuration: what it costs, and how far it is. Neither imports torch."""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tlm_repro.errors import ConfigError

if TYPE_CHECKING:
    from tlm_repro.study.grid import Grid

CLEAR = "\033[2J\033[H"  # a terminal's screen, and the cursor to its start

app = typer.Typer()

ConfigFile = Annotated[Path, typer.Option("--config", help="The configuration, as Snakemake's --configfile.")]
Results = Annotated[Path, typer.Option("--results", help="The workflow's folder of results.")]


@app.command()
def plan(
    config: ConfigFile = Path("config.yaml"),
    device: Annotated[str, typer.Option(help="GPU, by its product name or as the table in devices.csv.")] = "H100 SXM",
    mfu: Annotated[float, typer.Option(help="Share of the peak that training uses: an assumption.")] = 0.4,
    peak_tflops: Annotated[
        float | None, typer.Option(help="Dense peak of one GPU, TFLOP/s, for one that the table doesn't have.")
    ] = None,
    price_per_gpu_hour: Annotated[float | None, typer.Option(help="Adds costs, in the currency of the price.")] = None,
    tokenizing_rate: Annotated[
        float | None, typer.Option(help="Tokens a second of tokenising, all its jobs together; none: not estimated.")
    ] = None,
    results: Results = Path("results"),
    form: Annotated[Literal["text", "markdown", "json"], typer.Option("--format", help="How to print it.")] = "text",
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Prints what a configuration costs: runs, FLOPs, GPU-hours, disk, the longest chain, and what is done already."""
    from tlm_repro.overview.plan import assumptions, make
    from tlm_repro.overview.plan_document import document, render

    grid = _grid(config)
    assumed = assumptions(
        grid,
        device=device,
        mfu=mfu,
        peak_tflops=peak_tflops,
        price_per_gpu_hour=price_per_gpu_hour,
        tokenizing_rate=tokenizing_rate,
    )
    made = make(grid, assumed, results)
    if as_json or form == "json":
        typer.echo(json.dumps(document(made), indent=2, ensure_ascii=False))
    else:
        typer.echo(render(made, form))


@app.command()
def status(
    config: ConfigFile = Path("config.yaml"),
    results: Results = Path("results"),
    logs: Annotated[
        Path | None, typer.Option(help="The workflow's folder of logs; none: the one beside the results.")
    ] = None,
    stalled_minutes: Annotated[
        float, typer.Option(min=0, help="Without a new row for so long, a run counts as stalled.")
    ] = 10,
    watch: Annotated[
        float, typer.Option(min=0, help="Look again every so many seconds, until all runs are finished; 0: once.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; with --watch, one line each time.")] = False,
) -> None:
    """Prints how far each run is: step, loss, speed, MFU, ETA, checkpoint, evaluations, and why one failed."""
    from tlm_repro.overview.status import statuses
    from tlm_repro.overview.status_document import document, render

    grid = _grid(config)
    while True:
        runs = statuses(grid, results, logs or results.parent / "logs", stalled_s=60 * stalled_minutes)
        if as_json:
            found = document(grid.config.name, runs)
            typer.echo(json.dumps(found, indent=None if watch else 2, ensure_ascii=False))
        else:
            if watch and sys.stdout.isatty():
                typer.echo(CLEAR, nl=False)
            typer.echo(render(grid.config.name, runs))
        if not watch or all(run.state == "finished" for run in runs):
            return
        time.sleep(watch)


def _grid(config: Path) -> "Grid":
    from tlm_repro.config.loading import load
    from tlm_repro.study.grid import expand

    if not config.is_file():
        raise ConfigError(f"{config} isn't there: name a configuration with --config, as config/paper.yaml")
    return expand(load(config))
