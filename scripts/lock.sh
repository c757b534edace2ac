#!/bin/bash
# Resolves the dependencies of pyproject.toml into requirements/*.lock: every version, every hash, for all platforms
# and Pythons we support, and no index address, so that the files work behind any mirror.
#
#   node.lock    what a node without Spark and table formats needs, and the build backend; the container image
#   run.lock     what a node with pipelines and archives needs, and the build backend for the editable install
#   dev.lock     the same, and what checks and tests need
#   tools.lock   uv itself, for a machine that has none
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
uv=$(scripts/bootstrap.sh uv)

compile() {
    local output=$1; shift
    # A lock is resolved anew, not from the old file: `make lock` is how versions move.
    "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --upgrade \
        --no-emit-index-url --no-emit-find-links --no-annotate --no-header --output-file "$output.new" "$@"
    { echo "# Made by \`make lock\`; do not edit."; cat "$output.new"; } >"$output"
    rm "$output.new"
    echo "$output: $(grep -c '==' "$output") packages"
}

compile requirements/dev.lock pyproject.toml --extra dev --extra spark --extra lake --extra otel --group build
# run takes dev's versions, so that the tests judge what a node runs.
compile requirements/run.lock pyproject.toml --extra spark --extra lake --group build --constraint requirements/dev.lock
compile requirements/node.lock pyproject.toml --group build --constraint requirements/dev.lock
compile requirements/tools.lock --group pyproject.toml:tools

if grep -nE '[a-z]+://' requirements/*.lock; then
    echo "lock: an address slipped into a lock file" >&2
    exit 1
fi
