# Every target sets up what it needs once; a second run installs nothing.
# `make demo` shows the whole thing; `make test` proves it.
SHELL := /bin/bash
.DEFAULT_GOAL := help

# The first interpreter of the machine that is new enough (3.11+).
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
# Tests wait twice as long as they work, for processes, servers and clocks: three processes keep a core busy.
TEST_PROCESSES ?= $(shell echo $$((3 * $$(getconf _NPROCESSORS_ONLN))))
# A test starts many processes: each would compile every module anew where the environment forbids to keep them compiled.
export PYTHONDONTWRITEBYTECODE :=
# For each parser.
FUZZ_SECONDS ?= 60
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
READY_RANK := $(VENV)/ready-rank
READY_ALL := $(VENV)/ready-all
# For every platform and Python; no index is named in what comes out. LOCK_ARGS=--upgrade takes the newest releases.
COMPILE := $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11 $(LOCK_ARGS)

# What benchmarks are made of; every other file of their folder is one.
BENCH_PARTS := $(addprefix benchmarks/,changing_web.py contenders.py crawls.py goals.py meters.py producers.py web.py)

# Installs a lock file beside what is there: a second one brings the first's packages in the same versions.
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --require-hashes -r

.PHONY: help setup setup-rank setup-all demo crawl test test-docs test-tools drills fuzz bench check check-all format lock build docs clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 12

$(READY): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; none was found on PATH"; exit 1; }
	@echo "setting up $(VENV) (once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv --clear $(VENV)
	@$(INSTALL) requirements.lock
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(READY_RANK): $(READY) requirements-rank.lock
	@echo "installing what convert and rank need (once)"
	@$(INSTALL) requirements-rank.lock
	@touch $@

$(READY_ALL): $(READY) requirements-all.lock
	@echo "installing tests, lint and all extras (once)"
	@$(INSTALL) requirements-all.lock
	@touch $@ $(READY_RANK)

setup: $(READY)  ## make .venv and install what a crawl needs, nothing else

setup-rank: $(READY_RANK)  ## install what convert and rank need too

setup-all: $(READY_ALL)  ## install all extras, tests and lint too

demo: $(READY)  ## crawl a small local web with two agents and show what was found
	@$(BIN)/python -m tests.farm.demo

crawl: $(READY)  ## make crawl SEEDS=https://example.org (or SEEDS=file.txt): a crawl of your own
	@test -n "$(SEEDS)" || { echo "make crawl: SEEDS is empty; expected SEEDS=https://… or SEEDS=FILE"; exit 2; }
	@$(BIN)/scrapy crawl site -a seeds="$(SEEDS)" $(ARGS)

test: $(READY_ALL)  ## all tests but those of the next three
	@$(BIN)/python -m pytest -m "not drill" --ignore=tests/tools --ignore=tests/docs -n $(TEST_PROCESSES) --dist worksteal $(ARGS)

test-docs: $(READY_ALL)  ## do what the pages of the docs say: commands, scripts, a cluster of two machines
	@$(BIN)/python -m pytest tests/docs -n $(TEST_PROCESSES) --dist worksteal $(ARGS)

test-tools: $(READY_ALL)  ## tests of the benchmarks, the simulators and the test web
	@$(BIN)/python -m pytest tests/tools -m "not drill" -n $(TEST_PROCESSES) --dist worksteal $(ARGS)

drills: $(READY_ALL)  ## the long ones: kills, outages, full disks, Spark
	@$(BIN)/python -m pytest -m drill --timeout=1800 $(ARGS)

fuzz: $(READY_ALL)  ## broken input for every parser, FUZZ_SECONDS (60) each
	@$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS) $(ARGS)

bench: $(READY_ALL)  ## all benchmarks, though one miss a goal; the last figures are in benchmarks/README.md
	@missed=; for b in $(filter-out $(BENCH_PARTS),$(wildcard benchmarks/[a-z]*.py)); do echo "== $$b"; $(BIN)/python $$b $(ARGS) || missed="$$missed $$b"; done; \
	  test -z "$$missed" || { echo "ended with another code than 0, a goal missed or worse:$$missed"; exit 1; }

check: $(READY_ALL)  ## format, lint and strict types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

check-all: check test test-docs test-tools drills  ## everything; takes more than half an hour

format: $(READY_ALL)  ## rewrite the files the way `make check` wants them
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lock: $(READY_ALL)  ## renew the lock files from the ranges in pyproject.toml, and the table of their wheels
	@$(COMPILE) pyproject.toml locking.in -o requirements.lock
	@$(COMPILE) pyproject.toml locking.in --extra rank -c requirements.lock -o requirements-rank.lock
	@$(COMPILE) pyproject.toml locking.in --extra test --extra lint -c requirements-rank.lock -o requirements-all.lock
	@named=$$(mktemp -d) && $(COMPILE) pyproject.toml locking.in --extra rank -c requirements-rank.lock --format pylock.toml \
	  -o $$named/pylock.toml && $(BIN)/python -m tests.tools.wheels $$named/pylock.toml > tests/wheels.txt; \
	  code=$$?; rm -rf $$named; exit $$code

build: $(READY_ALL)  ## wheel and sdist into dist/
	@rm -rf dist build
	@$(BIN)/uv build --quiet --no-build-isolation --python $(BIN)/python --out-dir dist .
	@ls -l dist

docs: $(READY_ALL)  ## renew docs/settings.md and the table of docs/redis-keys.md from the code
	@$(BIN)/python -m settings.document > docs/settings.md
	@$(BIN)/python -m crawler.queue.keys docs/redis-keys.md

clean:  ## remove everything that make and the crawls made
	rm -rf $(VENV) var build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
