#!/bin/bash
# Resolves the dependencies of pyproject.toml into requirements/*.lock, with versions and hashes for all supported
# platforms and Python versions, and without index addresses, so that the files work with any mirror.
#
#   node.lock    dependencies of a node without Spark and table formats, and the build backend; for the container image
#   run.lock     dependencies of a node with pipelines and archives, and the build backend for the editable install
#   dev.lock     the same, and dependencies of checks and tests
#   tools.lock   uv, for hosts that have none
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
uv=$(scripts/bootstrap.sh uv)

compile() {
    local output=$1; shift
    # Resolves without the old file, so that `make lock` upgrades versions.
    "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --upgrade \
        --no-emit-index-url --no-emit-find-links --no-annotate --no-header --output-file "$output.new" "$@"
    { echo "# Made by \`make lock\`; do not edit."; cat "$output.new"; } >"$output"
    rm "$output.new"
    echo "$output: $(grep -c '==' "$output") packages"
}

compile requirements/dev.lock pyproject.toml --extra dev --extra spark --extra lake --extra otel --group build
# run has dev's versions, so that tests and nodes use the same ones.
compile requirements/run.lock pyproject.toml --extra spark --extra lake --group build --constraint requirements/dev.lock
compile requirements/node.lock pyproject.toml --group build --constraint requirements/dev.lock
compile requirements/tools.lock --group pyproject.toml:tools

if grep -nE '[a-z]+://' requirements/*.lock; then
    echo "lock: a lock file has an index address" >&2
    exit 1
fi
