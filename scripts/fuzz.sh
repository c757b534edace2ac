#!/bin/bash
# Runs each fuzz target under tests/fuzz for the given number of seconds. What it finds worth keeping stays in .cache,
# so that the next run starts from there; a crash stops everything and leaves its input beside it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:?usage: fuzz.sh SECONDS}
shopt -s nullglob
for target in tests/fuzz/fuzz_*.py; do
    name=$(basename "$target" .py)
    corpus=.cache/fuzz/$name
    mkdir -p "$corpus"
    echo "--- $name, $seconds s"
    .venv/bin/python "$target" -max_total_time="$seconds" -artifact_prefix="$corpus." "$corpus"
done
