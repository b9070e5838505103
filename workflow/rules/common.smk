# The grid of the configuration, and named look-ups in it. Nothing here imports torch: parsing must stay fast.
import shlex
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger
from tlm_repro.config.loading import parse as parse_config, read as read_config
from tlm_repro.errors import ConfigError
from tlm_repro.reporting.registry import file_name, members as members_of, views as views_of
from tlm_repro.study.grid import expand as expand_grid, needs_retraining
from tlm_repro.workflow import clear_incomplete_marks


def load_grid():
    """The grid, the part of it that is rendered, and of that part name → exhibit and name → view."""
    source = ", ".join(str(path) for path in workflow.configfiles)
    try:
        for path in workflow.configfiles:
            read_config(Path(path))  # Snakemake's reader lets a key stand twice
        grid = expand_grid(parse_config(config, source))
        rendered = grid.without(needs_retraining(grid, Path("results")))
        return grid, rendered, members_of(rendered), views_of(rendered)
    except ConfigError as error:
        raise WorkflowError(f"The configuration can't be used:\n{error}") from None


clear_incomplete_marks(Path(".snakemake"))
GRID, RENDERED, EXHIBITS, VIEWS = load_grid()
DATA_MANIFEST = f"results/data/{GRID.data.name}/manifest.json"
ALL_EVALUATIONS = [
    f"results/evaluations/{run}/{evaluation}.json" for run, suites in GRID.suites.items() for evaluation in suites
]
SAMPLES_MANIFESTS = [f"results/needles/{name}/manifest.json" for name in GRID.samples]
NOVELTY_FILES = [f"results/novelty/{name}.json" for name in GRID.novelty]
# Nothing that is rendered takes the training of a finished run whose model isn't here.
LEFT_OUT = [name for name in GRID.novelty if name not in RENDERED.novelty]
if LEFT_OUT:
    logger.warning(
        f"Left out: the layer novelty of {len(LEFT_OUT)} evaluated runs whose models aren't here. `dvc pull novelty` "
        "brings it if it's published; `snakemake novelty` trains them again."
    )
VIEW_FILES = {name: f"results/views/{file_name(name, view)}" for name, view in VIEWS.items()}
TABLE_VIEWS = {name: VIEW_FILES[name] for name, exhibit in EXHIBITS.items() if exhibit.shown.table}
FIGURE_VIEWS = {name: VIEW_FILES[name] for name, exhibit in EXHIBITS.items() if exhibit.shown.figure}
# All forms of each: a job that was killed between two of them is missing one.
TABLES = [f"results/tables/{name}.{form}" for name in TABLE_VIEWS for form in ("csv", "md", "tex")]
FIGURES = [f"results/figures/{name}.{form}" for name in FIGURE_VIEWS for form in ("svg", "pdf", "png")]


wildcard_constraints:
    data=r"[a-z0-9.-]+-[0-9a-f]{8}",
    job=r"[0-9]+",
    jobs=r"[0-9]+",
    run=r"[a-z0-9_.-]+-[0-9a-f]{8}",
    evaluation=r"[a-z_]+-[0-9a-f]{8}",
    samples=r"niah-[a-z0-9.-]+-[0-9a-f]{8}",
    measurement=r"[a-z0-9_.-]+-[0-9a-f]{8}",
    exhibit=r"[a-z0-9_.-]+",


def look_up(things, kind, name):
    """An entry of the grid. Raises WorkflowError with all names: Snakemake would only say that a key is missing."""
    if name not in things:
        raise WorkflowError(f"this configuration has no {kind} '{name}'; it has {', '.join(things) or 'none'}")
    return things[name]


def unless_finished(product, inputs):
    """The inputs of a product, or nothing where it exists: a finished product is final.

    `ancient` isn't enough: an input that another job of the same call makes would have the product made again.
    """
    return [] if Path(product).exists() else inputs


def data_spec(wildcards):
    look_up({GRID.data.name: GRID.data}, "data set", wildcards.data)
    return GRID.data.to_json()


def token_parts(wildcards):
    """The records of the jobs that share the tokenising; none where one job does all."""
    jobs = GRID.config.data.jobs
    folder = f"results/data/{wildcards.data}"
    parts = [f"{folder}/parts/job-{job}-of-{jobs}.json" for job in range(jobs)] if jobs > 1 else []
    return unless_finished(f"{folder}/manifest.json", parts)


def token_plan(wildcards):
    folder = f"results/data/{wildcards.data}/parts"
    record = f"{folder}/job-{wildcards.job}-of-{wildcards.jobs}.json"
    return unless_finished(record, [f"{folder}/plan.json"])


def data_folder(wildcards):
    return f"results/data/{wildcards.data}"


def training_inputs(wildcards):
    return unless_finished(f"results/models/{wildcards.run}/manifest.json", [DATA_MANIFEST])


