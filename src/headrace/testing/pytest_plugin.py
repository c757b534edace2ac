"""The pytest plugin: session fixtures `kafka_broker` and `kafka_cluster`, and `kafka_topic` for each test.

Loaded in every pytest run of an environment with headrace, so it imports modules only when fixtures are used.

def test_orders_arrive(kafka_broker, kafka_topic):
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap})
"""

import sys
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from headrace.testing.local.broker import LocalBroker
    from headrace.testing.local.cluster import LocalCluster

ADMIN_SECONDS_MAX = 30.0  # creating a topic takes milliseconds; after this time the broker is unavailable

TopicFactory = Callable[..., str]


@pytest.fixture(scope="session")
def kafka_broker_settings() -> Mapping[str, str]:
    """Configs of `kafka_broker` and `kafka_cluster`, by Kafka's names. Override this fixture to change them."""
    return {}


@pytest.fixture(scope="session")
def kafka_broker(kafka_broker_settings: Mapping[str, str]) -> Generator["LocalBroker", None, None]:
    """One broker in memory for the whole session. Tests are isolated by using their own topics."""
    from headrace.testing.local.broker import LocalBroker

    with LocalBroker(settings=kafka_broker_settings) as broker:
        yield broker


@pytest.fixture(scope="session")
def kafka_cluster(kafka_broker_settings: Mapping[str, str]) -> Generator["LocalCluster", None, None]:
    """Three brokers in memory for the whole session. A test that kills one restarts it before it ends."""
    from headrace.testing.local.cluster import LocalCluster

    with LocalCluster(3, settings=kafka_broker_settings) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kafka_bootstrap(kafka_broker: "LocalBroker") -> str:
    """The value for clients' `bootstrap.servers`."""
    return kafka_broker.bootstrap


@pytest.fixture
def kafka_topic_factory(kafka_broker: "LocalBroker") -> Generator[TopicFactory, None, None]:
    """Creates topics with unique names: `factory(partitions=3, configs={"retention.ms": "1000"})`."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap})
    created: list[str] = []

    def create(prefix: str = "test", *, partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
        name = f"{prefix}-{uuid4().hex[:12]}"
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(configs or {}))
        admin.create_topics([topic])[name].result(ADMIN_SECONDS_MAX)
        created.append(name)
        return name

    yield create
    if created and kafka_broker.running:
        for deletion in admin.delete_topics(created).values():
            deletion.result(ADMIN_SECONDS_MAX)


@pytest.fixture
def kafka_topic(kafka_topic_factory: TopicFactory) -> str:
    """The name of a new topic with one partition, which is deleted after the test."""
    return kafka_topic_factory()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the output of running brokers to the report of a failing test."""
    report = yield
    module = sys.modules.get("headrace.testing.local.broker")
    if report.failed and module is not None:
        for broker in module.open_brokers():
            report.sections.append((f"output of the broker on port {broker.port}", broker.output()))
    return report
