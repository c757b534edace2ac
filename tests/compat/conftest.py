"""One broker on disk for all client tests; HEADRACE_TEST_BOOTSTRAP puts another in its place.

The tests say what Kafka does, so they must pass against Apache Kafka itself as well:

    HEADRACE_TEST_BOOTSTRAP=127.0.0.1:9092 python -m pytest tests/compat

and against three brokers, with three replicas of every topic:

    HEADRACE_TEST_NODES=3 python -m pytest tests/compat
"""

import os
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing import LocalBroker, LocalCluster
from tests.compat.client_driver import CLIENT_NAMES, SECONDS_MAX, Client
from tests.compat.nodes import NODES
from tests.compat.topics import until_all_brokers_know

# Room for a few records of several megabytes in one request.
BROKER_SETTINGS = {
    "node.id": "0",
    "message.max.bytes": str(16 * 1024 * 1024),
    "group.initial.rebalance.delay.ms": "0",  # no test gains by waiting for members that do not come
}


def pytest_configure(config: pytest.Config) -> None:
    # Warnings are errors for our own code; how kafka-python reads its resources is its own to mend.
    config.addinivalue_line("filterwarnings", "ignore:(open|read)_text is deprecated:DeprecationWarning")


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    foreign = os.environ.get("HEADRACE_TEST_BOOTSTRAP")
    if foreign is not None:
        yield foreign
        return
    if NODES > 1:
        with LocalCluster(NODES, memory=False, settings=BROKER_SETTINGS) as cluster:
            yield cluster.bootstrap
        return
    with LocalBroker(memory=False, settings=BROKER_SETTINGS) as broker:
        yield broker.bootstrap


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})  # it outlives the broker


@pytest.fixture
def new_topic(admin: AdminClient, bootstrap: str) -> Iterator[Callable[..., str]]:
    """Creates a topic with a name of its own: `new_topic(partitions=2, **{"cleanup.policy": "compact"})`."""
    created: list[str] = []

    def create(*, partitions: int = 1, **configs: str) -> str:
        name = f"compat-{uuid4().hex[:12]}"
        wanted = NewTopic(name, num_partitions=partitions, replication_factor=min(NODES, 3), config=configs)
        admin.create_topics([wanted])[name].result(SECONDS_MAX)
        created.append(name)
        until_all_brokers_know(bootstrap, name, partitions)
        return name

    yield create
    for deletion in admin.delete_topics(created).values() if created else ():
        deletion.exception(SECONDS_MAX)  # the test may have deleted it itself


@pytest.fixture
def topic(new_topic: Callable[..., str]) -> str:
    return new_topic()


@pytest.fixture(params=CLIENT_NAMES)
def client(request: pytest.FixtureRequest, bootstrap: str) -> Client:
    """Each of the clients in turn."""
    from tests.compat.clients import CLIENTS  # not before pytest_configure: importing kafka-python warns

    return CLIENTS[request.param](bootstrap)
