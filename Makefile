# Two commands do everything on a fresh machine: `make demo` and `make test`. `make help` lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --no-print-directory

PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
CONSTRAINTS ?= constraints.txt
EXTRAS ?= dev
SESSIONS ?= 8000
DEVICE ?= auto
JOBS ?= 2
PYTEST_ARGS ?=
BENCH_ARGS ?=
GPU_ARGS ?=
DOCS_ARGS ?=
GPU_VENV ?= .venv-gpu
GPU_PYTHON ?=
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.installed-docs

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help venv demo demo-alive test test-device lint format bench bench-e2e bench-extreme bench-features bench-loaders bench-training gpu notebooks docs clean distclean

help:  ## list what can be made
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

venv: $(STAMP)  ## make .venv with everything the other targets need (PYTHON=python3.12 picks another Python)

$(STAMP): pyproject.toml $(CONSTRAINTS)
	@command -v $(PYTHON) >/dev/null || { echo "error: no $(PYTHON) here. fastrec needs Python 3.11 or newer; name yours: make venv PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit(f"error: $(PYTHON) is Python {v[0]}.{v[1]}. fastrec needs 3.11 or newer; name another: make venv PYTHON=python3.12")'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "error: $(PYTHON) comes without the venv module. Install it (on Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@echo "==> making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@echo "==> installing the packages of $(CONSTRAINTS) (some minutes the first time)"
	@$(BIN)/python -m pip install -q --progress-bar off --no-compile $(PIP_ARGS) -c $(CONSTRAINTS) -e '.[$(EXTRAS)]'
	@touch $@
	@echo "==> $(VENV) is ready"

demo: $(STAMP)  ## simulate the trivago files, train everything, print the leaderboard, write runs/demo/ (SESSIONS=8000)
	$(BIN)/fastrec simulate competitions/trivago2019 --sessions $(SESSIONS) --out runs/demo-data
	$(BIN)/fastrec run competitions/trivago2019 --data runs/demo-data --out runs/demo --device $(DEVICE)

demo-alive: $(STAMP)  ## 14 simulated days in which tastes change: drift, retraining behind a gate, rollback; runs/alive/
	$(BIN)/python competitions/trivago2019/alive.py --out runs/alive

# Some hundred processes of the tests and notebooks import the library: what Python compiles is kept, in the environment.
test test-device docs: export PYTHONDONTWRITEBYTECODE =
test test-device docs: export PYTHONPYCACHEPREFIX = $(abspath $(VENV))/pycache

# One thread in each process: two workers that each take every core wait for one another.
test: $(STAMP)  ## run the whole test-suite (JOBS=2 processes; DEVICE=cuda; PYTEST_ARGS='-k mrr' passes more)
	$(if $(filter-out auto,$(DEVICE)),FASTREC_DEVICE=$(DEVICE) )OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile $(PYTEST_ARGS)

# Its accelerator is compiled from tests/device/standin.cpp, once a machine. All the rooms that touch tensors: by hand,
# make test DEVICE=standin PYTEST_ARGS='tests/table tests/tabular ...'.
test-device: $(STAMP)  ## rehearse the GPU path without a GPU: CUDA's refusals, and how often the host waits for the device
	FASTREC_DEVICE=standin OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS) --dist load tests/device tests/segments tests/losses $(PYTEST_ARGS)

lint: $(STAMP)  ## check style, form, and that imports between the rooms of the library point one way
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYTHONPATH="$(CURDIR)" $(BIN)/lint-imports --no-cache

format: $(STAMP)  ## mend style and form where it can be done by machine
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The allocator's settings are the process's: a benchmark's own process may change them.
bench bench-e2e bench-extreme bench-features bench-loaders bench-training gpu: export FASTREC_KEEP_MEMORY ?= 1

bench: $(STAMP)  ## run every benchmark in tests/bench; each prints its table and writes runs/bench/<name>.json
	@mkdir -p runs/bench
	@for file in $$(ls tests/bench/bench_*.py | grep -v bench_gpu); do echo "==> $$file"; $(BIN)/python $$file; done

bench-features: $(STAMP)  ## time the features beside pandas, polars, DuckDB and NVTabular (BENCH_ARGS='--cases eight')
	$(BIN)/python tests/bench/bench_features.py $(BENCH_ARGS)

bench-loaders: $(STAMP)  ## time TabularFrame and the loaders beside fastai, torch and NVTabular (BENCH_ARGS='--cases epoch')
	$(BIN)/python tests/bench/bench_loaders.py $(BENCH_ARGS)

bench-training: $(STAMP)  ## time training and optimizers beside fastai and torch (BENCH_ARGS='--cases small')
	$(BIN)/python tests/bench/bench_training.py $(BENCH_ARGS)

bench-extreme: $(STAMP)  ## AUC of AdamW, LAMB and CowClip up to batch 819,200 (BENCH_ARGS='--rows 4000000 --resume')
	$(BIN)/python tests/bench/bench_extreme.py $(BENCH_ARGS)

bench-e2e: $(STAMP)  ## from raw files to scores beside pandas and fastai; writes BENCHMARKS.md (BENCH_ARGS='--rows 300000')
	$(BIN)/python tests/bench/bench_e2e.py $(BENCH_ARGS)

# The look at the machine comes first: an environment with RAPIDS takes minutes and gigabytes.
gpu: GPU_DEVICE = $(if $(filter auto,$(DEVICE)),cuda,$(DEVICE))
gpu:  ## the whole check on an NVIDIA GPU; writes GPU.md (GPU_ARGS='--cases suite'; GPU_PYTHON=python3: no new venv)
	@[[ "$(GPU_DEVICE)" != cuda* ]] || compgen -G '/dev/nvidia[0-9]*' >/dev/null || [[ -e /dev/dxg ]] \
		|| { echo "error: no NVIDIA GPU was found on this machine. make gpu needs one with its driver, a CUDA build of torch and, for cuDF, the extra 'gpu' (see GPU.md); make gpu DEVICE=cpu GPU_ARGS=--small tries the check on a CPU" >&2; exit 1; }
	@[[ -n "$(GPU_PYTHON)" ]] || $(MAKE) venv $(if $(filter cpu,$(GPU_DEVICE)),,VENV=$(GPU_VENV) CONSTRAINTS=constraints-gpu.txt EXTRAS=dev,gpu)
	PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}" $(or $(GPU_PYTHON),$(if $(filter cpu,$(GPU_DEVICE)),$(VENV),$(GPU_VENV))/bin/python) tests/bench/bench_gpu.py --device $(GPU_DEVICE) $(GPU_ARGS)

