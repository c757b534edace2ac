"""A member of a consumer group, driven by an event loop: joins, takes records, commits, leaves.

librdkafka does the group's work on threads of its own; it must be asked regularly, or the group waits for us. One timer
asks all members (`Poller`), whether somebody waits for their records or not: five hundred members cost a few
milliseconds a second this way, and no thread of ours. What arrives waits in a small buffer; when that is full the
partitions are paused, so that a slow reader holds up nobody but itself.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.client.factory import make_consumer
from headrace.client.refusals import from_kafka_error
from headrace.model.errors import ErrorCode

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

Place = tuple[str, int]

# How long a record may lie in librdkafka before a reader who waits gets it.
POLL_INTERVAL_S = 0.01
# Members that have not had a record for this many rounds are asked less often.
QUIET_ROUNDS = 50
QUIET_EVERY = 5
# What librdkafka may hold for one member: a thousand members must fit into memory.
QUEUED_KIB_MAX = 1024
FETCH_BYTES_MAX = 256 * 1024
# librdkafka has one fetch under way per broker: partitions that are assigned while it waits are not asked for until it
# returns. With 5 s here the first events of a stream came after 3.7 s in the median, with 500 ms after 16 ms.
FETCH_WAIT_MS_MAX = 500
# Kafka's default. The poller asks all the time, so this only ends a member whose loop is stuck.
POLL_INTERVAL_MS_MAX = 300_000
# A coordinator's answers after which trying again is of no use.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    group: str
    topics: tuple[str, ...]
    client_id: str
    instance_id: str | None = None
    session_timeout_ms: int = 30_000
    offset_reset: str = "earliest"
    committed_only: bool = True
    buffered_max: int = 500


class Poller:
    """Asks every member, again and again, while there is one."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._members: list[Member] = []
        self._timer: asyncio.TimerHandle | None = None
        self._round = 0

    def add(self, member: "Member") -> None:
        self._members.append(member)
        if self._timer is None:
            self._timer = self._loop.call_later(POLL_INTERVAL_S, self._poll_all)

    def remove(self, member: "Member") -> None:
        if member in self._members:
            self._members.remove(member)

    def _poll_all(self) -> None:
        self._round += 1
        for number, member in enumerate(self._members):
            if member.quiet_rounds < QUIET_ROUNDS or (self._round + number) % QUIET_EVERY == 0:
                member.pump()
        self._timer = self._loop.call_later(POLL_INTERVAL_S, self._poll_all) if self._members else None


