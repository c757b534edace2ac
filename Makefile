# The project's tasks. `make` lists them; the text after `##` is the description of a target.
#
# Every task first installs its dependencies (scripts/bootstrap.sh), which is quick if nothing has changed.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

BIN := .venv/bin
# Two, because the smallest supported host has two cores.
TEST_WORKERS ?= 2
# Added to every pytest call, e.g. make test PYTEST_ARGS="-k produce -x"
PYTEST_ARGS ?=
# Duration of each fuzz target.
FUZZ_SECONDS ?= 60
# Number of simulated runs of `make simulate`, of clusters, of data directories and of logs each.
SIMULATE_SEEDS ?= 10000
# Number of kills of each test of `make torture`, and the seed (none: a new one for each test).
KILLS ?= 50
SEED ?=
# Duration of the tests of `make torture` that run for a fixed time instead.
SOAK_MINUTES ?= 30
# ONCE=1 stops `make run` after the results; LISTEN, HTTP, GRPC and DATA are its addresses and data directory.
ONCE ?=
LISTEN ?= localhost:9092
HTTP ?= 127.0.0.1:8080
GRPC ?= 127.0.0.1:9090
DATA ?= ./data

.PHONY: help run test torture simulate check format interop bench docs proto fuzz lock clean distclean

help: ## list the tasks
	@echo "headrace: a Kafka-compatible message broker"; echo
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## start a node and a demo: synthetic orders, a pipeline, an archive (ONCE=1 stops after the results)
	@scripts/bootstrap.sh run
	@exec $(BIN)/python scripts/tour.py --listen $(LISTEN) --http $(HTTP) --grpc $(GRPC) --data-dir $(DATA) $(if $(ONCE),--once)

test: ## run the checks, then all tests that need only packages of PyPI and Debian
	@scripts/bootstrap.sh test
	@$(MAKE) --no-print-directory check
	@# The same seeds, order of tests and order of sets in every run: the same verdict.
	PYTHONHASHSEED=0 $(BIN)/python -m pytest -m "not interop" -n $(TEST_WORKERS) --dist worksteal $(PYTEST_ARGS)

torture: ## run the fault-injection tests: KILLS kills each, one test for SOAK_MINUTES (SEED repeats a run)
	@scripts/bootstrap.sh test
	TORTURE_KILLS=$(KILLS) TORTURE_SOAK_MINUTES=$(SOAK_MINUTES) TORTURE_SEED=$(SEED) $(BIN)/python -m pytest tests/torture -v -rP --randomly-dont-reorganize $(PYTEST_ARGS)

check: ## check lint, format, types and import contracts
	@scripts/bootstrap.sh check
	@scripts/check.sh

format: ## format and fix the code with ruff
	@scripts/bootstrap.sh check
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

simulate: ## simulate clusters, data directories and logs with faults: SIMULATE_SEEDS runs each
	@scripts/bootstrap.sh test
	HEADRACE_CLUSTER_SEEDS=$(SIMULATE_SEEDS) HEADRACE_SIMULATION_SEEDS=$(SIMULATE_SEEDS) $(BIN)/python -m pytest \
		tests/simulation/test_cluster_simulation.py tests/simulation/test_storage_simulation.py \
		tests/simulation/test_log_simulation.py \
		-n $(TEST_WORKERS) --dist worksteal $(PYTEST_ARGS)

interop: ## run the tests that need Maven Central or the Go proxy, and the clients' test suites against three brokers
	@scripts/bootstrap.sh interop
	@scripts/pytest_or_nothing.sh $(BIN)/python -m pytest -m interop tests/interop $(PYTEST_ARGS)
	@# A separate process, because tests/interop starts its Spark session with the connector's jars.
	@scripts/pytest_or_nothing.sh $(BIN)/python -m pytest -m interop --ignore=tests/interop tests $(PYTEST_ARGS)
	@# `make test` runs them against one broker; here every topic has three replicas.
	@HEADRACE_TEST_NODES=3 scripts/pytest_or_nothing.sh $(BIN)/python -m pytest -m "not interop" tests/compat $(PYTEST_ARGS)

bench: ## measure against Apache Kafka and rewrite docs/performance.md and -growth.md
	@scripts/bootstrap.sh bench
	$(BIN)/python -m bench $(BENCH_ARGS)

docs: ## generate the reference pages, test the documentation, build the site into site/
	@scripts/bootstrap.sh test
	$(BIN)/headrace config docs > docs/reference/config.md
	$(BIN)/python scripts/grpc_reference.py > docs/reference/grpc.md
	$(BIN)/python scripts/metrics_reference.py > docs/reference/metrics.md
	$(BIN)/python -m pytest tests/docs $(PYTEST_ARGS)
	$(BIN)/python scripts/build_site.py

proto: ## generate the gRPC stubs after a change to the .proto file
	@scripts/bootstrap.sh check
	$(BIN)/python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src --grpc_python_out=src src/headrace/rpc/headrace.proto

fuzz: ## run every fuzz target for FUZZ_SECONDS
	@scripts/bootstrap.sh check
	@scripts/fuzz.sh $(FUZZ_SECONDS)

lock: ## upgrade the dependencies in requirements/*.lock
	@scripts/lock.sh

clean: ## remove caches and build artifacts (never ./data)
	rm -rf build dist site .mypy_cache .ruff_cache .import_linter_cache .hypothesis .pytest_cache
	find . -path ./.venv -prune -o -path ./data -prune -o -name __pycache__ -type d -print0 | xargs -0r rm -rf

distclean: clean ## also remove .venv and downloads
	rm -rf .venv .cache
