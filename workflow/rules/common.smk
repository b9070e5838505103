# The grid of the configuration, and named look-ups in it. Nothing here imports torch: parsing must stay fast.
import json
from pathlib import Path

from snakemake.exceptions import WorkflowError
from tlm_repro.config_loading import parse as parse_config, read as read_config
from tlm_repro.errors import ConfigError
from tlm_repro.grid import expand as expand_grid
from tlm_repro.workflow import clear_incomplete_marks


def load_grid():
    source = ", ".join(str(path) for path in workflow.configfiles)
    try:
        for path in workflow.configfiles:
            read_config(Path(path))  # Snakemake's reader lets a key stand twice
        return expand_grid(parse_config(config, source))
    except ConfigError as error:
        raise WorkflowError(f"The configuration can't be used:\n{error}") from None


clear_incomplete_marks(Path(".snakemake"))
GRID = load_grid()
DATA_MANIFEST = f"results/data/{GRID.data.name}/manifest.json"
ALL_EVALUATIONS = [
    f"results/evaluations/{run}/{evaluation}.json" for run, suites in GRID.suites.items() for evaluation in suites
]
NOVELTY_FILES = [f"results/novelty/{name}.json" for name in GRID.novelty]
# All forms of each: a job that was killed between two of them is missing one.
TABLES = [f"results/tables/{name}.{form}" for name in GRID.tables for form in ("csv", "md", "tex")]
FIGURES = [f"results/figures/{name}.{form}" for name in GRID.figures for form in ("svg", "pdf", "png")]


wildcard_constraints:
    data=r"[a-z0-9.-]+-[0-9a-f]{8}",
    run=r"[a-z0-9_.-]+-[0-9a-f]{8}",
    evaluation=r"[a-z_]+-[0-9a-f]{8}",
    measurement=r"[a-z0-9_.-]+-[0-9a-f]{8}",


def known(things, kind, name):
    """The grid's entry, or an error that a user can act on: Snakemake would only say that a key is missing."""
    if name not in things:
        raise WorkflowError(f"this configuration has no {kind} '{name}'; it has {', '.join(things) or 'none'}")
    return things[name]


def data_spec(wildcards):
    known({GRID.data.name: GRID.data}, "data set", wildcards.data)
    return GRID.data.to_json()


def run_spec(wildcards):
    return known(GRID.runs, "run", wildcards.run).to_json()


def hardware(wildcards):
    return GRID.config.scales[known(GRID.runs, "run", wildcards.run).labels.scale].hardware


def micro_batch_sequences(wildcards):
    return hardware(wildcards).micro_batch_sequences or 0


def processes(wildcards):
    return hardware(wildcards).processes


def suite_spec(wildcards):
    suites = known(GRID.suites, "run", wildcards.run)
    return known(suites, "evaluation", wildcards.evaluation).to_json()


def novelty_spec(wildcards):
    return known(GRID.novelty, "novelty measurement", wildcards.measurement).spec.to_json()


def novelty_model(wildcards):
    """The manifest of the run that is measured; nothing for an external model."""
    run = known(GRID.novelty, "novelty measurement", wildcards.measurement).run
    return [f"results/models/{run}/manifest.json"] if run else []


def novelty_data(wildcards):
    """The data set's manifest where its held-out documents are read; nothing for another text."""
    return [DATA_MANIFEST] if known(GRID.novelty, "novelty measurement", wildcards.measurement).spec.data else []


def novelty_data_option(wildcards):
    return " ".join(f"--data {path}" for path in novelty_data(wildcards))


def novelty_model_option(wildcards):
    return " ".join(f"--model {path}" for path in novelty_model(wildcards))


def experiment_evaluations(wildcards):
    known(GRID.experiments, "experiment", wildcards.experiment)
    return [f"results/evaluations/{run}/{name}.json" for run, name in GRID.evaluations(wildcards.experiment)]


def experiment_view(wildcards):
    known(GRID.experiments, "experiment", wildcards.experiment)
    return json.dumps(GRID.view(wildcards.experiment))


def allocation_view(wildcards):
    return json.dumps(GRID.allocation_view())


def all_views(wildcards):
    return json.dumps([GRID.view(experiment) for experiment in GRID.experiments])


def toy_option(wildcards):
    return "--toy" if GRID.config.toy else "--no-toy"


def figure_options(wildcards):
    return " ".join(f"--figure {path}" for path in FIGURES if path.endswith(".svg"))


def whole_config(wildcards):
    return GRID.config.model_dump_json()