class Member:
    def __init__(
        self, bootstrap: str, settings: MemberSettings, poller: Poller, positions: Mapping[Place, int] | None = None
    ) -> None:
        """`positions` are where to begin instead of the committed offsets, for partitions that we are given."""
        self.settings = settings
        self.quiet_rounds = 0
        self.rebalances = 0
        self._positions = dict(positions or {})
        self._delivered: dict[Place, int] = {}
        self._assigned: set[Place] = set()
        self._buffer: deque[Message] = deque()
        self._paused = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._poller = poller
        self._closing: asyncio.Task[None] | None = None
        self._consumer = _make(bootstrap, settings)
        self._consumer.subscribe(
            list(settings.topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )
        poller.add(self)

    @property
    def assigned(self) -> list[Place]:
        return sorted(self._assigned)

    @property
    def delivered(self) -> Mapping[Place, int]:
        """Per partition that we have: the offset behind the last record that was handed out."""
        return self._delivered

    @property
    def member_id(self) -> str:
        return self._consumer.memberid() or ""

    async def poll(self, count_max: int, wait_s: float) -> "list[Message]":
        """Records that have arrived; waits for the first one if there is none. Raises what ended the membership."""
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
        for message in taken:
            self._delivered[_place(message)] = (message.offset() or 0) + 1
        self._resume()
        return taken

    def wake(self) -> None:
        """End the wait of whoever polls: with what there is."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def pump(self) -> None:
        """Fetch what has arrived and let librdkafka do its callbacks. Never waits."""
        room = self.settings.buffered_max - len(self._buffer)
        if room <= 0:
            self._pause()
        try:
            messages = self._consumer.consume(max(room, 1), 0)
        except Exception as error:
            self.fail(error)
            return
        self.quiet_rounds = 0 if messages else self.quiet_rounds + 1
        for message in messages:
            problem = message.error()
            if problem is None:
                self._buffer.append(message)
            else:
                self._judge(problem)
        if self._buffer or self._error is not None:
            self.wake()

    def _judge(self, error: "KafkaError") -> None:
        """librdkafka tries again by itself whatever may pass; only what it gives up on ends a membership."""
        from confluent_kafka import KafkaError

        gave_up = error.code() == KafkaError._MAX_POLL_EXCEEDED or error.code() in _FINAL
        if error.fatal() or gave_up:
            self._error = from_kafka_error(error)

    def fail(self, error: Exception) -> None:
        """The membership is over: whoever polls gets what has arrived, then the error."""
        self._error = error
        self._poller.remove(self)
        self.wake()

    def _pause(self) -> None:
        if not self._paused and self._assigned:
            self._paused = True
            self._consumer.pause(self._partitions())

    def _resume(self) -> None:
        if self._paused and len(self._buffer) <= self.settings.buffered_max // 2:
            self._paused = False
            self._consumer.resume(self._partitions())

    def _partitions(self) -> "list[TopicPartition]":
        from confluent_kafka import TopicPartition

        return [TopicPartition(*place) for place in self._assigned]

    # Called by librdkafka, inside `pump`

    def _on_assign(self, consumer: "Consumer", partitions: "list[TopicPartition]") -> None:
        for one in partitions:
            begin = self._positions.pop((one.topic, one.partition), None)
            if begin is not None:
                one.offset = begin
        consumer.assign(partitions)
        self._assigned = {(one.topic, one.partition) for one in partitions}
        self._paused = False
        self.rebalances += 1
        self.wake()

    def _on_revoke(self, consumer: "Consumer", partitions: "list[TopicPartition]") -> None:
        """What is taken away is somebody else's from now on: neither handed out nor committed by us."""
        gone = {(one.topic, one.partition) for one in partitions}
        self._assigned -= gone
        self._buffer = deque(message for message in self._buffer if _place(message) not in gone)
        for place in gone:
            self._delivered.pop(place, None)
        consumer.unassign()

    # Committing and leaving

    async def commit(self, offsets: Mapping[Place, int]) -> None:
        """Returns when the coordinator has them; Refused if it says no."""
        from confluent_kafka import KafkaException

        if not offsets:
            return
        places = _topic_partitions(offsets)
        try:
            done = await asyncio.to_thread(lambda: self._consumer.commit(offsets=places, asynchronous=False))
        except KafkaException as error:
            raise from_kafka_error(error.args[0]) from error
        for one in done or ():
            if one.error is not None:
                raise from_kafka_error(one.error)

    def commit_soon(self, offsets: Mapping[Place, int]) -> None:
        """Without waiting and without an answer, for those who will commit again in a moment."""
        from confluent_kafka import KafkaException

        if offsets:
            with suppress(KafkaException):  # between two generations; the next one will do
                self._consumer.commit(offsets=_topic_partitions(offsets), asynchronous=True)

    async def close(self) -> None:
        """Leave the group. Takes a moment, during which the loop goes on."""
        if self._closing is None:
            self._poller.remove(self)
            self.wake()
            self._closing = asyncio.create_task(asyncio.to_thread(self._consumer.close))
        await asyncio.shield(self._closing)


def _make(bootstrap: str, settings: MemberSettings) -> "Consumer":
    overrides: dict[str, Any] = {
        "client.id": settings.client_id,
        "group.id": settings.group,
        "session.timeout.ms": settings.session_timeout_ms,
        "heartbeat.interval.ms": max(min(3_000, settings.session_timeout_ms // 3), 1),
        "max.poll.interval.ms": max(POLL_INTERVAL_MS_MAX, settings.session_timeout_ms),
        "enable.partition.eof": False,
        "auto.offset.reset": settings.offset_reset,
        "isolation.level": "read_committed" if settings.committed_only else "read_uncommitted",
        # What every classic client knows, so that Java's and ours can share a group.
        "partition.assignment.strategy": "range,roundrobin",
        "queued.max.messages.kbytes": QUEUED_KIB_MAX,
        "fetch.message.max.bytes": FETCH_BYTES_MAX,
        "fetch.wait.max.ms": FETCH_WAIT_MS_MAX,
    }
    if settings.instance_id is not None:
        overrides["group.instance.id"] = settings.instance_id
    return make_consumer(bootstrap, overrides)


def _place(message: "Message") -> Place:
    return (message.topic() or "", message.partition() or 0)


def _topic_partitions(offsets: Mapping[Place, int]) -> "list[TopicPartition]":
    from confluent_kafka import TopicPartition

    return [TopicPartition(*place, offset) for place, offset in offsets.items()]
