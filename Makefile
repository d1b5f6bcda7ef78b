# make demo   train on real data          make check    formatting, lint, types
# make test   the whole test suite        make kernels  build the kernels that the package carries
# make bench  the benchmarks              make docs     write the generated tables again
# make wheel  the package, with kernels   make clean    remove what the above made
# With an NVIDIA card: make test-cuda     bits against the CPU     make bench-cuda   times
#
# Everything happens inside .venv, which is made when it is missing. PYTHON names the interpreter that makes
# it: make PYTHON=python3.12 test.

PYTHON ?= python3
JOBS ?= $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
ARGS ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
TIMED := $(BIN)/python -m pytest -q -p no:xdist --benchmark-enable --benchmark-only --benchmark-columns=median

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-cuda bench bench-cuda check kernels wheel docs clean

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | head -n 5

demo: .venv/examples.stamp
	$(BIN)/python examples/digits.py $(ARGS)

test: .venv/dev.stamp
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

test-cuda: .venv/dev.stamp
	$(BIN)/python bench/card.py bits $(ARGS)

bench-cuda: .venv/dev.stamp .venv/bench.stamp
	$(BIN)/python bench/card.py times $(ARGS)

bench: .venv/bench.stamp kernels
	BENCH_THREADS=1 $(TIMED) --benchmark-json=.bench.1.json bench $(ARGS)
	BENCH_THREADS=2 $(TIMED) --benchmark-json=.bench.2.json bench/bench_arrays.py bench/bench_step.py bench/bench_models.py bench/bench_start.py bench/bench_windows.py $(ARGS)
	$(BIN)/python bench/report.py .bench.1.json .bench.2.json docs/performance.md

check: .venv/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

kernels: .venv/base.stamp
	$(BIN)/python -m topos kernels $(ARGS)

wheel: kernels
	$(PIP) wheel --no-deps --wheel-dir dist .

docs: .venv/dev.stamp
	$(BIN)/python docs/generate.py $(ARGS)

clean:
	rm -rf topos/kernels/objects .venv .pytest_cache .hypothesis .mypy_cache .ruff_cache .benchmarks htmlcov build dist
	rm -f .coverage .coverage.* .bench*.json *_loss.png moons.png
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp per set of packages, newer than pyproject.toml: nothing is installed twice.

.venv/base.stamp: pyproject.toml .venv/made.stamp
	@echo "Installing topos into .venv ..."
	@$(PIP) install --editable .
	@touch $@

.venv/%.stamp: pyproject.toml .venv/made.stamp
	@echo "Installing topos[$*] into .venv ..."
	@$(PIP) install --editable ".[$*]"
	@touch $@

# Written once the environment is whole: a failed attempt leaves .venv, but not this file.
.venv/made.stamp:
	@command -v "$(PYTHON)" >/dev/null 2>&1 || { \
	  echo "topos needs Python 3.11 to 3.13, and there is no $(PYTHON) here."; \
	  echo "Install one (Debian: apt-get install python3 python3-venv), or name yours: make PYTHON=/path/to/python3.12 ..."; \
	  exit 1; } >&2
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || { \
	  echo "topos needs Python 3.11 to 3.13; $(PYTHON) is $$("$(PYTHON)" --version 2>&1)."; \
	  echo "Name another one: make PYTHON=python3.12 ..."; \
	  exit 1; } >&2
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) has no venv module. Install it (Debian: apt-get install python3-venv), then run make again."; \
	  exit 1; } >&2
	@echo "Making .venv ..."
	@"$(PYTHON)" -m venv .venv
	@touch $@
