"""A pytest plugin: runs each test of `unit_mutants.py` with its rule broken, and writes down which tests fail.

HEADRACE_FAILED=/tmp/failed python -m pytest -p tests.simulation.unit_mutant_plugin TEST…
"""

import os
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.simulation.unit_mutants import UNIT_MUTANTS

PATCHES = {mutant.test: mutant.patches for mutant in UNIT_MUTANTS}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    with ExitStack() as patches:
        for target, name, replacement in PATCHES.get(item.nodeid.partition("[")[0], ()):
            patches.enter_context(patch.object(target, name, replacement))
        return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and report.failed:
        with Path(os.environ["HEADRACE_FAILED"]).open("a") as file:
            file.write(report.nodeid.partition("[")[0] + "\n")
