"""Dead-letter records: their format, and `headrace pipeline retry-dead`.

A dead-letter record is the original record with additional headers after its own (`spark/pipeline/query.py` writes
them). `retry-dead` produces dead-letter records to their original partition or to the retry topic, each at most once.

Retried offsets are recorded in the topic `<dead letters>.retried`, which any tool can read: every record of it
contains ranges of offsets by partition. The retried records and this record are one transaction with a transactional
id that belongs to the dead-letter topic. A process that dies leaves both or neither, and of two concurrent retries
the later one fences the earlier.
"""

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.client.core.config import SecurityConfig
from headrace.client.librdkafka import Overrides, make_producer
from headrace.client.sync.client import ClientConfig, Cluster, create_topic_if_missing
from headrace.client.sync.fetcher import read_committed_records
from headrace.model.errors import HeadraceError
from headrace.model.ids import TopicPartition
from headrace.records.record import Headers, Record

if TYPE_CHECKING:
    from confluent_kafka import Producer


DEAD_ERROR = "headrace.error"
DEAD_PIPELINE = "headrace.pipeline"
DEAD_TOPIC = "headrace.topic"
DEAD_PARTITION = "headrace.partition"
DEAD_OFFSET = "headrace.offset"
DEAD_TIMESTAMP = "headrace.timestamp"
DEAD_SOURCE = "headrace.source"  # precedes the others: the source of the pipeline that rejected the record
# Of a record in the retry topic, after the others: partition:offset of the dead-letter record.
DEAD_LETTER = "headrace.letter"
KEPT = {"retention.ms": "-1"}  # for topics whose records exist nowhere else
# In this order, after the record's own headers.
DEAD_HEADERS = (DEAD_ERROR, DEAD_PIPELINE, DEAD_TOPIC, DEAD_PARTITION, DEAD_OFFSET, DEAD_TIMESTAMP)


class DeadLetter(NamedTuple):
    place: TopicPartition  # of the dead-letter record
    offset: int
    pipeline: str
    error: str
    source: TopicPartition  # partition of the original record
    source_offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers  # of the original record
    # The source of the pipeline that rejected the record; empty in dead-letter records of earlier versions.
    reader: str = ""

    def to_retry(self, topic: str) -> "DeadLetter":
        """Returns the record for the retry topic: with the dead-letter headers after its own, and the dead-letter
        record's position.
        """
        said = (self.error, self.pipeline, self.source.topic, self.source.partition, self.source_offset, self.timestamp)
        notes = [(name, str(text).encode()) for name, text in zip(DEAD_HEADERS, said, strict=True)]
        letter = (DEAD_LETTER, f"{self.place.partition}:{self.offset}".encode())
        reader = [(DEAD_SOURCE, self.reader.encode())] if self.reader else []
        return self._replace(source=TopicPartition(topic, 0), headers=(*self.headers, *reader, *notes, letter))


def letter_of(place: TopicPartition, record: Record) -> DeadLetter | None:
    """Parses a record of a dead-letter topic. None if another producer wrote it."""
    own, notes = record.headers[: -len(DEAD_HEADERS)], record.headers[-len(DEAD_HEADERS) :]
    if tuple(name for name, _ in notes) != DEAD_HEADERS:
        return None
    error, pipeline, topic, partition, offset, timestamp = (
        (value or b"").decode(errors="replace") for _, value in notes
    )
    try:
        source, source_offset, time = TopicPartition(topic, int(partition)), int(offset), int(timestamp)
    except ValueError:
        return None
    reader = ""
    if own and own[-1][0] == DEAD_SOURCE:
        own, reader = own[:-1], (own[-1][1] or b"").decode(errors="replace")
    return DeadLetter(
        place, record.offset, pipeline, error, source, source_offset, time, record.key, record.value, own, reader
    )


@dataclass(frozen=True, slots=True)
class Chosen:
    """Selects dead-letter records: of one pipeline, and optionally by error and number."""

    pipeline: str
    error: str | None = None  # substring of the error message, case-insensitive
    limit: int | None = None

    def of(self, letters: Iterable[DeadLetter], done: "Retried") -> Iterator[DeadLetter]:
        left = self.limit if self.limit is not None else -1
        for letter in letters:
            if left == 0:
                return
            if letter.pipeline == self.pipeline and self._error_fits(letter) and letter not in done:
                left -= 1
                yield letter

    def _error_fits(self, letter: DeadLetter) -> bool:
        return self.error is None or self.error.lower() in letter.error.lower()


@dataclass
class Retried:
    """Offsets of dead-letter records that were retried."""

    offsets: dict[int, set[int]] = field(default_factory=dict)

    def __contains__(self, letter: DeadLetter) -> bool:
        return letter.offset in self.offsets.get(letter.place.partition, ())

    def learn(self, entry: bytes | None) -> None:
        for partition, ranges in json.loads(entry or b"{}").get("letters", {}).items():
            known = self.offsets.setdefault(int(partition), set())
            for first, last in ranges:
                known.update(range(first, last + 1))


def entry_of(letters: Iterable[DeadLetter], pipeline: str, at_ms: int) -> bytes:
    """Returns the record for the `.retried` topic with these dead-letter records."""
    by_partition: dict[int, list[int]] = {}
    for letter in letters:
        by_partition.setdefault(letter.place.partition, []).append(letter.offset)
    ranges = {str(partition): _ranges(sorted(offsets)) for partition, offsets in sorted(by_partition.items())}
    return json.dumps({"letters": ranges, "pipeline": pipeline, "at_ms": at_ms}).encode()


def _ranges(offsets: list[int]) -> list[list[int]]:
    found: list[list[int]] = []
    for offset in offsets:
        if found and found[-1][1] == offset - 1:
            found[-1][1] = offset
        else:
            found.append([offset, offset])
    return found