def run_spec(wildcards):
    return look_up(GRID.runs, "run", wildcards.run).to_json()


def run_execution(wildcards):
    return GRID.config.execution(look_up(GRID.runs, "run", wildcards.run).labels.scale)


def execution_json(wildcards):
    return run_execution(wildcards).to_json()


def nodes(wildcards):
    return run_execution(wildcards).nodes


def processes(wildcards):
    return run_execution(wildcards).processes


def gpu_request(wildcards):
    """One GPU a process, in the words of sbatch: any other way to ask makes the executor start several tasks."""
    return f"--gpus-per-node={run_execution(wildcards).processes_per_node}"


def suite_spec(wildcards):
    suites = look_up(GRID.suites, "run", wildcards.run)
    return look_up(suites, "evaluation", wildcards.evaluation).to_json()


def benchmarks_option(wildcards):
    """The folder and the files of items that an evaluation reads; none for other sources and suites."""
    spec = look_up(look_up(GRID.suites, "run", wildcards.run), "evaluation", wildcards.evaluation)
    if spec.suite != "zero_shot":
        return ""
    benchmarks = GRID.config.evaluation.zero_shot
    folder = [f"--benchmarks {shlex.quote(benchmarks.path)}"] if benchmarks.path else []
    files = {entry.task: entry.items for entry in benchmarks.additional if entry.items}
    return " ".join([*folder, *(f"--items {shlex.quote(f'{task}={file}')}" for task, file in files.items())])


def samples_spec(wildcards):
    return look_up(GRID.samples, "set of needle samples", wildcards.samples).to_json()


def samples_manifest(wildcards):
    """The samples that an evaluation of needles in a haystack reads; none for other suites and generators."""
    spec = look_up(look_up(GRID.suites, "run", wildcards.run), "evaluation", wildcards.evaluation)
    if getattr(spec, "generator", None) != "own":
        return []
    return [f"results/needles/{spec.samples.name}/manifest.json"]


def samples_inputs(wildcards):
    return unless_finished(f"results/needles/{wildcards.samples}/manifest.json", [DATA_MANIFEST])


def evaluation_inputs(wildcards):
    inputs = [f"results/models/{wildcards.run}/manifest.json", DATA_MANIFEST, *samples_manifest(wildcards)]
    return unless_finished(f"results/evaluations/{wildcards.run}/{wildcards.evaluation}.json", inputs)


def samples_option(wildcards):
    return " ".join(f"--samples {path}" for path in samples_manifest(wildcards))


def novelty_spec(wildcards):
    return look_up(GRID.novelty, "novelty measurement", wildcards.measurement).spec.to_json()


def novelty_model(wildcards):
    """The manifest of the run that is measured; none for an external model."""
    run = look_up(GRID.novelty, "novelty measurement", wildcards.measurement).run
    return [f"results/models/{run}/manifest.json"] if run else []


def novelty_data(wildcards):
    """The data set's manifest where its held-out documents are read; none for another text."""
    return [DATA_MANIFEST] if look_up(GRID.novelty, "novelty measurement", wildcards.measurement).spec.data else []


def novelty_inputs(wildcards):
    inputs = [*novelty_model(wildcards), *novelty_data(wildcards)]
    return unless_finished(f"results/novelty/{wildcards.measurement}.json", inputs)


def novelty_data_option(wildcards):
    return " ".join(f"--data {path}" for path in novelty_data(wildcards))


def novelty_model_option(wildcards):
    return " ".join(f"--model {path}" for path in novelty_model(wildcards))


def table_view(wildcards):
    return look_up(TABLE_VIEWS, "table", wildcards.exhibit)


def claims_view(wildcards):
    return VIEW_FILES["claims"]


def report_view(wildcards):
    return VIEW_FILES["report"]


def figure_view(wildcards):
    return look_up(FIGURE_VIEWS, "figure", wildcards.exhibit)


def exhibit_files(wildcards):
    """The results that an exhibit shows, and the file of your own that it is declared in."""
    exhibit = look_up(EXHIBITS, "exhibit", wildcards.exhibit)
    return [*VIEWS[wildcards.exhibit].files, *([exhibit.shown.file] if exhibit.shown.file else [])]


def exhibit_labels(wildcards):
    """How `snakemake --report` lists an exhibit."""
    return {"name": wildcards.exhibit, "title": EXHIBITS[wildcards.exhibit].title}


def exhibit_caption(wildcards):
    return EXHIBITS[wildcards.exhibit].shown.caption


def left_out_options(wildcards):
    return " ".join(f"--leave-out {name}" for name in LEFT_OUT)


def figure_options(wildcards):
    return " ".join(f"--figure {path}" for path in FIGURES if path.endswith(".svg"))


def whole_config(wildcards):
    return GRID.config.model_dump_json()
