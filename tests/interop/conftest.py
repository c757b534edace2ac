"""What the interop tests share: a broker on disk, and Apache Kafka's tools pointed at it."""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from bench.tools import spark_connector
from headrace.testing import LocalBroker
from tests.interop.apache_kafka import ApacheKafka, Output, tool, tools

SETTINGS = {"node.id": "0", "num.partitions": "1", "group.initial.rebalance.delay.ms": "0"}
# Tests wait for compacted topics to be compacted, and the brokers' default is to look every 15 seconds.
CLEANS_OFTEN = {"log.cleaner.backoff.ms": "100"}
# Most tools live in one package; those elsewhere are written out.
PACKAGE = "org.apache.kafka.tools."


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(memory=False, settings=SETTINGS) as one:
        yield one


@pytest.fixture
def run(broker: LocalBroker) -> Callable[..., Output]:
    """`run("TopicCommand", "--list")` against the broker."""

    def one(name: str, *arguments: str, stdin: bytes | None = None) -> Output:
        return tool(*_command(broker, name, arguments), stdin=stdin)

    return one


@pytest.fixture
def run_all(broker: LocalBroker) -> Callable[..., list[Output]]:
    """Several independent commands, two JVMs at a time."""
    return lambda *commands: tools([_command(broker, name, rest) for name, *rest in commands])


def _command(broker: LocalBroker, name: str, arguments: tuple[str, ...] | list[str]) -> list[str]:
    main_class = name if name.startswith(("kafka.", "org.")) else PACKAGE + name
    return [main_class, "--bootstrap-server", broker.bootstrap, *arguments]


@pytest.fixture
def topic() -> str:
    return f"interop-{uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """With both doors: ours comes with Python, the connector's jars are fetched."""
    from pyspark.sql import SparkSession

    from headrace.spark.session import use_this_python

    use_this_python()
    builder = SparkSession.builder.master("local[2]").config("spark.jars", spark_connector())
    builder = builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
    session = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    yield session
    session.stop()


@pytest.fixture(scope="session", params=["headrace", "apache kafka"])
def bootstrap(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Each of the brokers that the doors are to lead to."""
    if request.param == "headrace":
        with LocalBroker(memory=False, settings=CLEANS_OFTEN) as broker:
            yield broker.bootstrap
    else:
        with ApacheKafka(tmp_path_factory.mktemp("kafka"), CLEANS_OFTEN) as server:
            yield server.bootstrap
