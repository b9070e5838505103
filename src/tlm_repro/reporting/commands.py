"""The commands that turn result files into tables, figures, claims and the report."""

import json
import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from tlm_repro.artifacts.files import read_json, write_json, write_text
from tlm_repro.errors import ArtifactError, ConfigError

if TYPE_CHECKING:
    import pandas as pd

    from tlm_repro.records.evaluation import NeedleEvaluation
    from tlm_repro.records.novelty import Novelty
    from tlm_repro.records.view import ExperimentView, View
    from tlm_repro.reporting.results import Results

app = typer.Typer()

Out = Annotated[Path, typer.Option("--out", help="File to write; others of the same name go beside it.")]
ViewFile = Annotated[
    Path, typer.Option("--view", help="A file of results/views: what to show, and which result files to read.")
]

FIGURE_CAPTIONS = {
    "motivation": "Figure 2: validation loss by where the width lies, at one budget.",
    "sweep": "Table 1 as curves: validation loss against the width ratio of each schedule.",
    "allocation": "Figure 3: MLP width of each layer; every allocation spends exactly the same budget.",
    "allocations": "Other published allocations at the same budget: widths by layer, and loss less uniform's.",
    "scaling": "Gain over uniform by the taper's ratio, with a quadratic fit and its best ratio, and by model size.",
    "curves": "Training loss over tokens and FLOPs, tapered beside uniform, and their difference: who leads when.",
    "novelty": "Figure 4: cosine similarity of what a layer adds with what it received, over depth.",
    "novelty-pairs": "Layer novelty of tapered beside uniform models after training, and the norm of what MLPs add; "
    "above each panel tapered less uniform over the late layers, which are grey.",
}
TRENDS = ("scaling", "curves")
TABLE_FORMS, FIGURE_FORMS = ("csv", "md", "tex"), ("png", "pdf", "svg")
NEEDLE_CAPTION = "Needle-in-a-haystack, {model}: the share of the needles found, by depth in the text and its length."


@app.command()
def views(
    config: Annotated[str, typer.Option(help="The whole configuration, as JSON: the workflow passes it.")],
    folder: Annotated[Path, typer.Option(help="Where to write a file for each.")] = Path("results/views"),
    leave_out: Annotated[
        list[str] | None, typer.Option(help="A novelty measurement that isn't to be shown; once for each.")
    ] = None,
) -> None:
    """Writes what each table and figure shows: its cells and the result files that it reads."""
    from tlm_repro.config.loading import parse
    from tlm_repro.study import views as shown
    from tlm_repro.study.grid import expand

    try:
        values = json.loads(config)
    except json.JSONDecodeError as error:
        raise ConfigError(f"--config: not valid JSON ({error}): pass the configuration as the workflow does") from None
    grid = shown.without(expand(parse(values, "--config")), leave_out or ())
    for name, content in shown.views(grid).items():
        write_json(folder / shown.file_name(name, content), content)


@app.command()
def table(view: ViewFile, out: Out) -> None:
    """Writes an experiment's table as CSV, Markdown and LaTeX."""
    from tlm_repro.reporting import formats

    shown = _shown(view)
    formats.write(shown.single.experiment, _frame(shown.single, _results(shown.files)), out.parent)


@app.command()
def scores(files: Annotated[list[Path], typer.Argument(help="Evaluation files.")]) -> None:
    """Prints every score in evaluation files, those of models trained elsewhere included, as a Markdown table."""
    import pandas as pd

    found = _results(files)
    ours = found.metrics.rename(columns={"run": "name"})
    columns = ["name", "suite", "metric", "value", "stderr", "items"]
    typer.echo(pd.concat([ours, found.external])[columns].to_markdown(index=False, floatfmt=".4g"))


@app.command()
def novelty_table(view: ViewFile, out: Out) -> None:
    """Writes Figure 4's numbers (`novelty`), or tapered beside uniform (`novelty-pairs`): as --out is called."""
    from tlm_repro.reporting import formats

    shown = _shown(view)
    frames = _novelty_frames(_novelty(shown.files), toy=shown.toy)
    if out.stem not in frames:
        raise ConfigError(f"--out {out}: these files make {' and '.join(frames)}, no '{out.stem}': name one of them")
    formats.write(out.stem, frames[out.stem], out.parent)


