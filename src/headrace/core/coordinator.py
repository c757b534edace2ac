"""Common types of the coordinator state machines, and the partition of an internal topic that a name hashes to.

A coordinator shard is the state machine of one partition of an internal topic. A request yields a Decision:
responses, records to append (`facts`, before they are encoded), and timers. Deciding changes no state. Only `apply`
does, live and at recovery alike, one record at a time.

    decide → append the records to the log → apply them → respond when the log has committed them

After a failed append the state is unchanged. A new leader replays the log through the same `apply`.

All clients and brokers must compute the same partition for a name.

Pure; performs no I/O.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

Fact = TypeVar("Fact")

RequestId = int  # identifies a request that awaits its response; allocated by the runtime


class CoordinatorTime(int):
    """The time in milliseconds of a monotonic clock, which deadlines are based on.

    `wall_ms` is wall time, for records that are read after a restart.
    """

    wall_ms: int

    def __new__(cls, monotonic_ms: int, wall_ms: int) -> "CoordinatorTime":
        moment = super().__new__(cls, monotonic_ms)
        moment.wall_ms = wall_ms
        return moment


class Answer(NamedTuple):
    """The response to the request with this ticket. The decision of another request may complete it.

    A reply that is a HeadraceError is raised where the request waits.
    """

    ticket: RequestId
    reply: object


class Timer(NamedTuple):
    """Calls `expire` with this name when it is due. A new timer replaces the one of the same name."""

    name: str
    due_ms: int | None  # monotonic; None cancels the timer


class Producer(NamedTuple):
    """The producer in whose open transaction the records are appended."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Generic[Fact]):
    answers: Sequence[Answer] = ()
    facts: Sequence[Fact] = ()
    timers: Sequence[Timer] = ()
    producer: Producer | None = None  # the records take effect when this producer's transaction commits
    # The records may be appended in several batches: the state is consistent after each prefix of them, and the same
    # decision, taken again after a failure, yields the rest.
    is_divisible: bool = False


NOTHING: Decision[object] = Decision()


class CoordinatorRecord(NamedTuple):
    """An encoded record of the internal topic. A null value is a tombstone for the key."""

    key: bytes
    value: bytes | None


class CoordinatorShard(Protocol[Fact]):
    """State machine of one partition, as the coordinator runtime uses it."""

    def encode(self, fact: Fact) -> CoordinatorRecord | None:
        """Encodes a record. Returns None for one that is not needed after a restart: it is applied and not written."""

    def apply(self, fact: Fact, offset: int) -> None:
        """Applies a record to the state.

        `offset` is its offset in the log; for one that is not written, the offset it would have.
        """

    def replay(self, record: CoordinatorRecord, offset: int) -> None:
        """Decodes and applies a record of the log. Skips unknown kinds of records."""

    def loaded(self, now_ms: CoordinatorTime) -> Decision[Fact]:
        """Called after the last record was replayed. Returns the timers that the state requires."""

    def expire(self, timer: str, now_ms: CoordinatorTime) -> Decision[Fact]:
        """Called when a timer is due."""


@runtime_checkable
class TransactionalMachine(Protocol):
    """A coordinator shard whose log also has transactional records and the markers that end their transactions."""

    def replay_in_transaction(self, record: CoordinatorRecord, offset: int, producer: Producer) -> None:
        """Like `replay`, for a record that takes effect when the producer's transaction commits."""

    def transaction_ended(self, producer_id: int, *, committed: bool) -> None:
        """Called when a transaction marker is in the log, live or at recovery."""


def merged(decisions: Sequence[Decision[Fact]]) -> Decision[Fact]:
    """Merges decisions that were taken one after the other on the same state."""
    if len(decisions) == 1:
        return decisions[0]
    return Decision(
        answers=tuple(answer for one in decisions for answer in one.answers),
        facts=tuple(fact for one in decisions for fact in one.facts),
        timers=tuple(timer for one in decisions for timer in one.timers),
    )


# Groups that are active at the same time: each commit and each heartbeat looks one of them up.
NAMES_MAX = 16 * 1024


def java_string_hash(text: str) -> int:
    """Returns Java's `String.hashCode`: over UTF-16 units, as a signed 32-bit number."""
    value = 0
    for unit in _units(text):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def _units(text: str) -> list[int]:
    data = text.encode("utf-16-be", "surrogatepass")
    return [data[at] << 8 | data[at + 1] for at in range(0, len(data), 2)]


@lru_cache(NAMES_MAX)
def partition_for(name: str, partitions: int) -> int:
    """Returns the partition for a name. As in Kafka, the absolute value of the lowest 32-bit number is 0."""
    value = java_string_hash(name)
    return (0 if value == -(1 << 31) else abs(value)) % partitions
