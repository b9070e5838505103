"""The commands that tokenise a corpus, in one job or in several that share its parts."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()

Spec = Annotated[str, typer.Option("--spec", help="The data set's spec as JSON, as the workflow passes and logs it.")]
Folder = Annotated[Path, typer.Option(help="Folder of the data set.")]
Workers = Annotated[int, typer.Option(min=1, help="Processes that encode documents.")]
Jobs = Annotated[int, typer.Option(min=1, help="Number of jobs that share the parts. It doesn't affect the result.")]


@app.command()
def tokenize(
    spec: Spec,
    out: Annotated[Path, typer.Option("--out", help="File to write.")],
    workers: Workers = 1,
    jobs: Jobs = 1,
) -> None:
    """Trains or downloads the tokenizer and writes the corpus as token shards. With several jobs, joins their parts."""
    from tlm_repro.data.gathering import gather
    from tlm_repro.data.tokenisation import build
    from tlm_repro.spec.data import DataSpec

    data = DataSpec.from_json(spec)
    if jobs == 1:
        build(data, out.parent, workers=workers)
    else:
        gather(data, out.parent, jobs=jobs, workers=workers)


@app.command()
def tokenize_start(spec: Spec, folder: Folder) -> None:
    """Trains or downloads the tokenizer and plans the corpus's parts, for tokenising in several jobs."""
    from tlm_repro.data.parts import write_plan
    from tlm_repro.spec.data import DataSpec

    plan = write_plan(DataSpec.from_json(spec), folder)
    typer.echo(f"{len(plan.parts)} parts of {sum(map(len, plan.parts))} files")


@app.command()
def tokenize_part(
    folder: Folder,
    job: Annotated[int, typer.Option(min=0, help="Number of this job, counted from 0.")],
    jobs: Jobs,
    workers: Workers = 1,
) -> None:
    """Tokenises the parts of one of several jobs. Finished parts are skipped."""
    from tlm_repro.data.parts import tokenise_parts

    record = tokenise_parts(folder, job=job, jobs=jobs, workers=workers)
    skipped = f", {len(record.beyond)} skipped as beyond the token budgets" if record.beyond else ""
    typer.echo(f"job {job} of {jobs}: {len(record.parts)} parts are finished{skipped}")
