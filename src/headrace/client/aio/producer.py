"""Producing from an event loop: what many callers send at once leaves as few record batches.

librdkafka gathers, compresses and sends on threads of its own; its delivery reports are fetched by the loop itself,
every millisecond while something is under way. A thread that waits for them would have to fight the loop for the
interpreter's lock; docs/adr/0007 has what was measured of both, and of confluent-kafka's AIOProducer.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from uuid import UUID

from headrace.client.aio.client import TOPICS_KNOWN_MAX, TopicMetadata
from headrace.client.aio.producer_pool import QUEUED_MESSAGES_MAX, Acks, Producers, PublisherSettings, is_fatal, refresh
from headrace.client.aio.transport import OverloadedError
from headrace.client.core.errors import PartitionDeleted, from_kafka_error
from headrace.model.errors import ErrorCode

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

Headers = list[tuple[str, bytes | None]]
# Value, key, partition, time and headers of a message.
ProducerRecord = tuple[bytes | None, bytes | None, int, int, Headers | None]
ANY_PARTITION = -1
NOW = 0  # librdkafka's word for "the time at which it was produced"

# Reports wait for this long at most. Shorter, and the loop is busy looking; longer, and clients feel it.
POLL_INTERVAL_S = 0.001
# Left for callers with single messages while uploads fill the rest.
UPLOAD_MESSAGES_MAX = QUEUED_MESSAGES_MAX // 2
FLUSH_TIMEOUT_S = 5.0
# Long uploads with a producer of their own: a few threads and up to QUEUED_KIB_MAX each. Those on top share.
STREAMS_MAX = 4


class RecordMetadata(NamedTuple):
    """Where a message was put; no offset if nobody was asked to acknowledge it."""

    partition: int
    offset: int | None
    timestamp_ms: int | None


class Report(Protocol):
    """Whoever is told what became of messages."""

    def delivered(self, error: "KafkaError | None", message: "Message", /) -> None: ...


class _Known(NamedTuple):
    """A topic as the producers know it, or will when they have looked again."""

    id: UUID | None
    partitions: int
    looking: "asyncio.Task[None] | None"


class AsyncProducer:
    def __init__(
        self, bootstrap: str, settings: PublisherSettings, forget: Callable[[str], None] = lambda topic: None
    ) -> None:
        """`forget` is called with the name of a topic that was deleted or created again."""
        self._loop = asyncio.get_running_loop()
        self._forget, self._timeout_s = forget, settings.request_timeout_ms / 1000
        self._topics: dict[str, _Known] = {}
        self._producers = Producers(bootstrap, settings, self._release)
        self._streams: list[Producer] = []
        self._under_way = 0
        self._polling = False
        self._next_poll: asyncio.Future[None] | None = None

    @property
    def under_way(self) -> int:
        """Messages that have been accepted and not yet been answered, those of streams of their own among them."""
        return self._under_way + sum(len(one) for one in self._streams)

    def warm(self) -> None:
        """Have the usual producer ready: librdkafka takes half a second to get an idempotent one its id."""
        self._producers.get(None)

    async def learn(self, topic: TopicMetadata) -> None:
        """To be called before a message is sent: producers get to know a topic's new partitions in five minutes only.

        A topic that was created again, or has more partitions than before, is looked up again by them.
        """
        known = self._topics.get(topic.name)
        if known is None or known.id != topic.id or known.partitions != len(topic.partitions):
            looking = None
            if known is not None:
                producers = [*self._producers.all(), *self._streams]
                again = asyncio.to_thread(refresh, producers, topic.name, self._timeout_s)
                looking = asyncio.create_task(again)
            if (
                len(self._topics) >= TOPICS_KNOWN_MAX
            ):  # producers that were not refreshed report PartitionDeleted at worst
                self._topics.clear()
            known = self._topics[topic.name] = _Known(topic.id, len(topic.partitions), looking)
        if known.looking is not None and not known.looking.done():
            await asyncio.shield(known.looking)  # others wait for it too

    def failure(self, topic: str, error: "KafkaError") -> Exception:
        """What a delivery report's error means."""
        from confluent_kafka import KafkaError

        gone = (KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if error.code() not in gone:
            return from_kafka_error(error)
        self._forget(topic)
        return PartitionDeleted(topic)

    def open_stream(self, acks: Acks | None) -> "Producer | None":
        """A producer for one long upload alone, to be given to `close_stream`; None if there are enough of them.

        It reports failures only: a report for every success is a third of what an upload costs.
        """
        if len(self._streams) >= STREAMS_MAX:
            return None
        producer = self._producers.make_stream(acks)
        self._streams.append(producer)
        return producer

    def close_stream(self, producer: "Producer") -> None:
        self._streams.remove(producer)

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int = ANY_PARTITION,
        timestamp_ms: int = NOW,
        headers: Headers | None = None,
        acks: Acks | None = None,
    ) -> "asyncio.Future[RecordMetadata]":
        """The future ends with the place, a Refused or an Unanswered. OverloadedError is raised at once."""
        future: asyncio.Future[RecordMetadata] = self._loop.create_future()

        def delivered(error: "KafkaError | None", message: "Message") -> None:
            self._under_way -= 1
            if future.done():
                return  # whoever waited has gone
            if error is not None:
                future.set_exception(self.failure(topic, error))
            else:
                future.set_result(place_of(message))

        self._produce(acks, topic, value, key, partition, delivered, timestamp_ms, headers)
        return future

    def _produce(self, acks: Acks | None, *message: Any) -> None:
        from confluent_kafka import KafkaException

        producer = self._producers.get(acks)
        try:
            try:
                _hand_over(producer, *message)
            except KafkaException as error:
                if not is_fatal(error):
                    raise
                self._producers.retire(producer, error)
                _hand_over(self._producers.get(acks), *message)
        except BufferError:
            self.poll()
            raise OverloadedError("too many messages wait for the broker") from None
        except KafkaException as error:
            raise self.failure(message[0], error.args[0]) from error
        self._under_way += 1
        self._keep_polling()

    def send_many(
        self,
        topic: str,
        messages: list[dict[str, Any]],
        report: "Report",
        acks: Acks | None = None,
        partition: int = ANY_PARTITION,
    ) -> int:
        """Queue dicts of key and value; returns how many there was room for. Those left out have an `_error` now.

        librdkafka takes neither headers nor times here, and looks at no message's own partition; messages that have
        some go through `send_with_listener`. A dict's `callback` gets its outcome instead of the report.
        """
        producer = self._producers.checked(acks)
        try:
            taken = producer.produce_batch(topic, messages, partition, report.delivered)
        except BufferError:
            taken = 0
        except Exception as error:
            raise translated(error) from error
        self._under_way += taken
        self._keep_polling()
        return taken

    def send_with_listener(
        self, topic: str, message: ProducerRecord, report: "Report", acks: Acks | None = None
    ) -> None:
        """One message whose outcome is told to the upload instead of a future."""
        value, key, partition, timestamp_ms, headers = message
        self._produce(acks, topic, value, key, partition, report.delivered, timestamp_ms, headers)

    async def wait_for_room(self) -> None:
        """Until there is room for another piece of an upload."""
        while self._under_way >= UPLOAD_MESSAGES_MAX:
            await self.polled()

    async def polled(self) -> None:
        """Until the reports have been looked at once more. Something must be under way."""
        assert self._under_way, "nothing is in flight, so the poll timer would not run"
        if self._next_poll is None:
            self._next_poll = self._loop.create_future()
        await asyncio.shield(self._next_poll)  # others wait for it too

    def delivery_done(self) -> None:
        self._under_way -= 1

    def poll(self) -> None:
        """Serve the delivery reports. A producer with a fatal error is replaced; this raises nothing then."""
        self._producers.poll()

    def _release(self, finished: "list[Producer]") -> None:
        """In a thread: ending a producer's own threads takes a moment."""
        self._loop.run_in_executor(None, finished.clear)

    def _keep_polling(self) -> None:
        if not self._polling:
            self._polling = True
            self._loop.call_later(POLL_INTERVAL_S, self._poll_once)

    def _poll_once(self) -> None:
        try:
            self.poll()
        finally:  # whatever a report's recipient raises: the others still wait for theirs
            if self._next_poll is not None:
                self._next_poll.set_result(None)
                self._next_poll = None
            self._polling = self._under_way > 0
            if self._polling:
                self._loop.call_later(POLL_INTERVAL_S, self._poll_once)

    async def close(self) -> None:
        """Lets what is under way arrive, for a few seconds at most."""
        from confluent_kafka import KafkaException

        deadline = self._loop.time() + FLUSH_TIMEOUT_S
        for producer in self._producers.all():
            remaining_s = max(deadline - self._loop.time(), 0.0)
            with suppress(KafkaException):  # a fatal error
                await asyncio.to_thread(producer.flush, remaining_s)


def _hand_over(
    producer: "Producer",
    topic: str,
    value: bytes | None,
    key: bytes | None,
    partition: int,
    delivered: Any,
    timestamp_ms: int,
    headers: Any,
) -> None:
    if headers:
        producer.produce(topic, value, key, partition, delivered, timestamp=timestamp_ms, headers=headers)
    else:
        producer.produce(topic, value, key, partition, delivered, timestamp=timestamp_ms)


def place_of(message: "Message") -> RecordMetadata:
    offset = message.offset()
    kind, timestamp_ms = message.timestamp()
    return RecordMetadata(
        message.partition() or 0,
        offset if offset is not None and offset >= 0 else None,
        timestamp_ms if kind else None,
    )


def translated(error: Exception) -> Exception:
    from confluent_kafka import KafkaError, KafkaException

    if isinstance(error, KafkaException) and error.args and isinstance(error.args[0], KafkaError):
        return from_kafka_error(error.args[0])
    return error
