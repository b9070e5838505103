"""The commands that turn result files into tables, figures, claims and the report."""

import json
import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from tlm_repro.artifacts.files import read_json, write_json, write_text
from tlm_repro.errors import ConfigError

if TYPE_CHECKING:
    from tlm_repro.records.view import View

app = typer.Typer()

TABLE_FORMS, FIGURE_FORMS = ("csv", "md", "tex"), ("png", "pdf", "svg")

Out = Annotated[Path, typer.Option("--out", help="File to write; others of the same name go beside it.")]
ViewFile = Annotated[
    Path, typer.Option("--view", help="A file of results/views: what to show, and which result files to read.")
]


@app.command()
def views(
    config: Annotated[str, typer.Option(help="The whole configuration, as JSON: the workflow passes it.")],
    folder: Annotated[Path, typer.Option(help="Where to write a file for each.")] = Path("results/views"),
    leave_out: Annotated[
        list[str] | None, typer.Option(help="A novelty measurement to leave out; once for each.")
    ] = None,
) -> None:
    """Writes what each table and figure shows: its cells and the result files that it reads."""
    from tlm_repro.config.loading import parse
    from tlm_repro.reporting import registry
    from tlm_repro.study.grid import expand

    try:
        values = json.loads(config)
    except json.JSONDecodeError as error:
        raise ConfigError(f"--config: not valid JSON ({error}). Pass the configuration as the workflow does") from None
    grid = expand(parse(values, "--config")).without(leave_out or ())
    for name, view in registry.views(grid).items():
        write_json(folder / registry.file_name(name, view), view.model_dump(mode="json"))


@app.command()
def table(view: ViewFile, out: Out) -> None:
    """Writes a table as CSV, Markdown and LaTeX."""
    from tlm_repro.reporting import formats, registry
    from tlm_repro.reporting.evidence import Evidence

    content = _read(view)
    frame, sheet = registry.table_of(content.exhibit, Evidence.load(content))
    formats.write(frame, sheet, out.with_suffix(""))


@app.command()
def figure(view: ViewFile, out: Out) -> None:
    """Draws a figure as PNG, PDF and SVG."""
    from tlm_repro.reporting import registry, style
    from tlm_repro.reporting.evidence import Evidence

    content = _read(view)
    style.save(registry.figure_of(content.exhibit, Evidence.load(content)), out.with_suffix(""))


@app.command()
def scores(files: Annotated[list[Path], typer.Argument(help="Evaluation files.")]) -> None:
    """Prints every score in evaluation files, those of models trained elsewhere included, as a Markdown table."""
    import pandas as pd

    from tlm_repro.reporting import results
    from tlm_repro.reporting.evidence import files_by_kind
    from tlm_repro.reporting.markdown import cell

    measured = results.load(files_by_kind(files)["evaluation"])
    ours = measured.metrics.rename(columns={"run": "name"})
    columns = ["name", "suite", "metric", "value", "stderr", "items"]
    table = pd.concat([ours, measured.external])[columns].map(
        lambda value: cell(value) if isinstance(value, str) else value
    )
    typer.echo(table.to_markdown(index=False, floatfmt=".4g"))


@app.command()
def claims(
    view: Annotated[
        Path | None, typer.Option(help="A file of results/views: experiments, and which result files to read.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="claims.json; claims.md goes beside it.")] = None,
    published: Annotated[bool, typer.Option("--published", help="Judge the paper's own tables instead.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON where no file is written.")] = False,
) -> None:
    """Judges the paper's ten claims."""
    from tlm_repro.reporting.claims import registry as ledger
    from tlm_repro.reporting.evidence import Evidence

    config, toy = "published", False
    if published:
        judged = ledger.published()
    elif view is not None:
        content = _read(view)
        config, toy = content.config, content.toy
        judged = ledger.judge(Evidence.load(content))
    else:
        raise ConfigError("claims: no results. Pass --view results/views/claims-*.json, or --published")
    if out is not None:
        ledger.write(judged, out.parent, config=config, toy=toy)
    elif as_json:
        typer.echo(json.dumps(ledger.document(judged, config=config, toy=toy).content(), indent=2, ensure_ascii=False))
    else:
        typer.echo(ledger.markdown(judged, config=config, toy=toy))


@app.command()
def report(
    view: ViewFile,
    figures: Annotated[list[Path], typer.Option("--figure", help="An SVG file; once for each.")],
    out: Out,
    forms: Annotated[
        list[str] | None, typer.Option("--link", help="A form of tables or figures to link to; once for each [all].")
    ] = None,
) -> None:
    """Writes the report: one page that opens without a network."""
    from tlm_repro.reporting import cost, registry
    from tlm_repro.reporting import report as page
    from tlm_repro.reporting.claims import registry as ledger
    from tlm_repro.reporting.evidence import Evidence

    content = _read(view)
    settings, evidence = content.configuration(), Evidence.load(content)
    captions = {shown.name: shown.caption for shown in content.exhibits}
    tables = [registry.table_of(shown, evidence) for shown in content.exhibits if shown.table]
    sheets = [sheet for frame, sheet in tables if not frame.empty]
    text = page.render(
        title="Tapered Language Models, reproduced",
        config=settings["name"],
        toy=settings["toy"],
        claims=ledger.judge(evidence),
        figures=[page.Figure.read(path, captions.get(path.stem, path.stem)) for path in figures],
        tables=sheets,
        cost=cost.sheet("cost", cost.table(evidence.evaluations, toy=settings["toy"])),
        configuration=yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=100),
        environment=_environment(content.files),
        links=_links(
            [sheet.name for sheet in sheets],
            [path.stem for path in figures],
            forms or (*TABLE_FORMS, *FIGURE_FORMS),
        ),
        fidelity=os.path.relpath("docs/fidelity.md", out.parent),
    )
    write_text(out, text)


def _read(path: Path) -> "View":
    from tlm_repro.records.view import View

    return View.read(path)


def _environment(files: Sequence[Path]) -> dict[str, str]:
    """Component → every version and device that had a part in the results."""
    components: dict[str, set[str]] = {}
    for path in files:
        content: dict[str, Any] = read_json(path)
        for name, value in {**content["versions"], "device": content["device"]}.items():
            components.setdefault(name, set()).add(value)
    return {name: ", ".join(sorted(values)) for name, values in components.items()}


def _links(tables: Iterable[str], figures: Iterable[str], forms: Collection[str]) -> dict[str, str]:
    """Title → path beside the report, of the given forms of each table and figure, and of the claims."""
    links = {
        f"{kind} {name}, {form}": f"{kind}s/{name}.{form}"
        for kind, names, all_forms in (("table", tables, TABLE_FORMS), ("figure", figures, FIGURE_FORMS))
        for name in names
        for form in all_forms
        if form in forms
    }
    return links | {"claims, json": "claims.json", "claims, md": "claims.md"}
