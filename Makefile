# The front door for a person at a fresh checkout: `make quickstart` or `make test` install all they need.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup quickstart test soak lint check-configs bench bench-explorers bench-stall bench-alignment clean

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
ARGS ?=
MINUTES ?= 10
# most tests wait for processes and leases rather than for a core
WORKERS ?= 3

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(INSTALLED)  ## Create .venv with the whole CPU environment (4.5 GB; minutes the first time, nothing after)

$(INSTALLED): requirements/cpu.txt pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v[:2] != (3, 11) and f"the resolved list is for Python 3.11, not {v[0]}.{v[1]}: make PYTHON=/path/to/python3.11")'
	@echo "setup: creating $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setup: installing $$(grep -c == $<) packages"
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps -r $<
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(BIN)/python -c 'import torch' || { echo "setup: torch does not import: name a CPU build in PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL (see $<)"; exit 1; }
	@touch $@
	@echo "setup: done"

quickstart: setup  ## Fine-tune a small model on this machine's CPU while you watch (about 7 minutes)
	$(BIN)/trinity prepare
	$(BIN)/trinity run --config configs/quickstart.yaml $(ARGS)

test: setup  ## Run the tests (ARGS='-k codec' chooses)
	$(BIN)/pytest --numprocesses $(WORKERS) --dist loadgroup $(ARGS)

soak: setup  ## Do everything that can happen to run after run, for MINUTES=n (TRINITY_SOAK_SEED=s begins there)
	TRINITY_SOAK_MINUTES=$(MINUTES) $(BIN)/pytest -q tests/chaos/test_soak.py -k new_seeds $(ARGS)

lint: setup  ## Check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/yamllint --strict configs docker

check-configs: setup  ## Validate every configuration file
	@failed=0; \
	while IFS= read -r file; do \
	    if $(BIN)/trinity check "$$file" >$(VENV)/.check.log 2>&1; then echo "ok      $$file"; \
	    else echo "FAILED  $$file"; cat $(VENV)/.check.log; failed=1; fi; \
	done < <(find configs -name '*.yaml' | sort); \
	rm -f $(VENV)/.check.log; exit $$failed

bench: setup  ## Measure speed against stated references (benchmarks/)
	$(BIN)/python benchmarks/codec.py
	$(BIN)/python benchmarks/throughput.py $(ARGS)

bench-explorers: setup  ## Measure what 1, 10, 100 and 1,000 simulated explorers cost one server (3 minutes)
	$(BIN)/python benchmarks/explorers.py $(ARGS)

bench-stall: setup  ## Measure each service's memory while the trainer stands still (5 minutes)
	$(BIN)/python benchmarks/stall.py $(ARGS)

bench-alignment: setup  ## Train one model by veRL's own trainer and by ours, numbers and weights side by side (2 minutes)
	$(BIN)/python -m benchmarks.alignment.compare $(ARGS)

clean:  ## Remove caches and build outputs; keep .venv, prepared models and runs
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +
