# Two commands from nothing: `make demo` and `make test`. Both need Python >= 3.11 with venv, pip, and nothing else.
# They share one environment and install the versions that were tested (scripts/constraints/tested.txt).
#
#   PYTHON=python3.12 make demo                                     another interpreter
#   make demo PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"
#                                                                   torch without CUDA: a much smaller download
#   make test PYTEST_ARGS="-n 8 --dist worksteal"                  more processes than two, each of one thread
#   make test-long                                                 what takes servers, several processes or long browser tours
#   make test-processors                                           tests of the numbers again, as an older processor computes
#                                                                   them and with another one's rounding on top
#   make test-all                                                  both, and what takes minutes
#   make docs                                                       the documentation as a site, in site/; dead links fail
#   make test-newest, make test-oldest                              with the newest versions that pyproject.toml allows, or
#                                                                   its oldest, each in an environment of its own

PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
SITE ?= site
PYTEST_ARGS ?= -n 2 --dist worksteal
CONSTRAINTS ?= scripts/constraints/tested.txt
BIN := $(VENV)/bin
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) $(if $(CONSTRAINTS),-c $(CONSTRAINTS))

.PHONY: demo docs test test-long test-processors test-all test-newest test-oldest pytest lint format constraints clean

demo: $(VENV)/.installed
	$(BIN)/diffrl demo run.name=demo-$$(date +%Y%m%d-%H%M%S)

# In an environment of its own, and without diffrl, whose modules the pages do not need.
docs:
	$(MAKE) VENV=$(VENV)-docs $(VENV)-docs/bin/python
	$(VENV)-docs/bin/python -m pip install --quiet --disable-pip-version-check "$$($(VENV)-docs/bin/python -c \
	  'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')"
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/python scripts/build_docs.py --out $(SITE)

test: lint pytest

test-long:
	$(MAKE) pytest PYTEST_ARGS='$(PYTEST_ARGS) -m "long and not slow"'

# Files in the numbers' folders whose tests are of messages, files, failures, names, counts and devices that are not there,
# which no rounding changes.
NUMBERS = tests/training tests/rollout tests/models tests/functional
NO_NUMBERS = $(addprefix */training/test_,every_key.py guards.py image_to_video.py kl_target.py lost_sources.py memory_gate.py \
  own_*.py played_cuda.py prompt_report.py remote_reward.py reward_hacking.py several_rewards.py shared_weights.py editing.py) \
  $(addprefix */models/test_,family_facts.py images.py loading.py lora_file.py own_adapter.py published.py text_encoders.py \
  videos.py weights.py) \
  $(addprefix */rollout/test_,costs.py fake_cuda.py select.py tree.py) \
  $(addprefix */functional/test_,selection.py steps.py tree_counts.py)

# Kernels down to SSE4 (torch's own, oneDNN's and MKL's), rounding that depends on shapes and alignment (tests/rounding.py), and
# the dtypes that CUDA's autocast would give (tests/cuda_rules.py).
test-processors: export ATEN_CPU_CAPABILITY = default
test-processors: export ONEDNN_MAX_CPU_ISA = SSE41
test-processors: export MKL_ENABLE_INSTRUCTIONS = SSE4_2
test-processors:
	$(MAKE) pytest PYTEST_ARGS='$(PYTEST_ARGS) -p tests.rounding -p tests.cuda_rules $(NUMBERS) $(NO_NUMBERS:%=--ignore-glob=%)'

test-all: lint
	$(MAKE) pytest PYTEST_ARGS='$(PYTEST_ARGS) -m ""'

# The linters of other versions have other rules: only behaviour is tested.
test-newest:
	$(MAKE) pytest VENV=$(VENV)-newest CONSTRAINTS=

test-oldest:
	$(MAKE) pytest VENV=$(VENV)-oldest CONSTRAINTS=scripts/constraints/oldest.txt

pytest: $(VENV)/.installed-dev
	$(BIN)/python -m pytest $(PYTEST_ARGS)

# Our own folders: what users keep beside them, such as a reward of theirs, is none of the linter's business.
LINTED = diffrl reward_models scripts tests docs

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check $(LINTED)
	$(BIN)/ruff format --check $(LINTED)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	@if [ -e .git ]; then $(BIN)/python scripts/lines.py; fi

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix $(LINTED)
	$(BIN)/ruff format $(LINTED)

constraints: $(VENV)/.installed-dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/python scripts/make_constraints.py

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "diffrl needs Python >= 3.11. Found: $$($(PYTHON) --version). Name another one: make PYTHON=python3.12 ..."; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml $(CONSTRAINTS)
	$(PIP) -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/bin/python pyproject.toml $(CONSTRAINTS)
	$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) $(VENV)-newest $(VENV)-oldest $(VENV)-docs site .pytest_cache .ruff_cache .mypy_cache .hypothesis build *.egg-info
