"""One Spark session for all tests of a worker: starting one costs ten seconds, using it again nothing."""

import shutil
import signal
from collections.abc import Generator, Mapping
from pathlib import Path

import pytest

from tests.spark.kit import SparkKit

# A JVM starts within a test's time, and the machine may be busy with other tests.
TIMEOUT_S = 400


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/spark/" in item.nodeid:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def kafka_broker_settings() -> Mapping[str, str]:
    return {"group.initial.rebalance.delay.ms": "0"}


@pytest.fixture(scope="session")
def spark() -> Generator[object, None, None]:
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java: apt-get install openjdk-17-jre-headless")
    from headrace.spark.session import open_session

    settings = {"spark.sql.python.filterPushdown.enabled": "true", "spark.log.level": "ERROR"}
    session = open_session("headrace tests", master="local[2]", settings=settings)
    yield session
    for query in session.streams.active:
        query.stop()
    session.stop()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


@pytest.fixture
def kit(spark, kafka_broker) -> Generator[SparkKit, None, None]:
    kit = SparkKit(spark, kafka_broker.bootstrap)
    yield kit
    kit.close()


@pytest.fixture
def own_signals() -> Generator[None, None, None]:
    """A worker listens to signals as the process that it usually is."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
