"""The commands `publish`, `verify` and `join-lock`."""

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tlm_repro.errors import ArtifactError, SharingError

if TYPE_CHECKING:
    from tlm_repro.sharing.products import Product, Stage, Survey
    from tlm_repro.sharing.trees import Change

app = typer.Typer()

RESULTS, CONFIG = Path("results"), Path("config.yaml")
Stages = Annotated[list[str] | None, typer.Argument(help="data, pretrain, evaluate, novelty, needles; none: all.")]


@app.command()
def publish(
    stages: Stages = None,
    config: Annotated[
        list[Path] | None,
        typer.Option(help="Publish the products of this configuration; may be repeated. None: config.yaml."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Publish the products of every configuration.")] = False,
    push: Annotated[bool, typer.Option(help="Send the products to the remotes, not only record them.")] = True,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace products that were published with other contents.")
    ] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Drop products from dvc.lock that none of the configurations needs.")
    ] = False,
) -> None:
    """Records finished, verified products in dvc.lock and sends them to DVC's remotes. Safe while a workflow runs."""
    from tlm_repro.sharing import products, trees

    selected = products.select_stages(stages or [])
    needed = None if everything else set[str]().union(*map(_needed_paths, config or [CONFIG]))
    damaged: list[str] = []
    with trees.open_repository(_root()) as repo:
        for stage in selected:
            survey = products.survey(stage, RESULTS)
            published = [product for product in survey.finished if needed is None or str(product.path) in needed]
            out = trees.output_of(repo, stage)
            change = trees.add(out, published, replace=replace)
            if prune and needed is not None:
                tree = RESULTS / products.TREES[stage]
                below = {str(Path(name).relative_to(tree)) for name in needed if tree in Path(name).parents}
                typer.echo(f"{stage}: {trees.prune(out, below)} files dropped")
            trees.write_stage(out, complete=_is_complete(stage, trees.file_names(out)))
            typer.echo(_report(stage, change, survey, other_configs=len(survey.finished) - len(published)))
            damaged += survey.damaged
    if push:
        with trees.open_repository(_root()) as repo:  # opened again, because DVC reads dvc.lock only once
            sent = trees.push(repo, selected)
        typer.echo(f"sent {sent} files; now: git add {trees.LOCK} artifacts && git commit")
    if damaged:
        raise ArtifactError(f"{len(damaged)} products were not published: " + "; ".join(damaged))


@app.command()
def verify(
    stages: Stages = None,
    recordable: Annotated[
        bool,
        typer.Option(
            "--recordable",
            help="Also fail on unfinished products and on those in dvc.lock that aren't here, before `dvc repro`.",
        ),
    ] = False,
) -> None:
    """Checks every product on disk against its manifest, by size and by sha256 (which is cached)."""
    from tlm_repro.sharing import products

    problems: list[str] = []
    for stage in products.select_stages(stages or []):
        survey = products.survey(stage, RESULTS)
        typer.echo(
            f"{stage}: {len(survey.finished)} intact, {len(survey.unfinished)} unfinished, "
            f"{len(survey.damaged)} damaged"
        )
        problems += survey.damaged
        if recordable:
            problems += [f"{path} is unfinished: finish or delete it" for path in survey.unfinished]
            problems += _missing(stage, survey.finished)
    if problems:
        raise ArtifactError("; ".join(problems))


@app.command()
def join_lock(
    theirs: Annotated[
        str | None, typer.Argument(help="A commit or branch; none: the two sides of the merge in progress.")
    ] = None,
) -> None:
    """Joins two versions of dvc.lock after a merge that left it in conflict. Downloads only lists of files."""
    from tlm_repro.sharing import products, trees

    lock = _root() / trees.LOCK
    before = lock.read_text(encoding="utf-8")
    ours = before if theirs else _git_show(":2:")
    their_lock = trees.parse_lock(_git_show(f"{theirs}:" if theirs else ":3:"), "their dvc.lock")
    trees.parse_lock(ours, "dvc.lock")
    lock.write_text(ours, encoding="utf-8")
    try:
        with trees.open_repository(_root()) as repo:
            for stage in products.TREES:
                out = trees.output_of(repo, stage)
                change = trees.join(out, stage, their_lock)
                trees.write_stage(out, complete=_is_complete(stage, trees.file_names(out)))
                typer.echo(f"{stage}: {len(change.added)} files joined, {len(change.conflicting)} differ and stay ours")
    except BaseException:
        lock.write_text(before, encoding="utf-8")
        raise
    typer.echo(f"now: git add {trees.LOCK}, then tlm-repro publish to send what the remotes lack")


def _root() -> Path:
    if not Path(".dvc").is_dir():
        raise SharingError(f"{Path.cwd()} has no .dvc: run this in the root of the repository")
    return Path.cwd()


def _git_show(revision: str) -> str:
    process = subprocess.run(["git", "show", f"{revision}dvc.lock"], capture_output=True, text=True, check=False)
    if process.returncode:
        raise SharingError(
            f"git has no {revision}dvc.lock ({process.stderr.strip()}): run this during a merge that left dvc.lock in "
            "conflict, or name a commit"
        )
    return process.stdout


def _needed_paths(config: Path) -> set[str]:
    """Paths of the products that a configuration needs."""
    from tlm_repro.config.loading import load
    from tlm_repro.sharing import products
    from tlm_repro.study.grid import expand

    grid = expand(load(config))
    return {str(RESULTS / name) for stage in products.TREES for name in products.needed(grid, stage)}


def _is_complete(stage: "Stage", recorded: set[str]) -> bool:
    """Whether a stage's tree holds everything that config.yaml, its dependency, needs."""
    from tlm_repro.sharing import products

    tree = RESULTS / products.TREES[stage]
    needed = {Path(name).relative_to(tree) for name in _needed_paths(CONFIG) if tree in Path(name).parents}
    files = {str(path / products.MANIFEST if stage in products.MANIFESTS else path) for path in needed}
    return files <= recorded


def _missing(stage: "Stage", finished: list["Product"]) -> list[str]:
    """A message about a stage's files that dvc.lock records but that aren't on disk, if there are any."""
    from tlm_repro.sharing import products, trees

    tree = RESULTS / products.TREES[stage]
    on_disk = {str(path.relative_to(tree)) for product in finished for path in product.files}
    with trees.open_repository(_root()) as repo:
        missing = sorted(trees.file_names(trees.output_of(repo, stage)) - on_disk)
    if not missing:
        return []
    others = f" and {len(missing) - 1} more files" if len(missing) > 1 else ""
    return [f"dvc.lock lists {tree / missing[0]}{others}, which aren't here: run `dvc pull {stage}`"]


def _report(stage: "Stage", change: "Change", survey: "Survey", other_configs: int) -> str:
    lines = [f"{stage}: {len(change.added)} added, {len(change.unchanged)} already published"]
    lines += [f"  skipped, unfinished: {path}" for path in survey.unfinished]
    lines += [f"  skipped, changed while it was read: {path}" for path in change.unstable]
    lines += [
        f"  skipped, published with other contents (use --replace to replace it): {path}" for path in change.conflicting
    ]
    lines += [f"  skipped, of other configurations (use --all): {other_configs}"] if other_configs else []
    return "\n".join(lines)
