"""Kafka consumer for an event loop: librdkafka's consumer in a thread, a few portions ahead of its reader.

A reader that takes no more portions stops the thread's polling and thereby, after `max.poll.interval.ms`, the
membership, as with any Kafka consumer.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FuturesTimeoutError
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from headrace.client.aio.consumer import Begin, Beginning
from headrace.client.core.errors import KafkaApiError, from_kafka_error
from headrace.client.librdkafka import Overrides, make_consumer
from headrace.model.errors import ErrorCode

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

# Two: one is sent while the next is prepared.
PORTIONS_AHEAD_MAX = 2
# How often an idle thread checks for commits and for `stop`.
POLL_S = 0.1

Chunk = TypeVar("Chunk")


class PartitionOffset(NamedTuple):
    topic: str
    partition: int
    offset: int = -1
    metadata: str = ""


class Assigned(NamedTuple):
    """The consumer's complete assignment from now on."""

    places: tuple[PartitionOffset, ...]


class PartitionMessages(NamedTuple):
    """Consecutive messages of one partition."""

    topic: str
    partition: int
    messages: "list[Message]"


class Read(NamedTuple, Generic[Chunk]):
    portion: Chunk
    assignment: int  # increases with each assignment and revocation; a commit for an older one is rejected


Event = Assigned | Read[Chunk] | Exception


