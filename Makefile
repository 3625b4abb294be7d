# Every target works from a clean clone: it sets up what it needs, once.
# `make run` needs Python only. Spark tests want Java 17+, the protocol suite wants Node 20+;
# the set-up looks for both and gets them where it can (scripts/find_java.sh, find_node.sh).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CODE := engine api jobs bottomless
HOST ?= 127.0.0.1
PORT ?= 4437
ROOT ?= ./data
# Extra arguments for pytest and the benchmark, e.g. make test-unit ARGS="-k wal -x".
ARGS ?=

BASE := $(VENV)/.base-stamp
DEV := $(VENV)/.dev-stamp
JARS := $(VENV)/delta-jars/.stamp
NODE := tests/conformance/node_modules/.stamp

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# --- set-up ---------------------------------------------------------------------------------

$(BIN)/uv: requirements/tools.txt scripts/make_venv.sh
	PYTHON="$(PYTHON)" scripts/make_venv.sh $(VENV)
	@touch $@

# The compat mode puts the whole clone on the path, so a new package needs no new install.
$(BASE): requirements/base.txt pyproject.toml $(BIN)/uv
	scripts/install_lock.sh $(VENV) requirements/base.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--no-build-isolation --config-settings editable_mode=compat --editable .
	@touch $@

$(DEV): requirements/dev.txt $(BASE)
	scripts/install_lock.sh $(VENV) requirements/dev.txt
	@touch $@

# Without Java this succeeds, says what to do and leaves no stamp: only the Spark tests need it,
# and they skip with the same words.
$(JARS): requirements/jars.sha256 scripts/fetch_jars.py scripts/find_java.sh \
		conf/spark-defaults.conf conf/log4j2.properties | $(DEV)
	$(BIN)/python scripts/fetch_jars.py

$(NODE): tests/conformance/package-lock.json tests/conformance/package.json | $(DEV)
	scripts/install_node.sh $(VENV)

.PHONY: install jars fault-tools lock
install: $(DEV) $(JARS) $(NODE) ## Set up everything: .venv, Delta jars, the protocol suite
jars: $(JARS) ## Fetch the Delta jars that the Spark jobs load, once
fault-tools: ## Get strace, mkfs.ext4 and a C compiler for the fault suite, where that works
	scripts/install_fault_tools.sh
lock: $(BIN)/uv ## Regenerate every lock file (ARGS=--upgrade to move versions)
	scripts/lock.sh $(BIN)/uv $(ARGS)

# --- use ------------------------------------------------------------------------------------

.PHONY: run
run: $(BASE) ## Start the server on 127.0.0.1:4437 with its data in ./data
	exec scripts/run.sh $(BIN) $(ROOT) $(HOST) $(PORT)

# A job for one stream or for all: make compact STREAM=orders ARGS=--dry-run
JOB = $(BIN)/bottomless $@ --root $(ROOT) $(if $(STREAM),--stream $(STREAM)) $(ARGS)
.PHONY: compact index retain replay check maintain
compact: $(DEV) $(JARS) ## Join small files (STREAM=, ARGS=; ARGS=--help shows the flags)
	$(JOB)
index: $(DEV) ## Write the offset index
	$(JOB)
retain: $(DEV) ## Apply retention, vacuum, clean the logs
	$(JOB)
replay: $(DEV) $(JARS) ## Replay a range: ARGS="--since -1h --to ndjson --output DIR"
	$(JOB)
check: $(DEV) $(JARS) ## Check that streams are whole
	$(JOB)
maintain: $(DEV) $(JARS) ## Keep all streams in shape until Ctrl-C
	$(JOB)

# --- check ----------------------------------------------------------------------------------

.PHONY: lint format
lint: $(DEV) ## Style, types, layers, spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell $(CODE) tests scripts conf Makefile $(wildcard docs bench *.md)

format: $(DEV) ## Rewrite the code in the project's style
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

PYTEST = $(BIN)/python -m pytest --durations=15 $(ARGS)

.PHONY: test test-unit test-property test-spark test-conformance test-crash test-faults sim
test: install fault-tools lint ## Everything: set-up, lint, then every test
	$(PYTEST) tests
test-unit: $(DEV) ## Tests without Spark, network or processes
	$(PYTEST) tests/unit
test-property: $(DEV) ## Hypothesis against a model
	$(PYTEST) tests/property
test-spark: $(DEV) $(JARS) ## Tables and jobs through a real Spark session
	$(PYTEST) tests/spark
test-conformance: $(DEV) $(NODE) ## The protocol's own suite against a real server
	$(PYTEST) tests/conformance
test-crash: $(DEV) ## Torn files, failing stores, lost local state
	$(PYTEST) tests/crash
sim: $(DEV) ## Lives of the engine on a simulated disk (SECONDS=60; SEED=N replays one)
	PYTHONHASHSEED=0 $(BIN)/python -m tests.sim --seconds $(or $(SECONDS),60) \
		$(if $(SEED),--seed $(SEED)) $(ARGS)
test-faults: install fault-tools ## Every fault, as often as it takes (an hour or more); writes docs/durability.md
	code=0; BOTTOMLESS_FAULTS=long BOTTOMLESS_FAULTS_LEDGER=$(VENV)/faults.json \
		$(PYTEST) tests/faults || code=$$?; \
		$(BIN)/python scripts/write_durability.py $(VENV)/faults.json && exit $$code

# --- the rest -------------------------------------------------------------------------------

.PHONY: bench bench-all bench-quick bench-peers bench-growth bench-storage bench-report soak
bench: $(DEV) ## Measure the server and the peers that are installed, side by side (40 minutes)
	$(BIN)/python bench/run.py $(ARGS)
	$(BIN)/python bench/report.py
bench-all: $(DEV) ## Everything that docs/performance.md shows, but for the soak (45 minutes)
	$(BIN)/python bench/storage.py
	$(BIN)/python bench/growth.py --ten-million
	$(BIN)/python bench/run.py
	$(BIN)/python bench/report.py
bench-quick: $(BASE) ## The same in two minutes, without the slow peers
	$(BIN)/python bench/run.py --quick $(ARGS)
bench-peers: ## Install the servers that ours is measured against, where that works
	scripts/install_peers.sh $(VENV)/peers
bench-growth: $(BASE) ## What one stream costs at 1,000 to 1,000,000 records (ARGS=--ten-million)
	$(BIN)/python bench/growth.py $(ARGS)
bench-storage: $(BASE) ## Parquet bytes of typical events, against the bytes that were sent
	$(BIN)/python bench/storage.py $(ARGS)
bench-report: $(DEV) ## Write the latest results into docs/performance.md, with plots
	$(BIN)/python bench/report.py $(ARGS)
soak: $(DEV) $(JARS) ## Mixed load for MINUTES=30; memory, files and latency must stay flat
	$(BIN)/python bench/soak.py --minutes $(or $(MINUTES),30) $(ARGS)

.PHONY: bench-producer bench-jobs docs clean
bench-producer: $(BASE) ## Measure the client library's producers against ready-made requests
	$(BIN)/python bench/producer.py $(ARGS)

bench-jobs: $(DEV) $(JARS) ## Measure the jobs, and reads before and after them (15 minutes)
	$(BIN)/python bench/maintenance.py $(ARGS)

docs: $(DEV) ## Regenerate the generated pages and conf/bottomless.toml
	$(BIN)/python scripts/write_reference.py

clean: ## Remove everything but the sources and ./data
	rm -rf $(VENV) build dist *.egg-info tests/conformance/node_modules
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
