"""Torture: clients and brokers are killed while they work, and afterwards the books must balance.

What is run, how to repeat a seed and what has been proven is in docs/reliability.md.
"""

from collections.abc import Iterator

import pytest

from tests.torture.plan import KILLS, Dice, seed_of


@pytest.fixture
def dice(request: pytest.FixtureRequest) -> Dice:
    dice = Dice(seed_of(request.node.name))
    request.node.user_properties.append(("seed", dice.first_seed))
    return dice


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report: pytest.TestReport = yield
    for name, value in item.user_properties:
        if name == "seed" and report.when == "call":
            again = f"make torture KILLS={KILLS or 50} SEED={value} PYTEST_ARGS='-k \"{item.name}\"'"
            report.sections.append(("seed", f"{value}; again: {again}"))
    return report
