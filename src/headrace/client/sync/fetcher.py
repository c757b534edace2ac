"""Fetches by offset with the blocking client, one request ahead: while one response is processed, the next is in
flight.

`fetch_from` yields the batches of one partition as they are in the log. It tracks the position, selects the broker,
verifies every checksum and distinguishes lost offsets from delayed ones; it never decodes a batch.
`read_committed_records` yields the committed records of a whole topic.
"""

import logging
from collections.abc import Generator, Iterator, Mapping
from struct import Struct
from typing import NamedTuple

from headrace.client.core.errors import KafkaApiError
from headrace.client.sync.client import Cluster, RetryPolicy, check
from headrace.client.sync.offsets import EARLIEST, LATEST, list_offsets
from headrace.client.sync.transport import Connection
from headrace.model.errors import CorruptBatch, ErrorCode
from headrace.model.ids import TopicPartition
from headrace.protocol.primitives import Reader
from headrace.records.batch import BatchHeader, batch_crc, walk
from headrace.records.record import Record, iter_records
from headrace.records.transaction_filter import AbortedTransaction, committed_batches

log = logging.getLogger(__name__)

FETCH, FETCH_VERSION = 1, 11  # the last version with topic names and without tagged fields

# One fetch holds about 70,000 records of 100 bytes: enough to hide the round trip, and small enough for many tasks.
FETCH_BYTES = 8 * 1024 * 1024
FETCH_BYTES_MIN = 64 * 1024
_BYTES_PER_OFFSET_FIRST = 1024.0  # until the first response
_MARGIN = 1.1
FETCH_WAIT_MS = 500  # as Kafka's fetch.max.wait.ms

_REQUEST_START = Struct(">iiiibiiih")
_REQUEST_PARTITION = Struct(">iiiqqii")
_LENGTH = Struct(">h")
_ROW = Struct(">ihqqq")
_PAIR = Struct(">qq")

THE_LEADER = -1  # in place of a nearer replica

Batch = tuple[memoryview, BatchHeader]


class Fetched(NamedTuple):
    """Result of one fetch: whole batches from `position` on. The first may start before it, the last may end later."""

    position: int
    next_position: int
    batches: list[Batch]
    aborted: list[AbortedTransaction] | None
    high_watermark: int
    last_stable_offset: int
    log_start: int
    preferred_replica: int = THE_LEADER  # another broker to fetch from


class OffsetOutOfRange(Exception):
    """The log does not contain the position; it contains `log_start` to `log_end`."""

    def __init__(self, partition: TopicPartition, position: int, log_start: int, log_end: int) -> None:
        super().__init__(f"{partition} holds offsets {log_start} to {log_end}, not {position}")
        self.partition, self.position, self.log_start, self.log_end = partition, position, log_start, log_end


def fetch_from(
    cluster: Cluster, partition: TopicPartition, position: int, end: int, *, read_committed: bool, bytes_max: int
) -> Generator[Fetched]:
    """Yields fetches until `end` is reached, through broker restarts. Yields empty ones, so the caller may time out."""
    patience = RetryPolicy(cluster.settings.patience_s)
    ahead = _Ahead(cluster, partition, read_committed, bytes_max)
    try:
        while position < end:
            try:
                fetched = ahead.take(position, end)
            except (OSError, KafkaApiError) as error:
                patience.wait_after(error, f"fetching {partition} from {cluster.settings.bootstrap}")
                cluster.forget()
                continue
            patience.renew()
            position = fetched.next_position
            yield fetched
    finally:
        ahead.abandon()


class _Ahead:
    """A fetch in flight; takes its response and sends the next one.

    Fetches go to the leader, which may name a replica in the client's rack instead (KIP-392). After an error or an
    empty response from that replica, this and all later fetches go to the leader: only the leader distinguishes loss
    from delay.
    """

    def __init__(self, cluster: Cluster, partition: TopicPartition, read_committed: bool, bytes_max: int) -> None:
        self._cluster, self._partition = cluster, partition
        self._read_committed, self._bytes_max = read_committed, bytes_max
        self._rack, self._replica = cluster.settings.rack, THE_LEADER
        self._connection: Connection | None = None
        self._position = self._correlation_id = 0
        self._bytes_per_offset = _BYTES_PER_OFFSET_FIRST

    def take(self, position: int, end: int) -> Fetched:
        """Returns the response from `position` on; if it ends before `end`, the next request is sent at once."""
        nearby = self._take_nearby(position, end) if self._replica != THE_LEADER else None
        if nearby is not None:
            return nearby
        fetched = self._take(position, end)
        if fetched.preferred_replica == THE_LEADER:
            return fetched
        self._replica = fetched.preferred_replica
        return self.take(position, end)

    def _take_nearby(self, position: int, end: int) -> Fetched | None:
        try:
            fetched = self._take(position, end)
            if fetched.batches:
                return fetched
            reason = "it has nothing there"
        except (OSError, KafkaApiError, OffsetOutOfRange) as error:
            reason = str(error)
        log.info("back to the leader of %s, from broker %d at %d: %s", self._partition, self._replica, position, reason)
        self.abandon()
        self._connection, self._rack, self._replica = None, "", THE_LEADER
        return None

    def _take(self, position: int, end: int) -> Fetched:
        if self._connection is None:
            self._connection = self._broker_connection()
            self._send(position, end)
        assert self._position == position
        connection, self._connection = self._connection, None  # a failure from here on needs a new connection
        body = connection.receive(self._correlation_id)
        fetched = _parse(body, self._partition, position, end, self._read_committed)
        if fetched.next_position < end and fetched.preferred_replica == THE_LEADER:
            self._learn(fetched)
            self._connection = connection
            self._send(fetched.next_position, end)
        return fetched

    def _broker_connection(self) -> Connection:
        if self._replica == THE_LEADER:
            return self._cluster.leader_connection(self._partition)
        return self._cluster.broker_connection(self._replica)

    def _learn(self, fetched: Fetched) -> None:
        if fetched.next_position > fetched.position:
            size = sum(len(batch) for batch, _ in fetched.batches)
            self._bytes_per_offset = size / (fetched.next_position - fetched.position)

    def _send(self, position: int, end: int) -> None:
        """Requests about as many bytes as are left, because records beyond the end would be transferred in vain."""
        assert self._connection is not None
        self._position = position
        left_bytes = int((end - position) * self._bytes_per_offset * _MARGIN) + FETCH_BYTES_MIN
        bytes_max = min(self._bytes_max, left_bytes)
        body = _request(self._partition, position, self._read_committed, bytes_max, self._rack)
        self._correlation_id = self._connection.send(FETCH, FETCH_VERSION, body)

    def abandon(self) -> None:
        """Closes the connections if a response is in flight that will not be read."""
        if self._connection is not None:
            self._cluster.close()


