"""Rules that the simulation does not see broken: each has a test that fails without it."""

import os
import subprocess
import sys
from pathlib import Path

from tests.simulation.unit_mutants import UNIT_MUTANTS

ROOT = Path(__file__).parents[2]
PLUGIN = "tests.simulation.unit_mutant_plugin"


def test_each_broken_rule_fails_its_test(tmp_path: Path) -> None:
    failed = tmp_path / "failed"
    failed.touch()
    tests = sorted({mutant.test for mutant in UNIT_MUTANTS})
    assert len(tests) == len(UNIT_MUTANTS), "each rule has a test of its own"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", PLUGIN, "-q", "--tb=no", *tests],
        env={**os.environ, "HEADRACE_FAILED": str(failed)},
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1, run.stdout + run.stderr
    noticed = set(failed.read_text().split())
    assert [mutant.what for mutant in UNIT_MUTANTS if mutant.test not in noticed] == []


def test_documentation_lists_each_rule_and_its_test() -> None:
    page = (ROOT / "docs/guides/testing.md").read_text()
    rows = [f"| {one.what} | `{one.test.rpartition('::')[2]}` |" for one in UNIT_MUTANTS]
    assert [row for row in rows if row not in page] == []
