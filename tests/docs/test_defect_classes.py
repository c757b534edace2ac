"""The table of defect classes in docs/reliability.md states how many cases there are."""

import re
from pathlib import Path

import pytest

from tests.simulation.cluster_bias import FAULTS
from tests.simulation.log_mutants import MUTANTS as LOG_MUTANTS
from tests.simulation.test_cluster_simulation import MUTANTS
from tests.simulation.unit_mutants import UNIT_MUTANTS
from tests.unit.core.decision_kit import DECISIONS
from tests.unit.storage.matrix_scenarios import SCENARIOS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reliability.md").read_text()


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        (r"(\d+) scenarios, ", len(SCENARIOS)),
        (r"\| (\d+) decisions, ", len(DECISIONS)),
        (r"with (\d+) kinds of rare faults", len(FAULTS)),
        (r"\| (\d+) in simulated clusters, ", len(MUTANTS)),
        (r"in simulated clusters, (\d+) in simulated logs, ", len(LOG_MUTANTS)),
        (r"in simulated logs, (\d+) in unit tests", len(UNIT_MUTANTS)),
    ],
)
def test_stated_number_of_cases_is_right(pattern: str, count: int) -> None:
    assert re.findall(pattern, PAGE) == [str(count)]
