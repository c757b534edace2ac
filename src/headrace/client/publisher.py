"""Producing from an event loop: what many callers send at once leaves as few record batches.

librdkafka gathers, compresses and sends on threads of its own; its delivery reports are fetched by the loop itself,
every millisecond while something is under way. A thread that waits for them would have to fight the loop for the
interpreter's lock; docs/adr/0007 has what was measured of both, and of confluent-kafka's AIOProducer.
"""

import asyncio
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from headrace.client.factory import make_producer
from headrace.client.pool import TooBusy
from headrace.client.refusals import from_kafka_error

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

Headers = list[tuple[str, bytes | None]]
# Value, key, partition, time and headers of a message.
Sendable = tuple[bytes | None, bytes | None, int, int, Headers | None]
ANY_PARTITION = -1
NOW = 0  # librdkafka's word for "the time at which it was produced"

# Reports wait for this long at most. Shorter, and the loop is busy looking; longer, and clients feel it.
POLL_INTERVAL_S = 0.001
# What may wait in memory for the broker, over all callers. A restart of the broker takes a second or two: that much
# of a brisk load fits, and more would only make everybody's wait longer than their patience.
QUEUED_MESSAGES_MAX = 200_000
QUEUED_KIB_MAX = 64 * 1024
# Left for callers with single messages while uploads fill the rest.
UPLOAD_MESSAGES_MAX = QUEUED_MESSAGES_MAX // 2
FLUSH_TIMEOUT_S = 5.0
# Long uploads with a producer of their own: a few threads and up to QUEUED_KIB_MAX each. Those on top share.
STREAMS_MAX = 4
# An upload is answered at its end: nobody waits for one of its messages, and large batches are cheaper for everybody.
STREAM_LINGER_MS = 20


class Acks(Enum):
    """What an acknowledgement means, in the words of headrace's settings."""

    ALL = "all"
    LEADER = "leader"
    NONE = "none"