def homeless(letters: Iterable[DeadLetter], partitions: Mapping[str, Iterable[int]]) -> list[DeadLetter]:
    """Returns the dead-letter records whose original topic or partition no longer exists."""
    return [one for one in letters if one.source.partition not in set(partitions.get(one.source.topic, ()))]


# Records per transaction. `read_committed` consumers wait for its end, and a kill repeats at most this many.
LETTERS_PER_TRANSACTION = 1000
TRANSACTION_TIMEOUT_MS = 60_000
WAIT_S = 60.0
# The size of the producer's queue. librdkafka's default of 1 MB would stop the retry at the first larger record and
# block those behind it. The broker enforces the topic's limit.
LETTER_BYTES_MAX = 64 * 1024 * 1024
CLIENT_ID = "headrace-retry-dead"


class RetryFailed(HeadraceError):
    """Sending failed midway. Records that the message counts as sent are committed."""


class Summary(NamedTuple):
    """Result of a selection: number of dead-letter records by error, and of those that cannot be returned."""

    by_error: Counter[str]
    homeless: Counter[str]  # by missing topic or partition
    sent: int


class DeadLetters:
    """The dead-letter topic of a pipeline."""

    def __init__(
        self, bootstrap: str, topic: str, security: SecurityConfig | None = None, retry_topic: str | None = None
    ) -> None:
        """With a retry topic records are retried there, with their dead-letter headers; otherwise in their original
        partition.
        """
        settings = ClientConfig(bootstrap=bootstrap, security=security or SecurityConfig(), client_id=CLIENT_ID)
        self._settings = settings
        self._cluster = Cluster(settings)
        # Its connections always have a fetch in flight, so other requests use their own.
        self._reading = Cluster(settings)
        self.topic, self._retry_topic = topic, retry_topic
        self.ledger = f"{topic}.retried"

    def close(self) -> None:
        self._cluster.close()
        self._reading.close()

    def look(self, chosen: Chosen) -> Summary:
        """Returns what `retry` would do, without sending anything."""
        summary = Summary(Counter(), Counter(), 0)
        for letters in _handfuls(chosen.of(self._letters(), self._retried())):
            self._sorted_out(letters, summary)
        return summary

    def retry(self, chosen: Chosen) -> Summary:
        create_topic_if_missing(self._cluster, self.ledger, KEPT)
        if self._retry_topic is not None:
            create_topic_if_missing(self._cluster, self._retry_topic, KEPT)
        producer = self._producer()
        retried = self._retried()  # read after the fence, so that no other process adds to it
        summary = Summary(Counter(), Counter(), 0)
        for letters in _handfuls(chosen.of(self._letters(), retried)):
            going = self._sorted_out(letters, summary)
            self._send(producer, going, chosen.pipeline, summary.sent)
            summary = summary._replace(sent=summary.sent + len(going))
        return summary

    def _letters(self) -> Iterator[DeadLetter]:
        for place, record in read_committed_records(self._reading, self.topic):
            letter = letter_of(place, record)
            if letter is not None:
                yield letter

    def _retried(self) -> Retried:
        retried = Retried()
        for _, record in read_committed_records(self._cluster, self.ledger):
            retried.learn(record.value)
        return retried

    def _sorted_out(self, letters: Sequence[DeadLetter], summary: Summary) -> list[DeadLetter]:
        """Counts the records by error and returns those that can be sent."""
        if self._retry_topic is not None:
            summary.by_error.update(letter.error for letter in letters)
            return list(letters)
        names = sorted({letter.source.topic for letter in letters})
        found = self._cluster.patiently("listing topics", lambda: self._cluster.topics(names))
        stranded = homeless(letters, {name: topic.leaders for name, topic in found.items()})
        summary.by_error.update(letter.error for letter in letters)
        summary.homeless.update(str(letter.source) for letter in stranded)
        gone = {(letter.place, letter.offset) for letter in stranded}
        return [letter for letter in letters if (letter.place, letter.offset) not in gone]

    def _producer(self) -> "Producer":
        name = f"headrace-retry-dead-{self.topic}"
        own: Overrides = {
            "transactional.id": name,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "message.max.bytes": LETTER_BYTES_MAX,
        }
        producer = make_producer(self._settings.bootstrap, {**own, **self._settings.security.librdkafka()})
        producer.init_transactions(WAIT_S)
        return producer

    def _send(self, producer: "Producer", letters: Sequence[DeadLetter], pipeline: str, sent: int) -> None:
        from confluent_kafka import KafkaException

        if not letters:
            return
        try:
            producer.begin_transaction()
            for letter in letters:
                self._produce(producer, letter if self._retry_topic is None else letter.to_retry(self._retry_topic))
            producer.produce(self.ledger, entry_of(letters, pipeline, int(time.time() * 1000)), partition=0)
            producer.commit_transaction(WAIT_S)
        except KafkaException as error:
            raise RetryFailed(
                f"{sent} dead letters were sent before the error: {error.args[0].str()}. Run the command again to send"
                " the rest"
            ) from error

    @staticmethod
    def _produce(producer: "Producer", letter: DeadLetter) -> None:
        headers: list[Any] = list(letter.headers)
        while True:
            try:
                producer.produce(
                    letter.source.topic,
                    letter.value,
                    letter.key,
                    partition=letter.source.partition,
                    timestamp=letter.timestamp,
                    headers=headers,
                )
            except BufferError:  # the queue is full; delivery reports free space
                producer.poll(0.1)
            else:
                producer.poll(0)
                return


def _handfuls(letters: Iterator[DeadLetter]) -> Iterator[list[DeadLetter]]:
    while taken := list(islice(letters, LETTERS_PER_TRANSACTION)):
        yield taken
