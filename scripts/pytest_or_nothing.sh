#!/bin/bash
# Runs the given pytest command; a run that finds no test at all counts as success.
set -uo pipefail
"$@"
code=$?
# pytest's exit code for "no tests collected".
[ "$code" = 5 ] && { echo "no tests of this kind yet"; exit 0; }
exit "$code"
