#!/bin/bash
# Runs each fuzz target for the given number of seconds. A target is a name in the TARGETS table of a file
# tests/fuzz/fuzz_*.py, which takes it as its first argument and passes the others to libFuzzer. The corpus is kept in
# .cache/fuzz for the next run. A crash stops the run and leaves its input there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:?usage: fuzz.sh SECONDS}
shopt -s nullglob

targets_of() {
    .venv/bin/python -c 'import runpy, sys; print(*runpy.run_path(sys.argv[1])["TARGETS"])' "$1" 2>/dev/null
}

for file in tests/fuzz/fuzz_*.py; do
    targets=$(targets_of "$file") || { echo "cannot load $file" >&2; exit 1; }
    for target in $targets; do
        corpus=.cache/fuzz/$(basename "$file" .py).$target
        mkdir -p "$corpus"
        echo "--- $file $target, $seconds s"
        .venv/bin/python "$file" "$target" "$corpus" -max_total_time="$seconds" -artifact_prefix="$corpus." \
            -print_final_stats=1 2>&1 | grep -vE '^INFO: Instrumenting|^#[0-9]'
    done
done
