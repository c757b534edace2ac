"""What the client drivers have in common: a record as sent, a record as read, and the face of a driver."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

Headers = tuple[tuple[str, bytes | None], ...]

# Everything here happens on loopback within milliseconds; past this something hangs.
SECONDS_MAX = 30.0
BIG_BYTES = 32 * 1024 * 1024  # what a client is told to accept when a test sends records of several megabytes

CREATE_TIME, LOG_APPEND_TIME = 0, 1

CLIENT_NAMES = ("confluent-kafka", "kafka-python", "aiokafka")


class Sent(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    partition: int = 0


class Read(NamedTuple):
    offset: int
    value: bytes | None
    key: bytes | None
    headers: Headers
    timestamp_ms: int
    timestamp_type: int


class Client(Protocol):
    name: str

    def produce(self, topic: str, records: Sequence[Sent], **settings: Any) -> list[int]:
        """Sends all with acks=all and returns the offset of each; a refusal comes out as the client's error."""

    def consume(self, topic: str, count: int, *, partition: int = 0, offset: int = 0) -> list[Read]:
        """So many records from an offset on, by assignment, without a group."""

    def offsets(self, topic: str, partition: int = 0) -> tuple[int, int]:
        """The first offset and the one after the last."""

    def offset_at(self, topic: str, timestamp_ms: int, partition: int = 0) -> int | None:
        """The first offset whose record is not older than the time; None if there is none."""