notebooks: $(STAMP)  ## execute every notebook in nbs/
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/nbdev-test --n-workers 0 --do-print

$(DOCS_STAMP): $(STAMP)
	@echo "==> installing what builds the site"
	@$(BIN)/python -m pip install -q --progress-bar off --no-compile $(PIP_ARGS) -c $(CONSTRAINTS) -e '.[docs]'
	@touch $@

# Pages are built and notebooks run side by side: one thread in each process, as for the tests.
# A public name without an entry, a link to nowhere and a page that would fetch anything from elsewhere are errors.
docs: $(DOCS_STAMP)  ## build the site in docs/_build/html, running every notebook (DOCS_ARGS='-D nb_execution_mode=off': none)
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -q -W -n --keep-going -b html -d docs/_build/doctrees -j $(JOBS) $(DOCS_ARGS) docs docs/_build/html
	$(BIN)/python docs/check.py docs/_build/html

clean:  ## remove what the demo, the benchmarks and the tools leave behind (your own runs stay)
	rm -rf runs/demo runs/demo-data runs/alive runs/e2e-data runs/bench build dist *.egg-info .pytest_cache .ruff_cache .hypothesis _docs docs/_build docs/notebooks
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean  ## clean, and remove .venv too
	rm -rf $(VENV)