def _request(partition: TopicPartition, position: int, read_committed: bool, bytes_max: int, rack: str) -> bytes:
    name, place = partition.topic.encode(), rack.encode()
    start = _REQUEST_START.pack(-1, FETCH_WAIT_MS, 1, bytes_max, int(read_committed), 0, -1, 1, len(name))
    asked = _REQUEST_PARTITION.pack(1, partition.partition, -1, position, -1, bytes_max, 0)
    return start + name + asked + _LENGTH.pack(len(place)) + place


def _parse(body: memoryview, partition: TopicPartition, position: int, end: int, read_committed: bool) -> Fetched:
    reader = Reader(body)
    reader.int32()  # throttle time
    check(reader.int16(), f"fetching {partition}")
    reader.int32()  # session id
    for _ in reader.array(6):
        reader.string()
        for _ in reader.array(_ROW.size):
            return _parse_row(reader, partition, position, end, read_committed)
    raise KafkaApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"fetching {partition}: it is missing in the response")


def _parse_row(reader: Reader, partition: TopicPartition, position: int, end: int, read_committed: bool) -> Fetched:
    _, error, high_watermark, last_stable, log_start = reader.numbers(_ROW)
    aborted: list[AbortedTransaction] = []
    for _ in reader.nullable_array(_PAIR.size) or ():
        producer_id, first_offset = reader.numbers(_PAIR)
        aborted.append((producer_id, first_offset))
    preferred_replica = reader.int32()
    records = reader.nullable_bytes() or memoryview(b"")
    if error == ErrorCode.OFFSET_OUT_OF_RANGE:
        raise OffsetOutOfRange(partition, position, log_start, high_watermark)
    check(error, f"fetching {partition}")
    batches, next_position = _checked(records, partition, position, end)
    shown = aborted if read_committed else None
    return Fetched(position, next_position, batches, shown, high_watermark, last_stable, log_start, preferred_replica)


def _checked(records: memoryview, partition: TopicPartition, position: int, end: int) -> tuple[list[Batch], int]:
    """Returns whole batches with valid checksums that overlap position to end, and the next position."""
    batches: list[Batch] = []
    next_position = position
    for at, header in walk(records):
        if header.next_offset <= position:
            continue
        if header.base_offset >= end:  # compaction may have left a gap before it
            return batches, max(next_position, end)
        next_position = header.next_offset
        batch = records[at : at + header.total_bytes]
        if header.crc != batch_crc(batch):
            raise CorruptBatch(f"{partition}: the checksum of the batch at offset {header.base_offset} is wrong")
        batches.append((batch, header))
    return batches, next_position


def read_committed_records(cluster: Cluster, topic: str) -> Iterator[tuple[TopicPartition, Record]]:
    """Yields records up to the current last stable offset, partition by partition; none if the topic does not exist."""
    found = cluster.patiently(f"finding the topic {topic}", lambda: cluster.topics([topic]).get(topic))
    partitions = [TopicPartition(topic, number) for number in sorted(found.leaders)] if found else []
    firsts, ends = _edges(cluster, partitions, EARLIEST), _edges(cluster, partitions, LATEST)
    for partition in partitions:
        fetches = fetch_from(
            cluster, partition, firsts[partition], ends[partition], read_committed=True, bytes_max=FETCH_BYTES
        )
        for fetched in fetches:
            for batch, header in committed_batches(fetched.batches, fetched.aborted):
                for record in iter_records(batch, header):
                    if fetched.position <= record.offset < ends[partition]:
                        yield partition, record


def _edges(cluster: Cluster, partitions: list[TopicPartition], time: int) -> Mapping[TopicPartition, int]:
    asked = dict.fromkeys(partitions, time)
    found = cluster.patiently("requesting offsets", lambda: list_offsets(cluster, asked, read_committed=True))
    return {partition: offset or 0 for partition, offset in found.items()}
