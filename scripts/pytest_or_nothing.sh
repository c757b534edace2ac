#!/bin/bash
# Runs the given pytest command; a run that collects no tests is a success.
set -uo pipefail
"$@"
code=$?
# pytest's exit code for "no tests collected".
[ "$code" = 5 ] && { echo "no tests of this kind"; exit 0; }
exit "$code"
