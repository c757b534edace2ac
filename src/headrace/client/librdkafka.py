"""Makes librdkafka clients (confluent-kafka) with the settings that headrace's own tools want.

Decides what those settings are and how "nobody answers" is told apart from "the broker refused". Never prints.
"""

import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.config.settings import split_address
from headrace.model.errors import InvalidConfig

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient

CLIENT_ID = "headrace-cli"
DEFAULT_PORT = 9092
# Long enough for a TCP handshake across the world; a missing broker is then reported while one still watches.
REACH_TIMEOUT_S = 3.0
# librdkafka prints a line for every failed connection at level 3; callers tell the user once, in their words.
_LOG_LEVEL_QUIET = 2
# A consumer that has read enough ahead looks again after this long. A quick reader spends librdkafka's own second
# waiting: the few megabytes that ours may read ahead last it a tenth of that.
_READ_AHEAD_LOOK_MS = 20
# A group id is mandatory for librdkafka's consumer; the tools assign partitions by hand and never commit.
UNUSED_GROUP = "headrace-cli"

Overrides = Mapping[str, str | int | float | bool]


class BrokerUnreachable(ConnectionError):
    """No broker answers, or one hung up before it did. The message says where."""


class ResponseLost(BrokerUnreachable):
    """The request was sent and its response did not come: the broker may have carried it out, or not."""


def bootstrap_addresses(bootstrap: str) -> list[tuple[str, int]]:
    """Host and port of each comma-separated address; a missing port is Kafka's."""
    addresses = []
    for item in bootstrap.split(","):
        text = item.strip()
        has_port = text.rpartition(":")[2].isdigit() and not text.endswith("]") and text.count(":") != 0
        host, port = split_address(text if has_port else f"{text}:{DEFAULT_PORT}")
        if not host:
            raise InvalidConfig(f"{text!r} names no host; write host:port, e.g. localhost:9092")
        addresses.append((host, port))
    return addresses


def check_reachable(bootstrap: str, timeout_s: float) -> None:
    """Knock at each address. librdkafka would try again for minutes; this says at once that nobody is there."""
    failures = []
    for host, port in bootstrap_addresses(bootstrap):
        try:
            socket.create_connection((host, port), timeout=timeout_s).close()
        except OSError as error:
            reason = "no answer" if isinstance(error, TimeoutError) else (error.strerror or str(error))
            failures.append(f"{host}:{port} ({reason})")
        else:
            return
    raise BrokerUnreachable(f"no broker responds at {', '.join(failures)}")


def make_admin(bootstrap: str, overrides: Overrides | None = None) -> "AdminClient":
    from confluent_kafka.admin import AdminClient

    return AdminClient(_common(bootstrap) | dict(overrides or {}))


def make_producer(bootstrap: str, overrides: Overrides | None = None) -> "Producer":
    from confluent_kafka import Producer

    settings: dict[str, str | int | float | bool] = {
        "enable.idempotence": True,  # so that a retry after a lost answer writes nothing twice
        "acks": "all",
        "linger.ms": 5,
        "queue.buffering.max.kbytes": 64 * 1024,
        # A command that was typed should fail while its author still looks at it.
        "message.timeout.ms": 30_000,
    }
    return Producer(_common(bootstrap) | settings | dict(overrides or {}))


def make_consumer(bootstrap: str, overrides: Overrides | None = None) -> "Consumer":
    from confluent_kafka import Consumer

    settings: dict[str, str | int | float | bool] = {
        "group.id": UNUSED_GROUP,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "fetch.wait.max.ms": 100,
        "fetch.queue.backoff.ms": _READ_AHEAD_LOOK_MS,
    }
    return Consumer(_common(bootstrap) | settings | dict(overrides or {}))


def _common(bootstrap: str) -> dict[str, str | int | float | bool]:
    return {
        "bootstrap.servers": bootstrap,
        "client.id": CLIENT_ID,
        "log_level": _LOG_LEVEL_QUIET,
        "socket.nagle.disable": True,
        "topic.metadata.propagation.max.ms": 5000,
    }
