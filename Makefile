# The project's tasks. `make` lists them; `##` after a target is its line in that list.
#
# Every task installs what it needs first (scripts/bootstrap.sh), and that step is quick when nothing changed.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

BIN := .venv/bin
# Two, because the smallest machine we promise to be quick on has two cores.
TEST_WORKERS ?= 2
# Added to every pytest call, e.g. make test PYTEST_ARGS="-k produce -x"
PYTEST_ARGS ?=
# How long each fuzz target runs.
FUZZ_SECONDS ?= 60
# How many runs of a cluster, of a data directory and of a log `make simulate` simulates.
SIMULATE_SEEDS ?= 10000
# How often `make torture` kills, and with which dice (none: new ones for each test).
KILLS ?= 50
SEED ?=
# How long tests of `make torture` run that run for a time instead.
SOAK_MINUTES ?= 30
# ONCE=1 stops `make run` after the tour; LISTEN, HTTP, GRPC and DATA choose its addresses and folder.
ONCE ?=
LISTEN ?= localhost:9092
HTTP ?= 127.0.0.1:8080
GRPC ?= 127.0.0.1:9090
DATA ?= ./data

.PHONY: help run test torture simulate check format interop bench docs proto fuzz lock clean distclean

help: ## list the tasks
	@echo "headrace: a Kafka-compatible message queue"; echo
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## a node with orders, a pipeline and an archive at work; stays up (ONCE=1 stops after the results)
	@scripts/bootstrap.sh run
	@exec $(BIN)/python scripts/tour.py --listen $(LISTEN) --http $(HTTP) --grpc $(GRPC) --data-dir $(DATA) $(if $(ONCE),--once)

test: ## check, then every test that needs only PyPI and Debian's packages
	@scripts/bootstrap.sh test
	@$(MAKE) --no-print-directory check
	@# The same seeds, order of tests and order of sets in every run: the same verdict.
	PYTHONHASHSEED=0 $(BIN)/python -m pytest -m "not interop" -n $(TEST_WORKERS) --dist worksteal $(PYTEST_ARGS)

torture: ## kill brokers and clients KILLS times in every test of tests/torture, one for SOAK_MINUTES (SEED repeats)
	@scripts/bootstrap.sh test
	TORTURE_KILLS=$(KILLS) TORTURE_SOAK_MINUTES=$(SOAK_MINUTES) TORTURE_SEED=$(SEED) $(BIN)/python -m pytest tests/torture -v -rP --randomly-dont-reorganize $(PYTEST_ARGS)

check: ## lint, format, types, import direction
	@scripts/bootstrap.sh check
	@scripts/check.sh

format: ## let ruff rewrite what it can
	@scripts/bootstrap.sh check
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

simulate: ## whole clusters, data directories and logs under simulated faults: SIMULATE_SEEDS of each
	@scripts/bootstrap.sh test
	HEADRACE_CLUSTER_SEEDS=$(SIMULATE_SEEDS) HEADRACE_SIMULATION_SEEDS=$(SIMULATE_SEEDS) $(BIN)/python -m pytest \
		tests/simulation/test_cluster_simulation.py tests/simulation/test_storage_simulation.py \
		tests/simulation/test_log_simulation.py \
		-n $(TEST_WORKERS) --dist worksteal $(PYTEST_ARGS)

interop: ## tests that need Maven Central or the Go proxy; the clients' suites against three brokers
	@scripts/bootstrap.sh interop
	@scripts/pytest_or_nothing.sh $(BIN)/python -m pytest -m interop tests/interop $(PYTEST_ARGS)
	@# In a process of their own: a session of theirs would be without the connector's jars that tests/interop starts with.
	@scripts/pytest_or_nothing.sh $(BIN)/python -m pytest -m interop --ignore=tests/interop tests $(PYTEST_ARGS)
	@# `make test` runs them against one; every topic has three replicas here.
	@HEADRACE_TEST_NODES=3 scripts/pytest_or_nothing.sh $(BIN)/python -m pytest -m "not interop" tests/compat $(PYTEST_ARGS)

bench: ## measure against Apache Kafka and rewrite docs/performance.md and -growth.md
	@scripts/bootstrap.sh bench
	$(BIN)/python -m bench $(BENCH_ARGS)

docs: ## rewrite the reference pages, test the documentation, build the site into site/
	@scripts/bootstrap.sh test
	$(BIN)/headrace config docs > docs/reference/config.md
	$(BIN)/python scripts/grpc_reference.py > docs/reference/grpc.md
	$(BIN)/python scripts/metrics_reference.py > docs/reference/metrics.md
	$(BIN)/python -m pytest tests/docs $(PYTEST_ARGS)
	$(BIN)/python scripts/build_site.py

proto: ## write the gRPC stubs again after a change to the .proto
	@scripts/bootstrap.sh check
	$(BIN)/python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src --grpc_python_out=src src/headrace/rpc/headrace.proto

fuzz: ## run every fuzz target for FUZZ_SECONDS
	@scripts/bootstrap.sh check
	@scripts/fuzz.sh $(FUZZ_SECONDS)

lock: ## resolve the dependencies again into requirements/*.lock
	@scripts/lock.sh

clean: ## remove caches and build leftovers (never ./data)
	rm -rf build dist site .mypy_cache .ruff_cache .import_linter_cache .hypothesis .pytest_cache
	find . -path ./.venv -prune -o -path ./data -prune -o -name __pycache__ -type d -print0 | xargs -0r rm -rf

distclean: clean ## also remove .venv and downloads
	rm -rf .venv .cache
