# Two commands on a fresh machine: `make run` and `make test`. Everything lives in .venv at the root.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export CMAKE_INSTALL_ALWAYS := 1

.PHONY: native
# For work in the tree: compiles the kernels straight into src/octavo (then PYTHONPATH=src).
native:
	cmake -S . -B build/dev -G Ninja -DPython_EXECUTABLE=$(abspath $(BIN)/python) > /dev/null
	cmake --build build/dev
	cp build/dev/_native*.so src/octavo/
