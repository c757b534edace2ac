#!/bin/bash
# Runs all checks, also after a failure, and lists those that failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bin=.venv/bin
failed=()

check() {
    local name=$1; shift
    echo "--- $name"
    "$@" || failed+=("$name")
}

check lint           $bin/ruff check --quiet --output-format concise
check format         $bin/ruff format --check --quiet --output-format concise
check types          $bin/mypy
check tool-types     $bin/mypy scripts bench
check test-types     $bin/mypy -p tests
check imports         $bin/lint-imports --no-logo
check tree           $bin/python scripts/check_tree.py

[ ${#failed[@]} = 0 ] || { echo "failed: ${failed[*]}"; exit 1; }
echo "all checks passed"