@app.command()
def figure(view: ViewFile, out: Out) -> None:
    """Draws an experiment's figure as PNG, PDF and SVG."""
    from tlm_repro.reporting import allocations, figures, style

    shown = _shown(view)
    experiment = shown.single
    drawings = {"motivation": figures.motivation, "sweep": figures.sweep, "allocations": allocations.figure}
    if experiment.experiment not in drawings:
        raise ConfigError(f"--view: experiment '{experiment.experiment}' has no figure; {', '.join(drawings)} have one")
    draw = drawings[experiment.experiment]
    style.save(draw(_frame(experiment, _results(shown.files))), out.with_suffix(""))


@app.command()
def novelty_figure(view: ViewFile, out: Out) -> None:
    """Draws Figure 4 (`novelty`), or tapered beside uniform (`novelty-pairs`): as --out is called."""
    from tlm_repro.reporting import figures, novelty_pairs, style

    shown = _shown(view)
    draw = novelty_pairs.figure if out.stem == "novelty-pairs" else figures.novelty
    style.save(draw(_novelty(shown.files), toy=shown.toy), out.with_suffix(""))


@app.command()
def trend_table(view: ViewFile, out: Out) -> None:
    """Writes the table of a trend over experiments (`scaling`, `curves`), as --out is called."""
    from tlm_repro.reporting import formats

    shown = _shown(view)
    formats.write(out.stem, _trend(out.stem).table(_results(shown.files), shown.by_experiment), out.parent)


@app.command()
def trend_figure(view: ViewFile, out: Out) -> None:
    """Draws a trend over experiments (`scaling`, `curves`), as --out is called."""
    from tlm_repro.reporting import style

    shown = _shown(view)
    style.save(_trend(out.stem).figure(_results(shown.files), shown.by_experiment), out.with_suffix(""))


@app.command()
def niah_table(view: ViewFile, out: Out) -> None:
    """Writes Table 3, needle-in-a-haystack, as CSV, Markdown and LaTeX."""
    from tlm_repro.reporting import formats, needle

    shown = _shown(view)
    experiment = shown.single
    formats.write("niah", needle.table(_results(shown.files), experiment, _needles(shown.files)), out.parent)


@app.command()
def niah_figure(view: ViewFile, out: Out) -> None:
    """Draws the heat maps of needle-in-a-haystack for the models of one architecture and scale."""
    from tlm_repro.reporting import heatmaps, needle, style

    shown = _shown(view)
    experiment, measured = shown.single, _needles(shown.files)
    table = needle.by_depth(measured, experiment)
    training = needle.training_length(experiment)
    conditions = needle.conditions(needle.scaling(measured), needle.generators(measured))
    drawing = heatmaps.needle(table, training=training, toy=experiment.toy, conditions=conditions)
    style.save(drawing, out.with_suffix(""))


@app.command()
def allocation_figure(view: ViewFile, out: Out) -> None:
    """Draws Figure 3."""
    from tlm_repro.reporting import figures, style

    shapes = _shown(view).figure_3()
    style.save(figures.allocation(shapes.layers, shapes.width, shapes.widths), out.with_suffix(""))


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

    config, toy = "published", False
    if published:
        judged = ledger.published()
    elif view is not None:
        shown = _shown(view)
        config, toy = shown.config, shown.toy
        judged = ledger.judge(_results(shown.files), shown.experiments, _novelty(shown.files))
    else:
        raise ConfigError("nothing to judge: pass --view results/views/claims-*.json, or --published")
    if out is not None:
        ledger.write(judged, out.parent, config=config, toy=toy)
    elif as_json:
        typer.echo(json.dumps(ledger.document(judged, config=config, toy=toy), indent=2, ensure_ascii=False))
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
    from tlm_repro.reporting import cost, needle, sheets
    from tlm_repro.reporting import report as page
    from tlm_repro.reporting.claims import registry as ledger

    shown = _shown(view)
    settings, experiments, files = shown.configuration(), shown.experiments, shown.files
    results, measured = _results(files), _novelty(files)
    benchmarks = bool((results.metrics["suite"] == "zero_shot").any())  # else there's no Table 2
    frames: dict[str, pd.DataFrame] = {
        name: _frame(experiment, results)
        for name, experiment in shown.by_experiment.items()
        if name != "main" or benchmarks
    }
    if "main" in shown.by_experiment and needle.measured(results):
        frames["niah"] = needle.table(results, shown.by_experiment["main"], _needles(files))
    for name in TRENDS:
        frame = _trend(name).table(results, shown.by_experiment)
        frames |= {} if frame.empty else {name: frame}
    if measured:
        frames |= _novelty_frames(measured, toy=settings["toy"])
    text = page.render(
        title="Tapered Language Models, reproduced",
        config=settings["name"],
        toy=settings["toy"],
        claims=ledger.judge(results, experiments, measured),
        figures=[page.Figure.read(path, _caption(path.stem)) for path in figures],
        tables=[sheets.SHEETS[name](name, frame) for name, frame in frames.items()],
        cost=sheets.SHEETS["cost"]("cost", cost.table(cost.load(_of_kind(files, "evaluation")), toy=settings["toy"])),
        configuration=yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=100),
        environment=_environment(files),
        links=_links(frames, [path.stem for path in figures], forms or (*TABLE_FORMS, *FIGURE_FORMS)),
        fidelity=os.path.relpath("docs/fidelity.md", out.parent),
    )
    write_text(out, text)


