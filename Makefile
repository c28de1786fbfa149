# Works in a fresh clone: `make train`, `make test`. Requires Python 3.11 or later with pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
READY := $(VENV)/.ready

.PHONY: install train test test-fast lint bench clean

install: $(READY)

train: $(READY)
	$(BIN)/python train.py

# On two cores, two processes with one thread each are faster than one process with two threads.
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS)

test-fast: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) -m "not slow"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m benchmarks

# This uses pip, because uv would not find the CPU build of torch where one is provided. torch is installed first and
# alone, so that no other package can request a different build.
$(READY): pyproject.toml constraints.txt requirements-embedded.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --constraint constraints.txt torch
	$(PIP) --constraint constraints.txt --editable ".[gguf,math,server,dev]"
	$(PIP) --no-deps --require-hashes --requirement requirements-embedded.txt
	touch $(READY)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
