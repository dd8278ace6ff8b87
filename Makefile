# Two commands from nothing: `make demo` and `make test`. Both need Python >= 3.11 with venv, pip, and nothing else.
#
#   PYTHON=python3.12 make demo                                     another interpreter
#   make demo PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"
#                                                                   torch without CUDA: a much smaller download
#   make test PYTEST_ARGS="-n 8 --dist loadfile"                   more processes than two, each of one thread

PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
PYTEST_ARGS ?= -n 2 --dist loadfile
BIN := $(VENV)/bin

.PHONY: demo test test-all lint format clean

demo: $(VENV)/.installed
	$(BIN)/diffrl train configs/quickstart.yaml run.name=demo-$$(date +%Y%m%d-%H%M%S)

test: $(VENV)/.installed-dev lint
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-all: $(VENV)/.installed-dev lint
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m ""

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "diffrl needs Python >= 3.11. Found: $$($(PYTHON) --version). Name another one: make PYTHON=python3.12 ..."; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -e '.[dev]'
	@touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis build *.egg-info
