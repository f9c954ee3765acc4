# Two commands on a fresh machine: `make run` and `make test`. Everything they need lives in .venv at the root.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODEL ?= smollm2:135m
QUESTION ?= What is the capital of France?
SOURCES := $(shell git ls-files src native CMakeLists.txt pyproject.toml 2>/dev/null)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
export CMAKE_INSTALL_ALWAYS := 1

.PHONY: run test lint bench docs native mutants fidelity clean

run: $(VENV)/run.stamp
	@$(BIN)/octavo pull $(MODEL)
	@$(BIN)/octavo run $(MODEL) "$(QUESTION)"

test: $(VENV)/dev.stamp
	$(BIN)/octavo pull smollm2:135m
	$(BIN)/python -m pytest -n 2

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check src tests bench
	$(BIN)/ruff format --check src tests bench
	$(BIN)/mypy

bench: $(VENV)/dev.stamp
	$(BIN)/octavo pull $(MODEL)
	$(BIN)/python bench/step.py
	$(BIN)/python bench/start.py $(MODEL)
	$(BIN)/octavo bench $(MODEL) --json

docs: $(VENV)/dev.stamp
	$(BIN)/python -m octavo.cli.reference > docs/cli.md

# Mutants of policy/ against its own suite: figures in docs/policy.md.
mutants: $(VENV)/dev.stamp
	PYTHONPATH=tests $(BIN)/python -m policy.mutants

# Native kernels against the reference in fp32 on three English texts: figures in docs/fidelity.md.
fidelity: $(VENV)/dev.stamp
	$(BIN)/octavo pull $(MODEL)
	$(BIN)/python bench/fidelity.py $(MODEL) --kinds BF16 Q8_0

# For work in the tree: compiles the kernels straight into src/octavo (then PYTHONPATH=src).
native:
	cmake -S . -B build/dev -G Ninja -DPython_EXECUTABLE=$(abspath $(BIN)/python) > /dev/null
	cmake --build build/dev
	cp build/dev/_native*.so src/octavo/

clean:
	rm -rf build dist $(VENV) src/octavo/_native*.so

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# The engine alone, as a user installs it: no torch.
$(VENV)/run.stamp: $(VENV)/bin/python $(SOURCES)
	@test -e $(VENV)/dev.stamp || $(PIP) .
	@test ! -e $(VENV)/dev.stamp || $(MAKE) --no-print-directory $(VENV)/dev.stamp
	@touch $@

# Everything that developing and testing needs; editable, without build isolation, so that a rebuild takes seconds.
$(VENV)/dev.stamp: $(VENV)/bin/python $(SOURCES)
	$(PIP) scikit-build-core==1.1.2 nanobind==3.1.0
	@command -v cmake > /dev/null && command -v ninja > /dev/null || $(PIP) cmake ninja
	$(PIP) --no-build-isolation -e '.[dev]'
	@touch $@
