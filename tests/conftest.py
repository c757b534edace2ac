"""What holds for all tests."""

import os

import pytest
from hypothesis import HealthCheck, settings

# A machine that others use as well is slow whenever it likes: no test may fail by the clock.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

# Spark lives for seconds in a test: the second of the JVM's compilers costs more time than it saves, and its usual
# collector keeps threads busy for a heap that is never full. Also for what tests start in processes of their own.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.hookimpl(trylast=True)  # behind whoever shuffles
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of tests/spark come first, so that one of several workers runs them all in one Spark session.

    Workers begin with equal parts of the list, and who has none left steals from the end of another's.
    """
    items.sort(key=lambda item: not item.nodeid.startswith("tests/spark/"))