def _shown(path: Path) -> "View":
    from tlm_repro.records.view import View

    return View.read(path)


def _trend(name: str) -> Any:
    """The module with `table` and `figure` of a trend. Raises ConfigError for a name that has none."""
    from tlm_repro.reporting import curves, scaling

    trends = {"scaling": scaling, "curves": curves}
    if name not in trends:
        raise ConfigError(f"--out: no trend is called '{name}'; {', '.join(trends)} are")
    return trends[name]


def _of_kind(files: Sequence[Path], kind: str) -> list[Path]:
    contents = {path: read_json(path) for path in files}
    known = ("evaluation", "novelty")
    for path, content in contents.items():
        if not isinstance(content, dict) or content.get("kind") not in known:
            raise ArtifactError(
                f"{path} is neither an evaluation nor a novelty file: delete it and run its stage again"
            )
    return [path for path, content in contents.items() if content["kind"] == kind]


def _results(files: Sequence[Path]) -> "Results":
    from tlm_repro.reporting import results

    return results.load(_of_kind(files, "evaluation"))


def _novelty(files: Sequence[Path]) -> "list[Novelty]":
    from tlm_repro.reporting import results

    return results.load_novelty(_of_kind(files, "novelty"))


def _needles(files: Sequence[Path]) -> "list[NeedleEvaluation]":
    """The needle-in-a-haystack evaluations among the files."""
    from tlm_repro.reporting import needle

    return needle.load(_of_kind(files, "evaluation"))


def _caption(figure: str) -> str:
    if figure.startswith("niah-"):
        return NEEDLE_CAPTION.format(model=figure.removeprefix("niah-"))
    return FIGURE_CAPTIONS.get(figure, figure)


def _frame(view: "ExperimentView", results: "Results") -> "pd.DataFrame":
    from tlm_repro.reporting import allocations, tables

    make = {"motivation": tables.motivation, "sweep": tables.sweep, "main": tables.main}
    return {**make, "allocations": allocations.table}[view.experiment](results, view)


def _novelty_frames(measured: "Sequence[Novelty]", *, toy: bool) -> "dict[str, pd.DataFrame]":
    """Table → frame; that of the pairs only where there is one."""
    from tlm_repro.reporting import novelty_pairs, tables

    frames = {"novelty": tables.novelty(measured, toy=toy)}
    pairs = novelty_pairs.table(measured, toy=toy)
    return frames if pairs.empty else {**frames, "novelty-pairs": pairs}


def _environment(files: Sequence[Path]) -> dict[str, str]:
    """Component → every version and device that had a part in the results."""
    found: dict[str, set[str]] = {}
    for path in files:
        content: dict[str, Any] = read_json(path)
        for name, value in {**content["versions"], "device": content["device"]}.items():
            found.setdefault(name, set()).add(value)
    return {name: ", ".join(sorted(values)) for name, values in found.items()}


def _links(tables: Iterable[str], figures: Iterable[str], forms: Collection[str]) -> dict[str, str]:
    """Title → path beside the report, of the given forms of each table and figure, and of the claims."""
    links = {
        f"{kind} {name}, {form}": f"{kind}s/{name}.{form}"
        for kind, names, known in (("table", tables, TABLE_FORMS), ("figure", figures, FIGURE_FORMS))
        for name in names
        for form in known
        if form in forms
    }
    return links | {"claims, json": "claims.json", "claims, md": "claims.md"}
