"""How a coordinator's machine speaks to the shell that runs it.

A machine lives in one partition of an internal topic. It is asked to decide, and answers with a Decision: who is to be
told what, which facts are to be written down, and when it wants to be asked again. Deciding changes nothing; only
`apply` does, live and at recovery alike, one fact at a time.

    decide → append the facts to the log → apply them → answer when the log has committed them

An append that fails has changed no machine. Gaining leadership replays the log through the same `apply`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

Fact = TypeVar("Fact")

Ticket = int  # names a request that waits for its answer; given out by the shell


class Moment(int):
    """Now: milliseconds of a clock that never jumps, which is what deadlines are counted in.

    `wall_ms` is what the calendar says, for what is written down and read after a restart.
    """

    wall_ms: int

    def __new__(cls, monotonic_ms: int, wall_ms: int) -> "Moment":
        moment = super().__new__(cls, monotonic_ms)
        moment.wall_ms = wall_ms
        return moment


class Answer(NamedTuple):
    """What the request with this ticket is told. A request may be answered by somebody else's decision.

    A reply that is a HeadraceError is raised where the request waits.
    """

    ticket: Ticket
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


class LogRecord(NamedTuple):
    """A fact as the internal topic holds it. A null value forgets what was said under the key."""

    key: bytes
    value: bytes | None


class Machine(Protocol[Fact]):
    """What the shell needs of every machine, beyond its decisions."""

    def encode(self, fact: Fact) -> LogRecord | None:
        """None for a fact that nobody needs after a restart: it is applied and not written."""

    def apply(self, fact: Fact, offset: int) -> None:
        """Make a fact true. `offset` is that of its record; of a fact without one, where it would have been."""

    def replay(self, record: LogRecord, offset: int) -> None:
        """`apply`, from the bytes of a log: unknown kinds of records are passed over."""

    def loaded(self, now_ms: Moment) -> Decision[Fact]:
        """After the last record was replayed: the timers that the state calls for."""

    def expire(self, timer: str, now_ms: Moment) -> Decision[Fact]:
        """A timer is due."""


@runtime_checkable
class TransactionalMachine(Protocol):
    """A machine whose log also holds records of transactions, and the markers that end them."""

    def replay_in_transaction(self, record: LogRecord, offset: int, producer: Producer) -> None:
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