class ThreadedConsumer(Generic[Chunk]):
    """`make_portion` converts messages for the reader, in the thread, where it does not block the event loop."""

    def __init__(
        self,
        bootstrap: str,
        settings: Overrides,
        make_portion: Callable[[Sequence[PartitionMessages]], Chunk],
        *,
        topics: Sequence[str] = (),
        places: Sequence[PartitionOffset] = (),
        beginning: Beginning | None = None,
        messages_max: int,
        ended: Callable[[], None],
    ) -> None:
        """`beginning` returns the start offsets of each assignment; it runs on the event loop."""
        self._bootstrap, self._settings, self._make_portion = bootstrap, settings, make_portion
        self._topics, self._places, self._messages_max = list(topics), places, messages_max
        self._beginning = beginning
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event[Chunk]] = asyncio.Queue()
        self._room = threading.Semaphore(PORTIONS_AHEAD_MAX)
        self._stopped = threading.Event()
        self._orders: queue.SimpleQueue[Callable[[Consumer], None]] = queue.SimpleQueue()
        self._consumer: Consumer | None = None
        self._assignment = 0
        self._ended = ended
        self._thread = threading.Thread(target=self._run, name="headrace-consumer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns at once; the thread leaves the group and then calls `ended`."""
        self._stopped.set()

    def fail(self, error: Exception) -> None:
        """Ends the consumer: the reader gets the portions so far, then the error."""
        self._events.put_nowait(error)

    async def next_event(self) -> "Assigned | Read[Chunk]":
        """Returns events in order. Raises the error that ended the consumer."""
        event = await self._events.get()
        if isinstance(event, Exception):
            raise event
        return event

    def taken(self) -> None:
        """Releases a portion, so that the thread may prepare another."""
        self._room.release()

    def store(self, places: Sequence[PartitionOffset], assignment: int) -> None:
        """Stores offsets for librdkafka's auto-commit, unless the group has rebalanced since they were read."""

        def store(consumer: "Consumer") -> None:
            if assignment == self._assignment:
                _store(consumer, places)

        self._orders.put(store)

    async def commit(self, places: Sequence[PartitionOffset], assignment: int | None = None) -> None:
        """Returns when the broker has committed the offsets; raises the first error.

        If `assignment` is given and the group has rebalanced since, raises KafkaApiError with ILLEGAL_GENERATION.
        """
        if not places:
            return
        answered: asyncio.Future[None] = self._loop.create_future()

        def commit(consumer: "Consumer") -> None:
            error: Exception | None = None
            try:
                if assignment not in (None, self._assignment):
                    raise KafkaApiError(
                        ErrorCode.ILLEGAL_GENERATION, "the group has rebalanced since these records were sent"
                    )
                _commit(consumer, places)
            except Exception as refusal:
                error = refusal
            self._call(partial(_answer, answered, error))

        self._orders.put(commit)
        await answered

    # In the thread

    def _run(self) -> None:
        try:
            self._consumer = make_consumer(self._bootstrap, self._settings)
            try:
                self._begin(self._consumer)
                while not self._stopped.is_set():
                    self._obey(self._consumer)
                    self._poll(self._consumer)
                self._obey(self._consumer)
            finally:
                self._consumer.close()
        except Exception as error:
            self._tell(error)
        finally:
            self._call(self._ended)

    def _begin(self, consumer: "Consumer") -> None:
        if self._places:
            consumer.assign(_topic_partitions(self._places))
        else:
            consumer.subscribe(self._topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)

    def _poll(self, consumer: "Consumer") -> None:
        first = consumer.poll(POLL_S)  # returns with the first message; consume() would wait for all of them
        if first is None:
            return
        messages = [first]
        if self._messages_max > 1:
            messages += consumer.consume(self._messages_max - 1, 0)
        good = [message for message in messages if message.error() is None]
        assignment = self._assignment
        if good and self._wait_for_room(consumer):
            runs = _runs(good)
            self._tell(Read(self._make_portion(runs), assignment))
        for message in messages:
            error = message.error()
            if error is not None and not _harmless(error):
                raise from_kafka_error(error)

    def _wait_for_room(self, consumer: "Consumer") -> bool:
        while not self._stopped.is_set():
            if self._room.acquire(timeout=POLL_S):
                return True
            self._obey(consumer)
        return False

    def _obey(self, consumer: "Consumer") -> None:
        """Runs the queued orders, in this thread only: a consumer that is being polled blocks other threads forever."""
        while not self._orders.empty():
            self._orders.get()(consumer)

    def _assigned(self, consumer: "Consumer", partitions: "list[TopicPartition]") -> None:
        self._assignment += 1
        if self._beginning is not None:
            self._begin_at(consumer, self._beginning, [(one.topic, one.partition) for one in partitions])
        self._tell(Assigned(tuple(PartitionOffset(one.topic, one.partition) for one in partitions)))

    def _begin_at(self, consumer: "Consumer", beginning: Beginning, places: Sequence[tuple[str, int]]) -> None:
        asking = asyncio.run_coroutine_threadsafe(_awaited(beginning, places), self._loop)
        while not self._stopped.is_set():
            with suppress(FuturesTimeoutError):
                offsets = asking.result(POLL_S)
                consumer.assign(_topic_partitions([PartitionOffset(*place, at) for place, at in offsets.begin.items()]))
                if offsets.commit:
                    commit = [PartitionOffset(*place, at) for place, at in offsets.commit.items()]
                    consumer.commit(offsets=_topic_partitions(commit), asynchronous=True)
                return
        asking.cancel()

    def _revoked(self, consumer: "Consumer", partitions: "list[TopicPartition]") -> None:
        self._assignment += 1
        self._tell(Assigned(()))

    def _tell(self, event: Event[Chunk]) -> None:
        self._call(lambda: self._events.put_nowait(event))

    def _call(self, do: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(do)
        except RuntimeError:  # the event loop is closed, and its readers with it
            self._stopped.set()


async def _awaited(beginning: Beginning, places: Sequence[tuple[str, int]]) -> Begin:
    return await beginning(places)


def _answer(answered: "asyncio.Future[None]", error: Exception | None) -> None:
    if answered.done():  # cancelled by its caller
        return
    if error is None:
        answered.set_result(None)
    else:
        answered.set_exception(error)


def _runs(messages: "Sequence[Message]") -> list[PartitionMessages]:
    runs: list[PartitionMessages] = []
    topic: str | None = None
    partition: int | None = None
    for message in messages:
        if message.partition() != partition or message.topic() != topic:
            topic, partition = message.topic(), message.partition()
            runs.append(PartitionMessages(topic or "", partition or 0, []))  # a message without error has both
        runs[-1].messages.append(message)
    return runs


def _topic_partitions(places: Sequence[PartitionOffset]) -> "list[TopicPartition]":
    from confluent_kafka import TopicPartition

    return [TopicPartition(one.topic, one.partition, one.offset, one.metadata) for one in places]


def _store(consumer: "Consumer", places: Sequence[PartitionOffset]) -> None:
    from confluent_kafka import KafkaException

    try:
        consumer.store_offsets(offsets=_topic_partitions(places))
    except KafkaException:
        return


def _commit(consumer: "Consumer", places: Sequence[PartitionOffset]) -> None:
    from confluent_kafka import KafkaException

    try:
        answered = consumer.commit(offsets=_topic_partitions(places), asynchronous=False)
    except KafkaException as error:
        raise from_kafka_error(error.args[0]) from error
    for row in answered or ():
        if row.error is not None:
            raise from_kafka_error(row.error)


def _harmless(error: "KafkaError") -> bool:
    """Whether librdkafka continues by itself: ends of partitions, and brokers that are unavailable for a while."""
    from confluent_kafka import KafkaError

    if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:  # it existed at the start: the topic was deleted
        return False
    return bool(error.retriable()) or error.code() in (
        KafkaError._PARTITION_EOF,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
    )
