# `make demo` and `make test` start from nothing but Python >= 3.10, a C++ compiler and make.

PYTHON ?= python3
VENV ?= .venv
# Installed only where the environment has no torch yet. Any pip requirement will do.
TORCH ?= torch==2.13.0

BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install -qq
# A compiler of tomorrow may warn of more: that stops us, not a user.
WERROR := $(if $(CI),--config-settings=cmake.define.FASTSAL_WERROR=ON)
INSTALLED := $(VENV)/.fastsal-installed
CPP_SOURCES := $(shell find kernels -name '*.cpp' -o -name '*.h')

# Tests and the demo use the data sets in this folder where it exists; they do without otherwise.
ifneq ($(wildcard ../shared/data),)
export FASTSAL_DATA ?= $(abspath ../shared/data)
endif
export HF_HUB_OFFLINE ?= 1

.PHONY: demo test bench docs check sanitize format clean

demo: $(INSTALLED)
	$(BIN)/python -m fastsal.demo

# A process per core, each with one thread; tests of threads and of memory then have the cores for themselves.
test: $(INSTALLED) check
	$(BIN)/python -m pytest -q -n auto --dist worksteal -m 'not quiet' --durations 10
	$(BIN)/python -m pytest -q -m quiet

# Some ten minutes. The rivals take part where they are installed: pip install '.[peers]'.
bench: $(INSTALLED)
	mkdir -p build
	$(BIN)/python -m pytest benchmarks --benchmark-only --benchmark-json build/benchmarks.json

# The API reference, from the docstrings: build/docs/fastsal.html
docs: $(INSTALLED)
	$(BIN)/python -c 'import pdoc' 2>/dev/null || $(PIP_INSTALL) pdoc
	$(BIN)/python -W ignore -m pdoc --docformat google -o build/docs fastsal fastsal.evaluation fastsal.pooling

check: $(INSTALLED)
	mkdir -p build
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --quiet --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache > build/imports.log 2>&1 || { cat build/imports.log; exit 1; }
	$(if $(CPP_SOURCES),$(BIN)/clang-format --dry-run -Werror $(CPP_SOURCES))

format: $(INSTALLED)
	$(BIN)/ruff check --quiet --fix .
	$(BIN)/ruff format --quiet .
	$(if $(CPP_SOURCES),$(BIN)/clang-format -i $(CPP_SOURCES))

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): pyproject.toml $(wildcard CMakeLists.txt) $(CPP_SOURCES) | $(BIN)/python
	$(BIN)/python -c 'import torch' 2>/dev/null || $(PIP_INSTALL) '$(TORCH)'
	$(PIP_INSTALL) $(WERROR) --editable '.[test]'
	touch $@

# The kernels, called from several threads, under AddressSanitizer and under ThreadSanitizer.
sanitize: $(INSTALLED)
	mkdir -p build
	for sanitizer in address thread; do \
	    cmake -S . -B build/sanitize-$$sanitizer -DFASTSAL_SANITIZE=$$sanitizer -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	        > build/sanitize-$$sanitizer.log && \
	    cmake --build build/sanitize-$$sanitizer --parallel 2 >> build/sanitize-$$sanitizer.log && \
	    build/sanitize-$$sanitizer/fastsal_stress || exit 1; \
	done

clean:
	rm -rf build $(INSTALLED)
