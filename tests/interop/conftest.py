"""What the interop tests share: a broker on disk, and Apache Kafka's tools pointed at it."""

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from headrace.testing import LocalBroker
from tests.interop.apache_kafka import Output, tool, tools

SETTINGS = {"node.id": "0", "num.partitions": "1"}
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
