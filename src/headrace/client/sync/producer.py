"""Idempotent producer of the blocking client: sends whole batches, several requests in flight, none written twice.

Every batch has the producer's id and a sequence number, so a retry after a lost response writes nothing twice: the
broker remembers the last five batches of each producer and partition, so at most four requests are in flight. Manages
order and retries; never decodes a batch.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from typing import NamedTuple

from headrace.client.core.errors import KafkaApiError
from headrace.client.sync.client import Address, Cluster, RetryPolicy, check
from headrace.client.sync.offsets import by_topic
from headrace.client.sync.transactions import ProducerIdentity, add_partitions
from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicPartition
from headrace.protocol.primitives import INT32, Reader, nullable_string, string

PRODUCE, PRODUCE_VERSION = 0, 8  # the last version without tagged fields
ALL_IN_SYNC = -1
IN_FLIGHT_MAX = 4
_ACKS_AND_TIMEOUT = Struct(">hi")
_ROW = Struct(">ihqqq")
SEQUENCE_MASK = 0x7FFFFFFF

# Responses to a batch that was appended before, or that follows one which must be resent.
_ALREADY_WRITTEN = (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
_BEHIND_A_LOST_ONE = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

Batches = Mapping[TopicPartition, bytes]


class _Flight(NamedTuple):
    address: Address
    correlation_id: int
    batches: Batches


class BatchProducer:
    """Sends the batches of one writer. The caller requests a sequence number before it builds a batch."""

    def __init__(self, cluster: Cluster, owner: ProducerIdentity, *, acks: int = ALL_IN_SYNC) -> None:
        self._cluster, self.owner, self._acks = cluster, owner, acks
        self._sequences: dict[TopicPartition, int] = {}
        self._flights: deque[_Flight] = deque()

    @property
    def partitions(self) -> set[TopicPartition]:
        """Partitions to which a batch was sent."""
        return set(self._sequences)

    def next_sequence(self, partition: TopicPartition, records: int) -> int:
        """Returns the sequence number of a batch of this many records; it must be the next batch to the partition."""
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = (sequence + records) & SEQUENCE_MASK
        return sequence

    def add_partitions_to_transaction(self, partitions: Sequence[TopicPartition]) -> None:
        """Adds partitions to the transaction; must be called before the first batch to each of them."""
        fresh = [one for one in partitions if one not in self._sequences]
        if fresh and self.owner.transactional_id is not None:
            add_partitions(self._cluster, self.owner, fresh)

    def send(self, batches: Batches) -> None:
        """Sends at most one batch per partition. Blocks only while IN_FLIGHT_MAX requests are in flight."""
        while len(self._flights) >= IN_FLIGHT_MAX:
            self._land()
        try:
            self._take_off(batches)
        except (OSError, KafkaApiError) as error:
            self._resend(batches, error)

    def flush(self) -> None:
        """Returns when the brokers have acknowledged every batch."""
        while self._flights:
            self._land()

    def _take_off(self, batches: Batches) -> None:
        for address, partitions in self._cluster.by_leader(batches).items():
            part = {one: batches[one] for one in partitions}
            body = _request(self.owner.transactional_id, self._acks, self._cluster.settings.request_timeout_s, part)
            correlation_id = self._cluster.connection(address).send(PRODUCE, PRODUCE_VERSION, body)
            self._flights.append(_Flight(address, correlation_id, part))

    def _land(self) -> None:
        flight = self._flights[0]
        try:
            body = self._cluster.connection(flight.address).receive(flight.correlation_id)
            _check_answer(body)
        except (OSError, KafkaApiError) as error:
            self._resend({}, error)
        else:
            self._flights.popleft()

    def _resend(self, unsent: Batches, error: OSError | KafkaApiError) -> None:
        """Resends everything without a response, in order, one request at a time; the broker discards duplicates."""
        waiting = [*(flight.batches for flight in self._flights), unsent]
        self._flights.clear()
        patience = RetryPolicy(self._cluster.settings.patience_s)
        failure: OSError | KafkaApiError | None = error
        for batches in waiting:
            while failure is not None or batches:
                if failure is not None:
                    patience.wait_after(failure, f"producing to {self._cluster.settings.bootstrap}")
                    self._cluster.forget()
                failure = self._try(batches)
                if failure is None:
                    patience.renew()
                    break

    def _try(self, batches: Batches) -> OSError | KafkaApiError | None:
        try:
            for address, partitions in self._cluster.by_leader(batches).items():
                part = {one: batches[one] for one in partitions}
                body = _request(self.owner.transactional_id, self._acks, self._cluster.settings.request_timeout_s, part)
                connection = self._cluster.connection(address)
                _check_answer(connection.receive(connection.send(PRODUCE, PRODUCE_VERSION, body)))
        except (OSError, KafkaApiError) as error:
            return error
        return None


def produce_one(cluster: Cluster, owner: ProducerIdentity, partition: TopicPartition, batch: bytes) -> int:
    """Sends a single batch; returns the offset of its first record. Its sequence number makes a retry safe."""

    def attempt() -> int:
        connection = cluster.leader_connection(partition)
        timeout_s = cluster.settings.request_timeout_s
        body = _request(owner.transactional_id, ALL_IN_SYNC, timeout_s, {partition: batch})
        ((_, offset),) = _offsets(connection.receive(connection.send(PRODUCE, PRODUCE_VERSION, body)))
        return offset

    return cluster.patiently(f"producing to {partition}", attempt)


def _request(transactional_id: str | None, acks: int, timeout_s: float, batches: Batches) -> bytes:
    topics = by_topic(batches)
    parts = [
        nullable_string(transactional_id, flexible=False),
        _ACKS_AND_TIMEOUT.pack(acks, int(timeout_s * 1000)),
        INT32.pack(len(topics)),
    ]
    for name, partitions in topics.items():
        parts += [string(name, flexible=False), INT32.pack(len(partitions))]
        for one in partitions:
            parts += [INT32.pack(one.partition), INT32.pack(len(batches[one])), batches[one]]
    return b"".join(parts)


def _check_answer(body: memoryview) -> None:
    """Raises the first error of the response."""
    for _ in _offsets(body):
        pass


def _offsets(body: memoryview) -> Iterator[tuple[TopicPartition, int]]:
    """Yields the base offset of each batch; raises the first error."""
    reader = Reader(body)
    for _ in reader.array(6):
        topic = reader.string()
        for _ in reader.array(_ROW.size):
            partition, code, base_offset, *_ = reader.numbers(_ROW)
            reasons = []
            for _ in reader.array(6):
                reader.int32()
                reasons.append(reader.nullable_string())
            message = reader.nullable_string() or next((reason for reason in reasons if reason), "")
            if code == _BEHIND_A_LOST_ONE:
                raise _OutOfOrder(code, f"writing to {topic}-{partition}")
            if code not in _ALREADY_WRITTEN:
                check(code, f"writing to {topic}-{partition}{f' ({message})' if message else ''}")
            yield TopicPartition(topic, partition), base_offset


class _OutOfOrder(KafkaApiError):
    """Retriable: succeeds after the missing batches before it have been resent."""

    passes = True