_ACKS_CONFIG = {Acks.ALL: "all", Acks.LEADER: "1", Acks.NONE: "0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherSettings:
    acks: Acks = Acks.ALL
    retries: int = 3
    retry_backoff_ms: int = 100
    request_timeout_ms: int = 30_000
    linger_ms: float = 1
    client_id: str = "headrace"


class Place(NamedTuple):
    """Where a message was put; no offset if nobody was asked to acknowledge it."""

    partition: int
    offset: int | None
    timestamp_ms: int | None


class Report(Protocol):
    """Whoever is told what became of messages."""

    def delivered(self, error: "KafkaError | None", message: "Message", /) -> None: ...


class Publisher:
    def __init__(self, bootstrap: str, settings: PublisherSettings) -> None:
        self._bootstrap, self._settings = bootstrap, settings
        self._loop = asyncio.get_running_loop()
        self._producers: dict[Acks, Producer] = {}
        self._streams: list[Producer] = []
        self._retired: list[Producer] = []
        self._under_way = 0
        self._polling = False
        self._next_poll: asyncio.Future[None] | None = None

    @property
    def under_way(self) -> int:
        """Messages that have been accepted and not yet been answered, those of streams of their own among them."""
        return self._under_way + sum(len(one) for one in self._streams)

    def warm(self) -> None:
        """Have the usual producer ready: librdkafka takes half a second to get an idempotent one its id."""
        if self._settings.acks not in self._producers:
            self._make(self._settings.acks)

    def open_stream(self, acks: Acks | None) -> "Producer | None":
        """A producer for one long upload alone, to be given to `close_stream`; None if there are enough of them.

        It reports failures only: a report for every success is a third of what an upload costs.
        """
        if len(self._streams) >= STREAMS_MAX:
            return None
        level = self._settings.acks if acks is None else acks
        patient = {"linger.ms": max(self._settings.linger_ms, STREAM_LINGER_MS), "delivery.report.only.error": True}
        producer = make_producer(self._bootstrap, self._config(level) | patient)
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
    ) -> "asyncio.Future[Place]":
        """The future ends with the place, a Refused or an Unanswered. TooBusy is raised at once."""
        level = self._settings.acks if acks is None else acks
        future: asyncio.Future[Place] = self._loop.create_future()

        def delivered(error: "KafkaError | None", message: "Message") -> None:
            self._under_way -= 1
            if future.done():
                return  # whoever waited has gone
            if error is not None:
                self._watch_fatal(level, error)
                future.set_exception(from_kafka_error(error))
            else:
                future.set_result(place_of(message))

        self._produce(level, topic, value, key, partition, delivered, timestamp_ms, headers)
        return future

    def _produce(self, level: Acks, *arguments: Any) -> None:
        topic, value, key, partition, delivered, timestamp_ms, headers = arguments
        producer = self._producers.get(level) or self._make(level)
        try:
            if headers:
                producer.produce(topic, value, key, partition, delivered, timestamp=timestamp_ms, headers=headers)
            else:
                producer.produce(topic, value, key, partition, delivered, timestamp=timestamp_ms)
        except BufferError:
            self.poll()
            raise TooBusy("too many messages wait for the broker") from None
        except Exception as error:
            raise translated(error) from error
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
        some go through `send_reported`. A dict's `callback` gets its outcome instead of the report.
        """
        level = self._settings.acks if acks is None else acks
        producer = self._producers.get(level) or self._make(level)
        try:
            taken = producer.produce_batch(topic, messages, partition, report.delivered)
        except BufferError:
            taken = 0
        except Exception as error:
            raise translated(error) from error
        self._under_way += taken
        self._keep_polling()
        return taken

    def send_reported(self, topic: str, message: Sendable, report: "Report", acks: Acks | None = None) -> None:
        """One message whose outcome is told to the upload instead of a future."""
        level = self._settings.acks if acks is None else acks
        value, key, partition, timestamp_ms, headers = message
        self._produce(level, topic, value, key, partition, report.delivered, timestamp_ms, headers)

    async def wait_for_room(self) -> None:
        """Until there is room for another piece of an upload."""
        while self._under_way >= UPLOAD_MESSAGES_MAX:
            await self.polled()

    async def polled(self) -> None:
        """Until the reports have been looked at once more. Something must be under way."""
        assert self._under_way, "nothing is under way: nobody would ever look"
        if self._next_poll is None:
            self._next_poll = self._loop.create_future()
        await asyncio.shield(self._next_poll)  # others wait for it too

    def report_done(self, error: "KafkaError | None" = None, acks: Acks | None = None) -> None:
        self._under_way -= 1
        if error is not None:
            self._watch_fatal(self._settings.acks if acks is None else acks, error)

    def poll(self) -> None:
        for producer in self._producers.values():
            producer.poll(0)
        for producer in self._retired:
            producer.poll(0)

    def _keep_polling(self) -> None:
        if not self._polling:
            self._polling = True
            self._loop.call_later(POLL_INTERVAL_S, self._poll_once)

    def _poll_once(self) -> None:
        self.poll()
        if self._next_poll is not None:
            self._next_poll.set_result(None)
            self._next_poll = None
        if self._under_way:
            self._loop.call_later(POLL_INTERVAL_S, self._poll_once)
        else:
            self._polling = False
            self._retired.clear()

    def _make(self, acks: Acks) -> "Producer":
        producer = self._producers[acks] = make_producer(self._bootstrap, self._config(acks))
        return producer

    def _config(self, acks: Acks) -> dict[str, str | int | float | bool]:
        settings = self._settings
        retries = settings.retries if acks is not Acks.NONE else 0
        return {
            "client.id": settings.client_id,
            "acks": _ACKS_CONFIG[acks],
            # Without a retry nothing can be written twice, and without acks from all nothing is certain anyway.
            "enable.idempotence": acks is Acks.ALL and retries > 0,
            "retries": retries,
            "retry.backoff.ms": max(settings.retry_backoff_ms, 1),
            "retry.backoff.max.ms": max(settings.retry_backoff_ms, 1000),
            "message.timeout.ms": settings.request_timeout_ms,
            "request.timeout.ms": settings.request_timeout_ms,
            "linger.ms": settings.linger_ms,
            "compression.type": "lz4",
            "partitioner": "murmur2_random",  # where Java puts a key; without one, sticky
            "queue.buffering.max.messages": QUEUED_MESSAGES_MAX,
            "queue.buffering.max.kbytes": QUEUED_KIB_MAX,
        }

    def _watch_fatal(self, acks: Acks, error: "KafkaError") -> None:
        """A producer whose sequence is broken beyond repair answers nothing any more: the next message gets another."""
        producer = self._producers.get(acks)
        if error.fatal() and producer is not None:
            self._retired.append(self._producers.pop(acks))

    async def close(self) -> None:
        """Lets what is under way arrive, for a few seconds at most."""
        deadline = self._loop.time() + FLUSH_TIMEOUT_S
        for producer in self._producers.values():
            remaining_s = max(deadline - self._loop.time(), 0.0)
            await asyncio.to_thread(producer.flush, remaining_s)


def place_of(message: "Message") -> Place:
    offset = message.offset()
    kind, timestamp_ms = message.timestamp()
    return Place(
        message.partition() or 0,
        offset if offset is not None and offset >= 0 else None,
        timestamp_ms if kind else None,
    )


def translated(error: Exception) -> Exception:
    from confluent_kafka import KafkaError, KafkaException

    if isinstance(error, KafkaException) and error.args and isinstance(error.args[0], KafkaError):
        return from_kafka_error(error.args[0])
    return error
