"""Builds librdkafka clients (confluent-kafka) with headrace's defaults.

Distinguishes "no broker responds" (BrokerUnreachable) from error responses. Prints nothing.
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
# Enough for a TCP handshake across continents, and short enough for an interactive command.
REACH_TIMEOUT_S = 3.0
# librdkafka prints a line for every failed connection at level 3; callers report the error once, in their own words.
_LOG_LEVEL_QUIET = 2
# How often a consumer that has prefetched enough checks again. With librdkafka's default of a second, a fast reader
# would wait most of the time: the few megabytes that headrace's consumers prefetch last a tenth of that.
_READ_AHEAD_LOOK_MS = 20
# librdkafka's consumer requires a group id; the tools assign partitions manually and never commit.
UNUSED_GROUP = "headrace-cli"

Overrides = Mapping[str, str | int | float | bool]


class BrokerUnreachable(ConnectionError):
    """No broker responds, or one closed the connection before it did. The message contains the address."""


class ResponseLost(BrokerUnreachable):
    """The request was sent and no response arrived: the broker may have executed it or not."""


def bootstrap_addresses(bootstrap: str) -> list[tuple[str, int]]:
    """Returns host and port of each comma-separated address; the default port is 9092."""
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
    """Raises BrokerUnreachable if no address accepts a TCP connection; librdkafka would retry for minutes instead."""
    failures = []
    for host, port in bootstrap_addresses(bootstrap):
        try:
            socket.create_connection((host, port), timeout=timeout_s).close()
        except OSError as error:
            reason = "no response" if isinstance(error, TimeoutError) else (error.strerror or str(error))
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
        "enable.idempotence": True,  # a retry after a lost response writes nothing twice
        "acks": "all",
        "linger.ms": 5,
        "queue.buffering.max.kbytes": 64 * 1024,
        # A failing command should end while the user still waits for it.
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
