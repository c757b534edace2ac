"""librdkafka producers of a publisher, one per acknowledgement level; a producer with a fatal error is replaced.

An idempotent producer whose sequence cannot be continued has a fatal error and accepts no message any more.
librdkafka reports that error once, by an exception from `poll`, and from then on by an exception from each `produce`.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from headrace.client.librdkafka import make_producer

if TYPE_CHECKING:
    from confluent_kafka import KafkaException, Producer

log = logging.getLogger(__name__)

# Queue limits over all callers. A broker restart takes a second or two. Under high load that many messages fit; more
# would only extend each caller's wait beyond its timeout.
QUEUED_MESSAGES_MAX = 200_000
QUEUED_KIB_MAX = 64 * 1024
# An upload gets one response at its end, so a single message may wait, and large batches cost the broker less.
STREAM_LINGER_MS = 20
_MESSAGE_BYTES = 1_000_000  # librdkafka's default, which also limits batches without a larger message

Config = dict[str, str | int | float | bool]


class Acks(Enum):
    """Acknowledgement level, as named by headrace's settings."""

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
    message_bytes_max: int = 0
    client_id: str = "headrace"


class Producers:
    def __init__(
        self, bootstrap: str, settings: PublisherSettings, release: "Callable[[list[Producer]], object]"
    ) -> None:
        """`release` receives the last references to retired producers without messages in flight and may drop them in
        a thread, because that blocks.
        """
        self._bootstrap, self._settings, self._release = bootstrap, settings, release
        self._current: dict[Acks, Producer] = {}
        self._retired: list[Producer] = []

    def get(self, acks: Acks | None) -> "Producer":
        """Returns the producer of this level, or of the level in the settings; creates it on first use."""
        level = self._settings.acks if acks is None else acks
        producer = self._current.get(level)
        if producer is None:
            producer = self._current[level] = make_producer(self._bootstrap, self._config(level))
        return producer

    def checked(self, acks: Acks | None) -> "Producer":
        """Like `get`, after serving delivery reports and replacing a producer with a known fatal error."""
        self._poll(self.get(acks))
        return self.get(acks)

    def make_stream(self, acks: Acks | None) -> "Producer":
        """Returns a producer for one long upload. It reports failures only."""
        level = self._settings.acks if acks is None else acks
        patient = {"linger.ms": max(self._settings.linger_ms, STREAM_LINGER_MS), "delivery.report.only.error": True}
        return make_producer(self._bootstrap, self._config(level) | patient)

    def poll(self) -> None:
        """Serves the delivery reports of all producers."""
        for producer in self.all():
            self._poll(producer)
        finished = [one for one in self._retired if not len(one)]
        if finished:
            self._retired = [one for one in self._retired if one not in finished]
            self._release(finished)

    def all(self) -> "list[Producer]":
        return [*self._current.values(), *self._retired]

    def retire(self, broken: "Producer", error: "KafkaException") -> None:
        """Retires a broken producer: it accepts no more messages and still reports the outcome of those it has."""
        for acks, producer in self._current.items():
            if producer is broken:
                log.error("Producer with acks=%s failed; the next message gets a new one: %s", acks.value, error)
                del self._current[acks]
                self._retired.append(broken)
                return

    def _poll(self, producer: "Producer") -> None:
        from confluent_kafka import KafkaException

        try:
            producer.poll(0)
        except KafkaException as error:
            self.retire(producer, error)

    def _config(self, acks: Acks) -> Config:
        settings = self._settings
        retries = settings.retries if acks is not Acks.NONE else 0
        return {
            "client.id": settings.client_id,
            # Callers look up a topic before they produce to it. One that was deleted since then must not be recreated
            # with default partitions and without its configs.
            "allow.auto.create.topics": False,
            "acks": _ACKS_CONFIG[acks],
            # Without retries nothing is written twice, and without acks=all there is no guarantee to extend.
            "enable.idempotence": acks is Acks.ALL and retries > 0,
            "retries": retries,
            "retry.backoff.ms": max(settings.retry_backoff_ms, 1),
            "retry.backoff.max.ms": max(settings.retry_backoff_ms, 1000),
            "message.timeout.ms": settings.request_timeout_ms,
            "request.timeout.ms": settings.request_timeout_ms,
            "linger.ms": settings.linger_ms,
            "compression.type": "lz4",
            "partitioner": "murmur2_random",  # as Java's partitioner for messages with a key; sticky without one
            "queue.buffering.max.messages": QUEUED_MESSAGES_MAX,
            "queue.buffering.max.kbytes": QUEUED_KIB_MAX,
            # The topic limits the message size (max.message.bytes). Batches keep their size (batch.size): only a
            # message that is larger by itself makes a larger batch.
            "message.max.bytes": max(settings.message_bytes_max, _MESSAGE_BYTES),
        }


def refresh(producers: "Sequence[Producer]", topic: str, timeout_s: float) -> None:
    """Refreshes the topic's metadata in these producers. Blocks on the broker: not for an event loop."""
    from confluent_kafka import KafkaException

    for producer in producers:
        with suppress(KafkaException):  # without a response they refresh by themselves some minutes later
            producer.list_topics(topic, timeout_s)


def is_fatal(error: "KafkaException") -> bool:
    from confluent_kafka import KafkaError

    return bool(error.args[0].fatal() or error.args[0].code() == KafkaError._FATAL)
