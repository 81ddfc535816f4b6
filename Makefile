# make demo [DATA=folder]   enrol real people, learn together, verify      make test   all tests
# make check                everything CI runs: style, types, contracts, tests, wheel, other Pythons
# make compatibility        Python 3.11 to 3.13, newest and oldest dependencies, without torch
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATA ?=
OUTPUT ?= demo-output
DEMO_ARGUMENTS ?=

# One BLAS thread a process: the demo and the tests run several processes, and two threads in each are slower than one.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: demo test check style types contracts smoke compatibility format clean

demo: $(VENV)/.demo
	$(BIN)/python examples/demo/run.py --output $(OUTPUT) $(if $(DATA),--data $(DATA)) $(DEMO_ARGUMENTS)

test: $(VENV)/.dev
	$(BIN)/python -m uvsdk models fetch --all || echo 'tests that need these weights will be skipped'
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

check: style types contracts test smoke compatibility

style: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.dev
	$(BIN)/mypy

contracts: $(VENV)/.dev
	$(BIN)/lint-imports

smoke: $(VENV)/.dev
	$(BIN)/python tests/smoke/wheel.py

compatibility: $(VENV)/.dev
	$(BIN)/python tests/compatibility/run.py

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "uvsdk needs Python 3.11 or newer; name one with make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.demo: pyproject.toml | $(VENV)/bin/python
	@if [ -e $(VENV)/.dev ] && [ $(VENV)/.dev -nt pyproject.toml ]; then touch $@; else \
	  echo "installing into $(VENV): torch alone is several GB, about two minutes"; \
	  $(BIN)/python -m pip install --quiet --editable '.[demo]' && touch $@; fi

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	@echo "installing into $(VENV): torch alone is several GB, about three minutes"
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) $(OUTPUT) build dist
