"""The commands `publish`, `verify` and `join-lock`: what others can pull."""

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
        list[Path] | None, typer.Option(help="Whose products are published; once for each. None: config.yaml.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Those of any configuration.")] = False,
    push: Annotated[bool, typer.Option(help="Send them to the remotes; without, only dvc.lock has them.")] = True,
    replace: Annotated[
        bool, typer.Option("--replace", help="Also where others were published under the same name.")
    ] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Drop from dvc.lock what no configuration here asks for.")
    ] = False,
) -> None:
    """Records finished, verified products in dvc.lock and sends them to DVC's remotes; safe while others are made."""
    from tlm_repro.sharing import products, trees

    chosen = products.stages(stages or [])
    asked = None if everything else set[str]().union(*map(_wanted, config or [CONFIG]))
    broken: list[str] = []
    with trees.opened(_root()) as repo:
        for stage in chosen:
            found = products.survey(stage, RESULTS)
            mine = [product for product in found.finished if asked is None or str(product.path) in asked]
            out = trees.tree_of(repo, stage)
            change = trees.add(out, mine, replace=replace)
            if prune and asked is not None:
                tree = RESULTS / products.TREES[stage]
                below = {str(Path(name).relative_to(tree)) for name in asked if tree in Path(name).parents}
                typer.echo(f"{stage}: {trees.prune(out, below)} files dropped")
            trees.dump(out, complete=_complete(stage, trees.names(out)))
            typer.echo(_report(stage, change, found, left=len(found.finished) - len(mine)))
            broken += found.broken
    if push:
        with trees.opened(_root()) as repo:  # anew: DVC reads dvc.lock once
            sent = trees.push(repo, chosen)
        typer.echo(f"sent {sent} files; now: git add {trees.LOCK} artifacts && git commit")
    if broken:
        raise ArtifactError(f"{len(broken)} products are not published: " + "; ".join(broken))


@app.command()
def verify(
    stages: Stages = None,
    recordable: Annotated[
        bool,
        typer.Option(
            "--recordable", help="Refuse too what is unfinished, or in dvc.lock and not here: `dvc repro` records all."
        ),
    ] = False,
) -> None:
    """Checks every product on disk against its manifest: sizes, and sha256 once."""
    from tlm_repro.sharing import products

    problems: list[str] = []
    for stage in products.stages(stages or []):
        found = products.survey(stage, RESULTS)
        typer.echo(f"{stage}: {len(found.finished)} whole, {len(found.unfinished)} unfinished, {len(found.broken)} not")
        problems += found.broken
        if recordable:
            problems += [f"{path} is unfinished: finish or delete it" for path in found.unfinished]
            problems += _absent(stage, found.finished)
    if problems:
        raise ArtifactError("; ".join(problems))


@app.command()
def join_lock(
    theirs: Annotated[
        str | None, typer.Argument(help="A commit or branch; none: both sides of the merge that is in progress.")
    ] = None,
) -> None:
    """Joins two records of products, after a merge that left dvc.lock in conflict. Nothing but lists is downloaded."""
    from tlm_repro.sharing import products, trees

    lock = _root() / trees.LOCK
    before = lock.read_text(encoding="utf-8")
    mine = before if theirs else _git_show(":2:")
    other = trees.parse_lock(_git_show(f"{theirs}:" if theirs else ":3:"), "their dvc.lock")
    trees.parse_lock(mine, "dvc.lock")
    lock.write_text(mine, encoding="utf-8")
    try:
        with trees.opened(_root()) as repo:
            for stage in products.TREES:
                out = trees.tree_of(repo, stage)
                change = trees.join(out, stage, other)
                trees.dump(out, complete=_complete(stage, trees.names(out)))
                typer.echo(f"{stage}: {len(change.added)} files joined, {len(change.kept)} differ and stay ours")
    except BaseException:
        lock.write_text(before, encoding="utf-8")
        raise
    typer.echo(f"now: git add {trees.LOCK}, and tlm-repro publish, which sends what a remote lacks")


def _root() -> Path:
    if not Path(".dvc").is_dir():
        raise SharingError(f"{Path.cwd()} has no .dvc: run this in the root of the repository")
    return Path.cwd()


def _git_show(place: str) -> str:
    done = subprocess.run(["git", "show", f"{place}dvc.lock"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SharingError(
            f"git has no {place}dvc.lock ({done.stderr.strip()}): run this in a merge that left dvc.lock in conflict, "
            "or name a commit"
        )
    return done.stdout


def _wanted(config: Path) -> set[str]:
    """Paths of the products that a configuration asks for."""
    from tlm_repro.config.loading import load
    from tlm_repro.sharing import products
    from tlm_repro.study.grid import expand

    grid = expand(load(config))
    return {str(RESULTS / name) for stage in products.TREES for name in products.wanted(grid, stage)}


def _complete(stage: "Stage", recorded: set[str]) -> bool:
    """Whether a stage's tree holds all that config.yaml, its dependency, asks for."""
    from tlm_repro.sharing import products

    tree = RESULTS / products.TREES[stage]
    asked = {Path(name).relative_to(tree) for name in _wanted(CONFIG) if tree in Path(name).parents}
    marks = {str(path / products.MANIFEST if stage in products.KINDS else path) for path in asked}
    return marks <= recorded


def _absent(stage: "Stage", finished: list["Product"]) -> list[str]:
    """What dvc.lock records of a stage and isn't on disk."""
    from tlm_repro.sharing import products, trees

    tree = RESULTS / products.TREES[stage]
    here = {str(path.relative_to(tree)) for product in finished for path in product.files}
    with trees.opened(_root()) as repo:
        gone = sorted(trees.names(trees.tree_of(repo, stage)) - here)
    return [f"dvc.lock has {tree / gone[0]} and {len(gone) - 1} more, not here: `dvc pull {stage}`"] if gone else []


def _report(stage: "Stage", change: "Change", found: "Survey", left: int) -> str:
    lines = [f"{stage}: {len(change.added)} added, {len(change.there)} already there"]
    lines += [f"  unfinished, left out: {path}" for path in found.unfinished]
    lines += [f"  changed just now, left out: {path}" for path in change.changed]
    lines += [f"  already published with other contents, kept as it was (--replace): {path}" for path in change.kept]
    lines += [f"  of other configurations, left out (--all): {left}"] if left else []
    return "\n".join(lines)
