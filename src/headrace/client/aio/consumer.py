"""Group consumers over librdkafka, polled by the event loop.

A `GroupConsumer` is a member of a consumer group, or a reader of fixed partitions without a group. librdkafka does
the group's work on threads of its own and must be polled regularly, because rebalances of the whole group wait for
its callbacks. One timer (`ConsumerPoller`) polls all members, whether a caller waits for records or not: five hundred
members cost a few milliseconds per second and no thread of headrace. Records wait in a small buffer. When it is full
the partitions are paused, so a slow reader delays no other.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from headrace.client.aio.transport import OverloadedError
from headrace.client.core.errors import KafkaApiError, UnknownOutcomeError, from_kafka_error
from headrace.client.librdkafka import UNUSED_GROUP, BrokerUnreachable, make_consumer
from headrace.model.errors import ErrorCode

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, TopicPartition


# Prefetch limit of librdkafka per member: a thousand members must fit into memory.
QUEUED_KIB_MAX = 1024
FETCH_BYTES_MAX = 256 * 1024
# librdkafka has one fetch in flight per broker and does not fetch partitions that are assigned during that time until
# it returns. With 5 s here the first events of a stream arrived after 3.7 s in the median, with 500 ms after 16 ms.
FETCH_WAIT_MS_MAX = 500
# Kafka's default. The poller polls all the time, so this only removes a member whose event loop is blocked.
POLL_INTERVAL_MS_MAX = 300_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConsumerConfig:
    topics: tuple[str, ...]
    client_id: str
    group: str = UNUSED_GROUP  # for readers without a group
    instance_id: str | None = None
    session_timeout_ms: int = 30_000
    offset_reset: str = "earliest"
    committed_only: bool = True
    buffered_max: int = 500


def make_member(
    bootstrap: str,
    settings: GroupConsumerConfig,
    on_commit: "Callable[[KafkaError | None, list[TopicPartition]], None]",
    *,
    positioned_by_group: bool,
) -> "Consumer":
    """Returns a librdkafka consumer. `on_commit` receives the result of each commit, inside `consume`.

    A consumer with explicit positions never skips records: if the record at a position was deleted, it continues at
    the first offset that exists.
    """
    overrides: dict[str, Any] = {
        "client.id": settings.client_id,
        "group.id": settings.group,
        "session.timeout.ms": settings.session_timeout_ms,
        "heartbeat.interval.ms": max(min(3_000, settings.session_timeout_ms // 3), 1),
        "max.poll.interval.ms": max(POLL_INTERVAL_MS_MAX, settings.session_timeout_ms),
        "enable.partition.eof": False,
        "auto.offset.reset": settings.offset_reset if positioned_by_group else "earliest",
        "isolation.level": "read_committed" if settings.committed_only else "read_uncommitted",
        # Assignors of every classic client, so that Java consumers can share the group.
        "partition.assignment.strategy": "range,roundrobin",
        "queued.max.messages.kbytes": QUEUED_KIB_MAX,
        "fetch.message.max.bytes": FETCH_BYTES_MAX,
        "fetch.wait.max.ms": FETCH_WAIT_MS_MAX,
        "on_commit": on_commit,
    }
    if settings.instance_id is not None:
        overrides["group.instance.id"] = settings.instance_id
    return make_consumer(bootstrap, overrides)


# How long a record may wait in librdkafka while a caller waits for it.
POLL_INTERVAL_S = 0.01
# Members without a record in this many rounds are polled less often.
QUIET_ROUNDS = 50
QUIET_EVERY = 5


class Polled(Protocol):
    quiet_rounds: int

    def pump(self) -> None: ...


class ConsumerPoller:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._members: list[Polled] = []
        self._timer: asyncio.TimerHandle | None = None
        self._round = 0

    def add(self, member: Polled) -> None:
        self._members.append(member)
        if self._timer is None:
            self._timer = self._loop.call_later(POLL_INTERVAL_S, self._poll_all)

    def remove(self, member: Polled) -> None:
        if member in self._members:
            self._members.remove(member)

    def _poll_all(self) -> None:
        self._round += 1
        for number, member in enumerate(self._members):
            if member.quiet_rounds < QUIET_ROUNDS or (self._round + number) % QUIET_EVERY == 0:
                member.pump()
        self._timer = self._loop.call_later(POLL_INTERVAL_S, self._poll_all) if self._members else None


PartitionKey = tuple[str, int]

# Limit of a member's buffer, besides librdkafka's; the last record may exceed it.
BUFFERED_BYTES_MAX = 1024 * 1024
# Records after which the buffered bytes are checked: a fetch of a few kilobytes may decompress to gigabytes.
MESSAGES_AT_ONCE = 20
# Each attempt has its own request timeout; this is the pause after errors that return immediately.
BEGIN_AGAIN_S = 1.0
COMMIT_LOOK_S = 0.002
# Longer than a coordinator failover takes; librdkafka retries by itself until then.
COMMIT_S_MAX = 60.0

# Coordinator errors that a retry does not resolve.
_FINAL = frozenset(
    {
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.INVALID_SESSION_TIMEOUT,
    }
)


class Begin(NamedTuple):
    """Start offsets of an assignment, and offsets to commit at once: acknowledged ones, or final start offsets."""

    begin: Mapping[PartitionKey, int]
    commit: Mapping[PartitionKey, int]


Beginning = Callable[[Sequence[PartitionKey]], Awaitable[Begin]]


class GroupConsumer:
    """Member of a group, or reader of fixed partitions.

    `assignment` increases with every assignment and revocation; records that were polled before belong to an older
    one.
    """

    def __init__(
        self,
        bootstrap: str,
        settings: GroupConsumerConfig,
        poller: ConsumerPoller,
        *,
        beginning: Beginning | None = None,
        places: Mapping[PartitionKey, int] | None = None,
    ) -> None:
        """`beginning` returns the start offsets of each assignment in place of the committed offsets.

        With `places` the consumer reads these partitions from these offsets and joins no group.
        """
        self.settings = settings
        self.quiet_rounds = 0
        self.assignment = 0
        self._beginning = beginning
        self._begun: dict[PartitionKey, int] = {}  # start offsets of this assignment, advanced by acknowledgements
        self._starting: asyncio.Task[None] | None = None
        self._assigned: set[PartitionKey] = set()
        self._buffer: deque[Message] = deque()
        self._buffered_bytes = 0
        self._paused = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._poller = poller
        self._closing: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._commits: list[
            tuple[Mapping[PartitionKey, int], asyncio.Future[None] | None]
        ] = []  # in flight, oldest first
        self._over: Exception | None = None  # why commits get no result any more
        by_group = beginning is None and places is None
        self._consumer = make_member(bootstrap, settings, self._on_commit, positioned_by_group=by_group)
        if places is None:
            self._consumer.subscribe(
                list(settings.topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
            )
        else:
            self._assign(places)
        poller.add(self)

    @property
    def assigned(self) -> list[PartitionKey]:
        return sorted(self._assigned)

    @property
    def member_id(self) -> str:
        return self._consumer.memberid() or ""

    async def poll(self, count_max: int, wait_s: float) -> "list[Message]":
        """Returns buffered records; waits up to `wait_s` for the first. Raises the error that ended the membership."""
        if not self._buffer and self._error is None and wait_s > 0:
            self.quiet_rounds = 0
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(wait_s):
                    await self._waiter
            except TimeoutError:
                pass
            finally:
                self._waiter = None
        if self._error is not None and not self._buffer:
            raise self._error
        taken = [self._buffer.popleft() for _ in range(min(count_max, len(self._buffer)))]
        self._buffered_bytes -= _bytes_of(taken)
        self._resume()
        return taken

    def put_back(self, messages: "Sequence[Message]") -> None:
        """Returns records that `poll` took to the buffer. Only for records of the current `assignment`."""
        self._buffer.extendleft(reversed(messages))
        self._buffered_bytes += _bytes_of(messages)

    def wake(self) -> None:
        """Ends a pending `poll` with the records that are buffered."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def pump(self) -> None:
        """Takes records from librdkafka and runs its callbacks. Never blocks."""
        some = False
        while self._pump_some():
            some = True
        self.quiet_rounds = 0 if some else self.quiet_rounds + 1
        if self._buffer or self._error is not None:
            self.wake()

    def _pump_some(self) -> bool:
        """Returns True if records arrived and the buffer has space for more."""
        room = self.settings.buffered_max - len(self._buffer)
        if room <= 0 or self._buffered_bytes >= BUFFERED_BYTES_MAX:
            room = 0
            self._pause()
        try:
            messages = self._consumer.consume(min(max(room, 1), MESSAGES_AT_ONCE), 0)
        except Exception as error:
            self.fail(error)
            return False
        for message in messages:
            problem = message.error()
            if problem is None:
                self._buffer.append(message)
                self._buffered_bytes += _bytes_of((message,))
            else:
                self._judge(problem)
        return bool(messages) and room > 0

    def _judge(self, error: "KafkaError") -> None:
        """Ends the membership if librdkafka has given up; it retries retriable errors by itself."""
        from confluent_kafka import KafkaError

        gave_up = error.code() == KafkaError._MAX_POLL_EXCEEDED or error.code() in _FINAL
        if error.fatal() or gave_up:
            self._error = from_kafka_error(error)

    def fail(self, error: Exception) -> None:
        """Ends the membership: `poll` returns the buffered records, then raises the error."""
        self._error = error
        self._end(error)
        self.wake()

    def _pause(self) -> None:
        if not self._paused and self._assigned:
            self._paused = True
            self._consumer.pause(self._partitions())

    def _resume(self) -> None:
        is_half_empty = len(self._buffer) <= self.settings.buffered_max // 2
        if self._paused and is_half_empty and self._buffered_bytes <= BUFFERED_BYTES_MAX // 2:
            self._paused = False
            self._consumer.resume(self._partitions())

    def _partitions(self) -> "list[TopicPartition]":
        from confluent_kafka import TopicPartition

        return [TopicPartition(*place) for place in self._assigned]

    # Called by librdkafka, inside `pump`

    def _on_assign(self, consumer: "Consumer", partitions: "list[TopicPartition]") -> None:
        if self._beginning is None:
            consumer.assign(partitions)
            self._has_been_assigned({(one.topic, one.partition) for one in partitions})
        else:
            consumer.assign([])  # for now: librdkafka would start at the committed offsets otherwise
            places = [(one.topic, one.partition) for one in partitions]
            self._starting = asyncio.create_task(self._begin(self._beginning, places, self.assignment))

    async def _begin(self, beginning: Beginning, places: Sequence[PartitionKey], assignment: int) -> None:
        """Retries until it succeeds or the partitions are revoked, as librdkafka does for committed offsets."""
        while assignment == self.assignment:
            try:
                offsets = await beginning(places)
            except Exception as error:
                if not _passes(error):
                    if assignment == self.assignment:
                        self.fail(error)
                    return
                await asyncio.sleep(BEGIN_AGAIN_S)
            else:
                if assignment == self.assignment:  # nothing has been revoked since
                    self._assign(offsets.begin)
                    self.commit_async(offsets.commit)
                return

    def _assign(self, begin: Mapping[PartitionKey, int]) -> None:
        self._consumer.assign(_topic_partitions(begin))
        self._begun = dict(begin)
        self._has_been_assigned(set(begin))

    def add(self, begin: Mapping[PartitionKey, int]) -> None:
        """Adds partitions. Only for a consumer without a group."""
        self._consumer.incremental_assign(_topic_partitions(begin))
        self._has_been_assigned(self._assigned | begin.keys())

    def _has_been_assigned(self, places: set[PartitionKey]) -> None:
        self._assigned = places
        self._paused = False
        self.assignment += 1
        self.wake()

    def _on_revoke(self, consumer: "Consumer", partitions: "list[TopicPartition]") -> None:
        """Revoked partitions belong to another member: drops their buffered records and never commits them."""
        gone = {(one.topic, one.partition) for one in partitions}
        self._assigned -= gone
        self._begun = {}
        self._buffer = deque(message for message in self._buffer if place_of(message) not in gone)
        self._buffered_bytes = _bytes_of(self._buffer)
        self.assignment += 1
        consumer.unassign()

    # Commits and leaving

    async def commit(self, offsets: Mapping[PartitionKey, int]) -> None:
        """Returns when the coordinator has committed the offsets.

        Raises KafkaApiError if it rejects them and UnknownOutcomeError without a response in COMMIT_S_MAX. Does not
        use a blocking commit in a thread: confluent-kafka serializes the calls of one consumer, so `pump` would block
        the event loop.
        """
        if not offsets:
            return
        if self._over is not None:
            raise self._over
        answered = self._loop.create_future()
        self._commit(offsets, answered)
        self.quiet_rounds = 0
        self._loop.call_later(COMMIT_LOOK_S, self._look_for, answered)
        try:
            async with asyncio.timeout(COMMIT_S_MAX):
                await answered
        except TimeoutError:
            raise UnknownOutcomeError(
                "the group coordinator did not respond to the commit; it may have been stored"
            ) from None

    def _commit(self, offsets: Mapping[PartitionKey, int], answered: "asyncio.Future[None] | None") -> None:
        from confluent_kafka import KafkaException

        try:
            self._consumer.commit(offsets=_topic_partitions(offsets), asynchronous=True)
        except KafkaException as error:
            raise from_kafka_error(error.args[0]) from error
        self._commits.append((dict(offsets), answered))

    def _look_for(self, answered: "asyncio.Future[None]") -> None:
        """Polls before the poller's timer, for the usual response time of a millisecond or two."""
        if not answered.done() and self._over is None:
            self.pump()

    def _on_commit(self, error: "KafkaError | None", partitions: "list[TopicPartition]") -> None:
        """Called by librdkafka, inside `pump`. Results of commits of the same offsets arrive in commit order."""
        offsets = {(one.topic, one.partition): one.offset for one in partitions}
        found = next((commit for commit in self._commits if commit[0] == offsets), None)
        if found is None:
            return
        self._commits.remove(found)
        answered = found[1]
        if answered is None or answered.done():  # not awaited, or cancelled by its caller
            return
        refused = error or next((one.error for one in partitions if one.error is not None), None)
        if refused is None:
            answered.set_result(None)
        else:
            answered.set_exception(from_kafka_error(refused))

    def _end(self, error: Exception) -> None:
        """Stops polling; pending and later commits raise `error`."""
        self._poller.remove(self)
        self._over = self._over or error
        commits, self._commits = self._commits, []
        for _, answered in commits:
            if answered is not None and not answered.done():
                answered.set_exception(error)

    async def acknowledge(self, positions: Mapping[PartitionKey, int]) -> dict[PartitionKey, int]:
        """Commits offsets that are beyond the start of this assignment and earlier acknowledgements; returns them."""
        ahead = {place: at for place, at in positions.items() if at > self._begun.get(place, at)}
        await self.commit(ahead)
        self._begun |= {place: max(at, self._begun[place]) for place, at in ahead.items() if place in self._begun}
        return ahead

    def commit_async(self, offsets: Mapping[PartitionKey, int]) -> None:
        """Commits without waiting for the result, for callers that will commit again soon."""
        if offsets:
            with suppress(KafkaApiError, UnknownOutcomeError):  # between two generations; the next commit replaces it
                self._commit(offsets, None)

    async def close(self) -> None:
        """Leaves the group. Closing librdkafka's consumer takes a moment, in a thread."""
        if self._closing is None:
            self._end(KafkaApiError(ErrorCode.UNKNOWN_MEMBER_ID, "the consumer has left its group"))
            self.wake()
            if self._starting is not None:
                self._starting.cancel()
            self._closing = asyncio.create_task(asyncio.to_thread(self._consumer.close))
        await asyncio.shield(self._closing)


def place_of(message: "Message") -> PartitionKey:
    return (message.topic() or "", message.partition() or 0)


def _passes(error: Exception) -> bool:
    if isinstance(error, KafkaApiError):
        return error.passes
    return isinstance(error, BrokerUnreachable | UnknownOutcomeError | OverloadedError)


def _bytes_of(messages: "Iterable[Message]") -> int:
    return sum(len(message.key() or b"") + len(message.value() or b"") for message in messages)


def _topic_partitions(offsets: Mapping[PartitionKey, int]) -> "list[TopicPartition]":
    from confluent_kafka import TopicPartition

    return [TopicPartition(*place, offset) for place, offset in offsets.items()]
