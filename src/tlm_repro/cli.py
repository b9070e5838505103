"""The command line. A command parses its options, calls one function and reports an error in one line.

The workflow's rules call these commands. A logged command can be run again by hand, anywhere. Heavy imports are inside
the commands, so `--help` and commands without tensors start instantly.
"""

import errno
import json
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tlm_repro.artifacts.files import check_writable
from tlm_repro.data.commands import app as data_commands
from tlm_repro.errors import ConfigError, TLMError
from tlm_repro.overview.commands import app as overview_commands
from tlm_repro.reporting.commands import app as reporting_commands
from tlm_repro.sharing.commands import app as sharing_commands

app = typer.Typer(
    name="tlm-repro",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Reproduction of 'Tapered Language Models' (arXiv 2606.23670).",
)
app.add_typer(overview_commands)
app.add_typer(data_commands)
app.add_typer(reporting_commands)
app.add_typer(sharing_commands)

SpecText = Annotated[
    str, typer.Option("--spec", help="The spec of the product as JSON, as the workflow passes and logs it.")
]
DataManifest = Annotated[Path, typer.Option("--data", help="manifest.json of the tokenised data set.")]
Out = Annotated[Path, typer.Option("--out", help="File to write.")]


@app.command()
def widths(
    layers: Annotated[int, typer.Option(min=1, help="Number of layers.")],
    width: Annotated[int, typer.Option(min=16, help="Uniform MLP width D, a multiple of 16.")],
    schedule: Annotated[
        str, typer.Option(help="uniform, linear, cosine, sigmoid, thirds, … (an unknown one lists all).")
    ],
    start: Annotated[float | None, typer.Option(help="First layer's width ÷ D.")] = None,
    end: Annotated[float | None, typer.Option(help="Last layer's width ÷ D.")] = None,
    sharpness: Annotated[float | None, typer.Option(help="Steepness of the sigmoid.")] = None,
    multipliers: Annotated[
        str | None, typer.Option(help="Width ÷ D of three equal groups, such as 1.5,1.0,0.5.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Any other parameter of the schedule, such as peak=3.8.")
    ] = None,
    model_width: Annotated[int | None, typer.Option(min=1, help="Residual width d, to count parameters.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Prints the per-layer MLP widths of an allocation at exactly the uniform budget."""
    from tlm_repro.allocation.widths import layer_widths, summary

    parameters: dict[str, Any] = {"start": start, "end": end, "sharpness": sharpness}
    if multipliers is not None:
        try:
            parameters["multipliers"] = tuple(float(part) for part in multipliers.split(","))
        except ValueError:
            raise ConfigError(
                f"--multipliers {multipliers}: give numbers separated by commas, such as 1.5,1.0,0.5"
            ) from None
    for setting in settings or ():
        name, _, text = setting.partition("=")
        try:
            parameters[name] = float(text)
        except ValueError:
            raise ConfigError(f"--set {setting}: give name=number, such as peak=3.8") from None
    parameters = {name: value for name, value in parameters.items() if value is not None}
    result = summary(layer_widths(schedule, layers, width, **parameters), width, model_width)
    typer.echo(json.dumps(result.to_dict(), indent=2) if as_json else result.to_text())


@app.command()
def pretrain(
    spec: SpecText,
    data: DataManifest,
    checkpoints: Annotated[Path, typer.Option(help="Folder of the resumable state.")],
    out: Out,
    execution: Annotated[
        str,
        typer.Option(
            help="How to run it, as JSON with keys of `hardware` and `trainer` (config/README.md). Missing keys have "
            "their defaults."
        ),
    ] = "{}",
) -> None:
    """Trains one model, or resumes it from its newest checkpoint."""
    from tlm_repro.records.manifests import DataManifest
    from tlm_repro.spec.execution import Execution
    from tlm_repro.training.slurm import start_processes

    how = Execution.from_json(execution, "--execution")
    DataManifest.read(data, verify="sha256")  # once for all processes, which reuse the result
    start_processes(sys.argv[1:], processes=how.processes_per_node, nodes=how.nodes)
    from tlm_repro.data.shards import TokenData
    from tlm_repro.spec.run import RunSpec
    from tlm_repro.training.trainer import pretrain as train

    train(RunSpec.from_json(spec), TokenData.open(data), folder=out.parent, checkpoints=checkpoints, execution=how)


@app.command()
def evaluate(
    spec: SpecText,
    model: Annotated[
        str,
        typer.Option(
            help="A run's manifest.json or folder, a Hugging Face folder, a hub name (@revision), a .gguf file, or "
            "package:file.gguf."
        ),
    ],
    out: Out,
    data: Annotated[Path | None, typer.Option(help="manifest.json of the tokenised data set.")] = None,
    benchmarks: Annotated[Path | None, typer.Option(help="Folder of the fetched benchmarks.")] = None,
    items: Annotated[
        list[str] | None, typer.Option(help="TASK=FILE: JSONL file of a task with items of its own; repeatable.")
    ] = None,
    samples: Annotated[Path | None, typer.Option(help="manifest.json of needle-in-a-haystack samples.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Sequences in one forward pass.")] = 32,
) -> None:
    """Evaluates a model in one suite. If a part fails, the finished parts are kept for the next attempt."""
    from tlm_repro.evaluation import suites
    from tlm_repro.evaluation.inputs import ItemFiles
    from tlm_repro.evaluation.partial import partial_folder, remove_partial_results

    exit_cleanly_on_sigterm()
    own = {
        task: Path(file)
        for task, file in named_values("--items", items, "TASK=FILE, such as openbookqa=items.jsonl").items()
    }
    files = ItemFiles(benchmarks, own)
    inputs = suites.Inputs(data=data, items=files, samples=samples, batch_size=batch_size)
    partial, suite = partial_folder(out), suites.suite_spec(spec)
    check_writable(out)
    suites.evaluate(suite, model=model, inputs=inputs, partial=partial).write(out)
    remove_partial_results(partial)


@app.command()
def needle_samples(
    spec: SpecText,
    out: Annotated[Path, typer.Option("--out", help="manifest.json to write; the samples lie beside it.")],
    data: Annotated[Path | None, typer.Option(help="manifest.json of the data set whose tokenizer is used.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Instead of --data, a model trained elsewhere, as for `evaluate`.")
    ] = None,
) -> None:
    """Makes needle-in-a-haystack prompts for all models that share a tokenizer."""
    from tlm_repro.evaluation.needle.samples import make_samples
    from tlm_repro.spec.evaluation import NeedleSamplesSpec

    if out.name != "manifest.json":
        raise ConfigError(f"--out {out}: it must end in manifest.json (in any folder)")
    exit_cleanly_on_sigterm()
    make_samples(NeedleSamplesSpec.from_json(spec), out.parent, data=data, model=model)


@app.command()
def fetch_benchmarks(
    out: Annotated[Path, typer.Option("--out", help="Folder to make, or to complete: evaluation.zero_shot.path.")],
    task: Annotated[list[str] | None, typer.Option(help="Any of lm-eval's tasks; repeatable. None: Table 2's.")] = None,
    revision: Annotated[
        list[str] | None, typer.Option(help="TASK=REV: branch, tag or commit of its data set; otherwise main.")
    ] = None,
    mirror: Annotated[
        Path | None, typer.Option(help="Folder with the data sets as <owner>/<name>, used instead of the hub.")
    ] = None,
) -> None:
    """Saves the benchmarks' items from the Hugging Face hub, for machines without a network."""
    from tlm_repro.evaluation.benchmarks.fetch import fetch

    exit_cleanly_on_sigterm()
    revisions = named_values("--revision", revision, "TASK=REV, such as piqa=main")
    typer.echo(f"wrote {fetch(out, task or (), revisions=revisions, mirror=mirror, report=typer.echo)}")


@app.command()
def lm_eval_tasks(names: Annotated[list[str], typer.Argument(help="lm-eval's names, such as openbookqa.")]) -> None:
    """Prints what lm-eval's tasks measure and read: for evaluation.zero_shot.additional."""
    from tlm_repro.evaluation.benchmarks.items import described
    from tlm_repro.evaluation.benchmarks.lm_eval_tasks import lm_eval_task

    for name in names:
        task = lm_eval_task(name)
        typer.echo(f"{name}: {task.output_type}; metrics {', '.join(task.scores)}; items {described(**task.source)}")


@app.command()
def novelty(
    spec: SpecText,
    out: Out,
    model: Annotated[Path | None, typer.Option(help="manifest.json of a trained run; none: the spec's model.")] = None,
    data: Annotated[Path | None, typer.Option(help="manifest.json of the data set of the held-out documents.")] = None,
) -> None:
    """Measures the novelty of each layer's contribution to the residual stream of a model."""
    from tlm_repro.novelty.measure import measure_novelty
    from tlm_repro.spec.evaluation import NoveltySpec

    measure_novelty(NoveltySpec.from_json(spec), run=model, data=data).write(out)


@app.command()
def export(
    model: Annotated[Path, typer.Option(help="manifest.json of a trained run, or its Hugging Face folder.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to write, which must be empty or new.")],
    format: Annotated[str, typer.Option(help="Format of the model: llama.")] = "llama",
    dtype: Annotated[str, typer.Option(help="Type of the weights: fp32, bf16 or fp16.")] = "fp32",
) -> None:
    """Writes a trained Transformer as a standard Llama with the same logits. Narrower MLPs are padded with zeros."""
    from tlm_repro.models.hugging_face.export import export as write

    typer.echo(write(model, out, format=format, dtype=dtype).to_text())


@app.command()
def schema(folder: Annotated[Path, typer.Option(help="Root of the repository.")] = Path()) -> None:
    """Generates the configuration's JSON schema and its reference from the typed source."""
    from tlm_repro.config.reference import write

    for path in write(folder):
        typer.echo(f"wrote {path}")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def workflow(context: typer.Context) -> None:
    """Runs Snakemake with the given arguments. Refuses if one is running here; clears the locks of a killed one."""
    from tlm_repro.workflow import run_alone

    run_alone(context.args)


def named_values(option: str, texts: list[str] | None, form: str) -> dict[str, str]:
    """Name → value of an option of this form, such as TASK=FILE. Raises ConfigError for a text without a value."""
    values = {}
    for text in texts or ():
        name, _, value = text.partition("=")
        if not value:
            raise ConfigError(f"{option} {text}: give {form}")
        values[name] = value
    return values


def exit_cleanly_on_sigterm() -> None:
    """Makes SIGTERM, which schedulers send, raise SystemExit, so that temporary folders are removed."""

    def stop(number: int, _: Any) -> None:
        print("tlm-repro: stopped by SIGTERM; run the same command again to finish", file=sys.stderr)
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, stop)


def main() -> None:
    """Entry point. Prints an expected failure as one line on stderr and returns its exit code."""
    try:
        app()
    except TLMError as error:
        print(f"tlm-repro: error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except OSError as error:
        if error.filename is None and error.errno not in (errno.ENOSPC, errno.EDQUOT):  # not about a user's file
            raise
        where = error.filename or "the output or the temporary folder (TMPDIR)"
        reason = f"{os.strerror(error.errno or 0)}: check the path, its permissions and the free space"
        print(f"tlm-repro: error: {where}: {reason}", file=sys.stderr)
        raise SystemExit(TLMError.exit_code) from None
