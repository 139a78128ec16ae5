# make serve: a model at http://127.0.0.1:8080/v1.  make test: the tests.  Both set themselves up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEV_READY := $(VENV)/.ready-dev
PEERS := .venv-peers
KERNELS := tensorfold/kernels_cpu/src
INPUTS := pyproject.toml setup.py $(wildcard $(KERNELS)/*)
ARGS ?=

.PHONY: setup serve test bench peers conformance lint format sanitize

setup: $(READY)

$(BIN)/pip:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip

$(READY): $(INPUTS) | $(BIN)/pip
	@echo "Installing TensorFold into $(VENV); the first time takes a few minutes"
	$(BIN)/pip install --quiet --editable .
	touch $@

$(DEV_READY): $(INPUTS) | $(BIN)/pip
	@echo "Installing TensorFold and its tests' needs into $(VENV); the first time takes a few minutes"
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@ $(READY)

serve: $(READY)
	$(BIN)/tensorfold serve $(ARGS)

test: $(DEV_READY)
	$(BIN)/pytest $(ARGS)

bench: $(READY)
	$(BIN)/python -m benchmarks.serving $(ARGS)

# One pip call a line: an engine that can't be installed here leaves the others alone. llama.cpp is
# built without its image parts, which are half of it.
$(PEERS)/.ready: export CMAKE_ARGS ?= -DLLAVA_BUILD=OFF
$(PEERS)/.ready: benchmarks/peers-requirements.txt
	$(PYTHON) -m venv $(PEERS)
	grep -v '^#' $< | while read -r engine; do \
		$(PEERS)/bin/pip install --quiet $$engine < /dev/null || echo "could not install $$engine"; done
	touch $@

peers: $(READY) $(PEERS)/.ready
	$(BIN)/python -m benchmarks.peers $(ARGS)

# How faithfully recorded tool calls are read, and what other tools find in a running server.
conformance: $(DEV_READY)
	$(BIN)/python -m benchmarks.conformance
	$(BIN)/python -m benchmarks.http_conformance

lint: $(DEV_READY)
	$(BIN)/ruff check setup.py tensorfold tests benchmarks
	$(BIN)/ruff format --check setup.py tensorfold tests benchmarks
	$(BIN)/mypy

format: $(DEV_READY)
	$(BIN)/ruff check --fix setup.py tensorfold tests benchmarks
	$(BIN)/ruff format setup.py tensorfold tests benchmarks

# The CPU kernels under the address, undefined-behaviour and thread sanitizers.
sanitize:
	mkdir -p build
	for kind in address,undefined thread; do \
	  $(CXX) -std=c++17 -g -O1 -fsanitize=$$kind -fno-sanitize-recover=all -I$(KERNELS) \
	    tests/kernels/sanitize.cc $(filter-out $(KERNELS)/ffi.cc,$(wildcard $(KERNELS)/*.cc)) \
	    -pthread -o build/sanitize && build/sanitize || exit 1; \
	done
