"""The librdkafka producers of a publisher, one for each level of acknowledgement; a broken one is replaced.

An idempotent producer whose sequence cannot be continued has a fatal error: it takes nothing more, for ever.
librdkafka reports that error once, by an exception from `poll`, and from then on by one from each `produce`.
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

# What may wait in memory for the broker, over all callers. A restart of the broker takes a second or two: that much
# of a brisk load fits, and more would only make each caller's wait longer than its patience.
QUEUED_MESSAGES_MAX = 200_000
QUEUED_KIB_MAX = 64 * 1024
# An upload is answered at its end: no client waits for a single message of it, and large batches cost the broker less.
STREAM_LINGER_MS = 20
_MESSAGE_BYTES = 1_000_000  # librdkafka's default, which is also the most that a batch has without a larger message

Config = dict[str, str | int | float | bool]


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
    message_bytes_max: int = 0
    client_id: str = "headrace"


class Producers:
    def __init__(
        self, bootstrap: str, settings: PublisherSettings, release: "Callable[[list[Producer]], object]"
    ) -> None:
        """`release` gets the last references to producers that have reported everything, to drop where it may wait."""
        self._bootstrap, self._settings, self._release = bootstrap, settings, release
        self._current: dict[Acks, Producer] = {}
        self._retired: list[Producer] = []

    def get(self, acks: Acks | None) -> "Producer":
        """The producer of this level, or of the settings' one; made when it is first needed."""
        level = self._settings.acks if acks is None else acks
        producer = self._current.get(level)
        if producer is None:
            producer = self._current[level] = make_producer(self._bootstrap, self._config(level))
        return producer

    def checked(self, acks: Acks | None) -> "Producer":
        """The same, after a fatal error that is known has replaced it. Serves its delivery reports."""
        self._poll(self.get(acks))
        return self.get(acks)

    def make_stream(self, acks: Acks | None) -> "Producer":
        """A producer for one long upload alone. It reports failures only."""
        level = self._settings.acks if acks is None else acks
        patient = {"linger.ms": max(self._settings.linger_ms, STREAM_LINGER_MS), "delivery.report.only.error": True}
        return make_producer(self._bootstrap, self._config(level) | patient)

    def poll(self) -> None:
        """Serve the delivery reports of all."""
        for producer in self.all():
            self._poll(producer)
        finished = [one for one in self._retired if not len(one)]
        if finished:
            self._retired = [one for one in self._retired if one not in finished]
            self._release(finished)

    def all(self) -> "list[Producer]":
        return [*self._current.values(), *self._retired]

    def retire(self, broken: "Producer", error: "KafkaException") -> None:
        """It takes no more messages, and still reports what becomes of those it has."""
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
            # Callers look up a topic before they produce to it. One that was deleted since must not be created again,
            # with default partitions and without its configs.
            "allow.auto.create.topics": False,
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
            # How large a message may be is the topic's to decide (max.message.bytes). Batches keep their size
            # (batch.size): only a message that is larger by itself makes a larger one.
            "message.max.bytes": max(settings.message_bytes_max, _MESSAGE_BYTES),
        }


def refresh(producers: "Sequence[Producer]", topic: str, timeout_s: float) -> None:
    """Have them look at the topic's partitions again. Waits for the broker: not for an event loop."""
    from confluent_kafka import KafkaException

    for producer in producers:
        with suppress(KafkaException):  # without an answer they look again by themselves, some minutes later
            producer.list_topics(topic, timeout_s)


def is_fatal(error: "KafkaException") -> bool:
    from confluent_kafka import KafkaError

    return bool(error.args[0].fatal() or error.args[0].code() == KafkaError._FATAL)
