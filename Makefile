# The verbs of the project; every one works on a fresh clone, because each depends on the stamp of `setup`.
# PYTHON chooses the interpreter of the venv (3.11 or newer); ARGS reaches pytest, `parlmesh up` and the benchmarks.
PYTHON ?= python3
ARGS ?=
# An index that has torch's CPU build, where pip does not find one by itself; the CUDA build works too and is large.
TORCH_INDEX ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SOURCES := parlmesh learner actor scheduler tools tests examples
# protoc finds its plugins, and benchmarks their tools, by PATH.
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Tests start many processes, and each would compile the sources again where the environment forbids to keep bytecode.
export PYTHONDONTWRITEBYTECODE :=
TORCH := $(shell grep '^torch==' constraints.txt)
# uv does in seconds what pip does in minutes; pip stays for torch, whose CPU build only pip's settings may name, and for
# an index that only pip knows. Bytecode is compiled once for all, on all cores, and not file by file by each of them.
PIP := $(BIN)/python -m pip install --quiet --no-compile

.PHONY: help setup protos release lock check format test e2e run bench docs nightly clean
.DEFAULT_GOAL := help

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## the venv .venv with everything in it
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"parlmesh needs Python 3.11 or newer, {sys.executable} is {sys.version.split()[0]}; make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) $(TORCH)
	$(PIP) --constraint constraints.txt uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[dev]' || $(PIP) --constraint constraints.txt --editable '.[dev]'
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib > /dev/null || true
	@touch $@

protos: $(STAMP) ## regenerate parlmesh/v1 from protos/
	$(BIN)/python tools/gen_protos.py

release: $(STAMP) ## at a release: the contract as it stands is what `check` compares with from now on
	$(BIN)/buf build --exclude-source-info --output protos/released.binpb

lock: $(STAMP) ## rewrite requirements.lock, with hashes, from constraints.txt
	$(BIN)/python tools/lock.py

check: $(STAMP) ## format, lint, types, import rules, protos
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(SOURCES)
	$(BIN)/lint-imports
	$(BIN)/python tools/gen_protos.py --check
	$(BIN)/buf lint
	$(BIN)/buf breaking --against protos/released.binpb

format: $(STAMP) ## rewrite the sources as `check` wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: $(STAMP) ## unit, integration and short end-to-end tests
	$(BIN)/python -m pytest -q -n 4 --dist worksteal -m 'not slow' $(ARGS)

e2e: $(STAMP) ## only the tests that start real processes
	$(BIN)/python -m pytest -q -m e2e $(ARGS)

run: $(STAMP) ## train CartPole with a fleet on this machine
	$(BIN)/parlmesh up $(ARGS)

bench: $(STAMP) ## every benchmark in tools/bench, one after the other
	@set -e; for benchmark in tools/bench/*.py tools/bench/federation/*.py tools/bench/applications/*.py; do echo "== $$benchmark"; $(BIN)/python $$benchmark $(ARGS); done

docs: $(STAMP) ## the documentation as a site, in site/; dead links fail
	PYTHONPATH=. $(BIN)/python tools/reference.py docs/reference
	$(BIN)/mkdocs build

nightly: $(STAMP) ## the long tests
	$(BIN)/python -m pytest -q -m slow --timeout=3600 $(ARGS)

clean: ## forget caches and builds; the venv and runs stay
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find $(SOURCES) -name __pycache__ -prune -exec rm -rf {} +
