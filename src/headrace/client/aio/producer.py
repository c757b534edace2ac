"""Producer for the event loop: messages that many callers send at once are combined into few record batches.

librdkafka batches, compresses and sends on threads of its own. The event loop polls its delivery reports every
millisecond while messages are in flight. A thread that waits for them would compete with the event loop for the GIL;
docs/adr/0007 has measurements of both, and of confluent-kafka's AIOProducer.
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
# Value, key, partition, timestamp and headers of a message.
ProducerRecord = tuple[bytes | None, bytes | None, int, int, Headers | None]
ANY_PARTITION = -1
NOW = 0  # librdkafka's value for "the time of the produce call"

# Maximum delay of delivery reports. A shorter interval keeps the loop busy polling; a longer one adds visible latency.
POLL_INTERVAL_S = 0.001
# The other half of the queue is reserved for single messages while uploads fill this one.
UPLOAD_MESSAGES_MAX = QUEUED_MESSAGES_MAX // 2
FLUSH_TIMEOUT_S = 5.0
# Long uploads with a producer of their own, which takes a few threads and up to QUEUED_KIB_MAX. Further ones share.
STREAMS_MAX = 4


class RecordMetadata(NamedTuple):
    """Partition and offset of a message; the offset is None without acknowledgements."""

    partition: int
    offset: int | None
    timestamp_ms: int | None


class Report(Protocol):
    """Receiver of delivery reports."""

    def delivered(self, error: "KafkaError | None", message: "Message", /) -> None: ...


class _Known(NamedTuple):
    """A topic's metadata as the producers have it, or will have it after the refresh in `looking`."""

    id: UUID | None
    partitions: int
    looking: "asyncio.Task[None] | None"


class AsyncProducer:
    def __init__(
        self, bootstrap: str, settings: PublisherSettings, forget: Callable[[str], None] = lambda topic: None
    ) -> None:
        """`forget` is called with the name of a topic that was deleted or recreated."""
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
        """Number of messages without an outcome, including those of streams."""
        return self._under_way + sum(len(one) for one in self._streams)

    def warm(self) -> None:
        """Creates the default producer in advance: an idempotent producer needs half a second to get its id."""
        self._producers.get(None)

    async def learn(self, topic: TopicMetadata) -> None:
        """Refreshes the producers' metadata if the topic was recreated or its partition count has changed.

        To be called before a message is sent: on their own, producers refresh a topic's partitions every five
        minutes.
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
            await asyncio.shield(known.looking)  # shared with other callers

    def failure(self, topic: str, error: "KafkaError") -> Exception:
        """Returns the exception for the error of a delivery report."""
        from confluent_kafka import KafkaError

        gone = (KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if error.code() not in gone:
            return from_kafka_error(error)
        self._forget(topic)
        return PartitionDeleted(topic)

    def open_stream(self, acks: Acks | None) -> "Producer | None":
        """Returns a producer for one long upload, to be passed to `close_stream`; None if STREAMS_MAX are open.

        It reports failures only: reports for every success are a third of the cost of an upload.
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
        """Sends a message; the future gets its RecordMetadata, a KafkaApiError or an UnknownOutcomeError.

        Raises OverloadedError at once if the queue is full.
        """
        future: asyncio.Future[RecordMetadata] = self._loop.create_future()

        def delivered(error: "KafkaError | None", message: "Message") -> None:
            self._under_way -= 1
            if future.done():
                return  # cancelled by its caller
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
        """Queues dicts of key and value; returns how many were queued. Those that were not get an `_error`.

        librdkafka accepts neither headers nor timestamps here and ignores a message's own partition; messages with
        any of these go through `send_with_listener`. A dict's `callback` receives its outcome instead of `report`.
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
        """Sends one message whose outcome goes to `report` instead of a future."""
        value, key, partition, timestamp_ms, headers = message
        self._produce(acks, topic, value, key, partition, report.delivered, timestamp_ms, headers)

    async def wait_for_room(self) -> None:
        """Waits until the queue has space for more messages of an upload."""
        while self._under_way >= UPLOAD_MESSAGES_MAX:
            await self.polled()

    async def polled(self) -> None:
        """Waits for the next poll of the delivery reports. A message must be in flight."""
        assert self._under_way, "nothing is in flight, so the poll timer would not run"
        if self._next_poll is None:
            self._next_poll = self._loop.create_future()
        await asyncio.shield(self._next_poll)  # shared with other callers

    def delivery_done(self) -> None:
        self._under_way -= 1

    def poll(self) -> None:
        """Serves the delivery reports. Replaces a producer with a fatal error instead of raising it."""
        self._producers.poll()

    def _release(self, finished: "list[Producer]") -> None:
        """Drops the producers in a thread, because stopping librdkafka's threads takes a moment."""
        self._loop.run_in_executor(None, finished.clear)

    def _keep_polling(self) -> None:
        if not self._polling:
            self._polling = True
            self._loop.call_later(POLL_INTERVAL_S, self._poll_once)

    def _poll_once(self) -> None:
        try:
            self.poll()
        finally:  # also if a report's receiver raises: other callers still wait for theirs
            if self._next_poll is not None:
                self._next_poll.set_result(None)
                self._next_poll = None
            self._polling = self._under_way > 0
            if self._polling:
                self._loop.call_later(POLL_INTERVAL_S, self._poll_once)

    async def close(self) -> None:
        """Waits for messages in flight, FLUSH_TIMEOUT_S at most."""
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
