"""What the state machines of all coordinators have in common: results, records, request ids, and Java's string hash.

A machine lives in one partition of an internal topic. It is asked to decide, and answers with a Decision: who is to be
told what, which facts are to be written down, and when it wants to be asked again. Deciding changes nothing; only
`apply` does, live and at recovery alike, one fact at a time.

    decide → append the facts to the log → apply them → answer when the log has committed them

An append that fails has changed no machine. Gaining leadership replays the log through the same `apply`.

Which partition of an internal topic a name belongs to: every client and broker must agree on it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

Fact = TypeVar("Fact")

RequestId = int  # names a request that waits for its answer; given out by the shell


class CoordinatorTime(int):
    """Now: milliseconds of a clock that never jumps, which is what deadlines are counted in.

    `wall_ms` is what the calendar says, for what is written down and read after a restart.
    """

    wall_ms: int

    def __new__(cls, monotonic_ms: int, wall_ms: int) -> "CoordinatorTime":
        moment = super().__new__(cls, monotonic_ms)
        moment.wall_ms = wall_ms
        return moment


class Answer(NamedTuple):
    """What the request with this ticket is told. A request may be answered by somebody else's decision.

    A reply that is a HeadraceError is raised where the request waits.
    """

    ticket: RequestId
    reply: object


class Timer(NamedTuple):
    """Ask the machine again at this time, by this name. A timer of the same name replaces the one before."""

    name: str
    due_ms: int | None  # monotonic; None takes the timer back


class Producer(NamedTuple):
    """In whose open transaction facts are written."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Generic[Fact]):
    answers: Sequence[Answer] = ()
    facts: Sequence[Fact] = ()
    timers: Sequence[Timer] = ()
    producer: Producer | None = None  # the facts count once this producer's transaction is committed
    # The facts may be appended in several batches: the state is consistent after each prefix of them, and the same
    # decision, taken again after a failure, yields the rest.
    is_divisible: bool = False


NOTHING: Decision[object] = Decision()


class CoordinatorRecord(NamedTuple):
    """A fact as the internal topic holds it. A null value forgets what was said under the key."""

    key: bytes
    value: bytes | None


class CoordinatorShard(Protocol[Fact]):
    """What the shell needs of every machine, beyond its decisions."""

    def encode(self, fact: Fact) -> CoordinatorRecord | None:
        """None for a fact that nobody needs after a restart: it is applied and not written."""

    def apply(self, fact: Fact, offset: int) -> None:
        """Make a fact true. `offset` is that of its record; of a fact without one, where it would have been."""

    def replay(self, record: CoordinatorRecord, offset: int) -> None:
        """`apply`, from the bytes of a log: unknown kinds of records are passed over."""

    def loaded(self, now_ms: CoordinatorTime) -> Decision[Fact]:
        """After the last record was replayed: the timers that the state calls for."""

    def expire(self, timer: str, now_ms: CoordinatorTime) -> Decision[Fact]:
        """A timer is due."""


@runtime_checkable
class TransactionalMachine(Protocol):
    """A machine whose log also holds records of transactions, and the markers that end them."""

    def replay_in_transaction(self, record: CoordinatorRecord, offset: int, producer: Producer) -> None:
        """Like `replay`, for a record that counts once the producer's transaction is committed."""

    def transaction_ended(self, producer_id: int, *, committed: bool) -> None:
        """A marker is in the log, live or at recovery."""


def merged(decisions: Sequence[Decision[Fact]]) -> Decision[Fact]:
    """Several decisions taken one after the other on the same state, as one."""
    if len(decisions) == 1:
        return decisions[0]
    return Decision(
        answers=tuple(answer for one in decisions for answer in one.answers),
        facts=tuple(fact for one in decisions for fact in one.facts),
        timers=tuple(timer for one in decisions for timer in one.timers),
    )


# Groups that are busy at the same time: each commit and each heartbeat asks again for one of them.
NAMES_MAX = 16 * 1024


def java_string_hash(text: str) -> int:
    """`String.hashCode` of Java, over UTF-16 units, as a signed 32-bit number."""
    value = 0
    for unit in _units(text):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def _units(text: str) -> list[int]:
    data = text.encode("utf-16-be", "surrogatepass")
    return [data[at] << 8 | data[at + 1] for at in range(0, len(data), 2)]


@lru_cache(NAMES_MAX)
def partition_for(name: str, partitions: int) -> int:
    """Kafka's own absolute value: the lowest number has no positive twin, so it becomes 0."""
    value = java_string_hash(name)
    return (0 if value == -(1 << 31) else abs(value)) % partitions
