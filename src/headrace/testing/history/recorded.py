"""confluent-kafka clients that record their operations and results in a history.

Classifies each result: acknowledged, certainly not sent, or unknown. Values are the decimal text of a record. The
caller's settings override those that the history checker's guarantees require.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any
from uuid import uuid4

from headrace.model.ids import TopicPartition
from headrace.testing.history.events import (
    Assign,
    Begin,
    Crash,
    Ended,
    Ending,
    NotSent,
    Poll,
    Seen,
    Send,
    Sent,
    Subscribe,
)
from headrace.testing.history.recording import History
from headrace.testing.history.transactions import wait_until_settled

PRODUCER_SETTINGS = {"enable.idempotence": True, "acks": "all"}
CONSUMER_SETTINGS = {
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "check.crcs": True,
}
# Records per poll: enough that reading is not the bottleneck of a test.
POLL_RECORDS_MAX = 1000
# A consumer that gets nothing for this long before the end of a partition will not get anything any more.
READ_SECONDS_MAX = 60.0


class RecordedProducer:
    def __init__(self, history: History, client: str, settings: Mapping[str, Any]) -> None:
        from confluent_kafka import Producer

        self.client = client
        self.acknowledged = 0
        self.failures: list[str] = []  # why records were not delivered, as reported by the client
        self.confluent: Any = Producer({**PRODUCER_SETTINGS, "error_cb": self._error, **settings})
        self._history = history

    def send(self, place: TopicPartition, key: bytes | None = None) -> int:
        """Sends a new value and returns it. Blocks while the client's queue is full."""
        value = self._history.new_value()
        self._history.record(Send(self.client, place, value))
        while True:
            try:
                self.confluent.produce(
                    place.topic,
                    str(value).encode(),
                    key,
                    partition=place.partition,
                    on_delivery=lambda error, message: self._delivered(value, error, message),
                )
            except BufferError:
                self.confluent.poll(0.05)
            else:
                self.confluent.poll(0)
                return value

    def flush(self, seconds_max: float) -> bool:
        """Flushes the client's queue. Returns whether every value has an outcome."""
        left: int = self.confluent.flush(seconds_max)
        return left == 0

    # Transactions. The history is right whatever these methods raise.

    def begin(self) -> None:
        self.confluent.begin_transaction()
        self._history.record(Begin(self.client))

    def commit(self, seconds_max: float) -> None:
        self._history.record(Ending(self.client, commits=True))
        self.confluent.commit_transaction(seconds_max)
        self._history.record(Ended(self.client, committed=True))

    def abort(self, seconds_max: float) -> None:
        self._history.record(Ending(self.client, commits=False))
        self.confluent.abort_transaction(seconds_max)
        self._history.record(Ended(self.client, committed=False))

    def crash(self) -> None:
        """Ends this client without closing it. Undelivered values have no outcome.

        The client's queue is purged: its messages refer to this object, so that the client would otherwise keep its
        threads and try to reach its brokers for ever. librdkafka 2.16 may abort the process if a transactional
        producer is released while it adds a partition to a transaction: to kill one in the middle of a transaction,
        run it in a process of its own.
        """
        self._history.record(Crash(self.client))
        self.confluent.purge()
        self.confluent = None

    def _delivered(self, value: int, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged += 1
            self._history.record(Sent(self.client, value, message.offset()))
            return
        self.failures.append(str(error))
        if _was_never_sent(error):
            self._history.record(NotSent(self.client, value))

    def _error(self, error: Any) -> None:
        if error.fatal():
            self.failures.append(str(error))

    def __enter__(self) -> "RecordedProducer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.crash()


def _was_never_sent(error: Any) -> bool:
    """Returns whether the value never left the client. Only then it is certain that it is not in the log."""
    from confluent_kafka import KafkaError

    return error.code() in (KafkaError._PURGE_QUEUE, KafkaError.MSG_SIZE_TOO_LARGE)


class RecordedConsumer:
    def __init__(self, history: History, client: str, settings: Mapping[str, Any]) -> None:
        from confluent_kafka import Consumer

        self.client = client
        self.confluent = Consumer({**CONSUMER_SETTINGS, **settings})
        self._history = history

    def assign(self, places: Sequence[TopicPartition], offset: int = 0) -> None:
        """Reads these partitions from this offset on."""
        from confluent_kafka import TopicPartition as Position

        self._history.record(Assign(self.client, tuple(places)))
        self.confluent.assign([Position(place.topic, place.partition, offset) for place in places])

    def subscribe(self, topics: Sequence[str]) -> None:
        self._history.record(Subscribe(self.client, tuple(topics)))
        self.confluent.subscribe(list(topics))

    def poll(self, seconds_max: float) -> list[Seen]:
        """Returns available records, as soon as there are some."""
        return self._take(self._wait(seconds_max))

    def read_to_end(self, places: Iterable[TopicPartition], seconds_max: float) -> list[Seen]:
        """Polls until every partition has reached its end; needs `enable.partition.eof`."""
        found: list[Seen] = []
        left = set(places)
        while left:
            messages = self._wait(seconds_max)
            if not messages:
                raise TimeoutError(f"nothing more comes, and {sorted(map(str, left))} have not been read to the end")
            found += self._take(messages)
            left -= _ended(messages)
        return found

    def _wait(self, seconds_max: float) -> list[Any]:
        # `consume` would wait for the maximal number of records, or until its timeout.
        first = self.confluent.poll(seconds_max)
        return [] if first is None else [first, *self.confluent.consume(POLL_RECORDS_MAX, 0)]

    def _take(self, messages: Iterable[Any]) -> list[Seen]:
        """Returns the records among the messages. Errors and partition ends are none."""
        records = [
            Seen(TopicPartition(one.topic(), one.partition()), one.offset(), int(one.value()))
            for one in messages
            if one.error() is None
        ]
        if records:
            self._history.record(Poll(self.client, tuple(records)))
        return records

    def close(self) -> None:
        self.confluent.close()
        self._history.record(Crash(self.client))

    def __enter__(self) -> "RecordedConsumer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_everything(history: History, settings: Mapping[str, Any], places: Sequence[TopicPartition]) -> list[Seen]:
    """Reads the partitions from the beginning to their ends, which makes a history complete.

    Waits for open transactions: records behind one are not visible to `read_committed` consumers yet.
    """
    wait_until_settled(settings, places, READ_SECONDS_MAX)
    name = f"reader of everything {uuid4()}"
    with RecordedConsumer(history, name, {"group.id": name, **settings, "enable.partition.eof": True}) as reader:
        reader.assign(places)
        return reader.read_to_end(places, READ_SECONDS_MAX)


def _ended(messages: Iterable[Any]) -> set[TopicPartition]:
    from confluent_kafka import KafkaError

    return {
        TopicPartition(one.topic(), one.partition())
        for one in messages
        if one.error() is not None and one.error().code() == KafkaError._PARTITION_EOF
    }
