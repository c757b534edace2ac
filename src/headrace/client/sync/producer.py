"""Whole batches to their partitions, several requests on their way at once, none twice.

Every batch carries the producer's id and a sequence number, so sending again after a lost answer writes nothing twice:
the broker remembers the last five batches of each producer and partition, which is why no more than that are in flight.
Decides order and repetition; never looks into a batch.
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

# Answers to a batch that is there already, or that comes behind one which has to be sent again.
_ALREADY_WRITTEN = (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
_BEHIND_A_LOST_ONE = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

Batches = Mapping[TopicPartition, bytes]


class _Flight(NamedTuple):
    address: Address
    correlation_id: int
    batches: Batches


class BatchProducer:
    """One writer's batches. Sequences are the caller's business only so far that it asks for them before it builds."""

    def __init__(self, cluster: Cluster, owner: ProducerIdentity, *, acks: int = ALL_IN_SYNC) -> None:
        self._cluster, self.owner, self._acks = cluster, owner, acks
        self._sequences: dict[TopicPartition, int] = {}
        self._flights: deque[_Flight] = deque()

    @property
    def partitions(self) -> set[TopicPartition]:
        """Where anything was sent."""
        return set(self._sequences)

    def next_sequence(self, partition: TopicPartition, records: int) -> int:
        """The sequence of a batch of so many records, which must be sent next to that partition."""
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = (sequence + records) & SEQUENCE_MASK
        return sequence

    def add_partitions_to_transaction(self, partitions: Sequence[TopicPartition]) -> None:
        """To be called before the first batch to a partition; a transaction must know where it writes."""
        fresh = [one for one in partitions if one not in self._sequences]
        if fresh and self.owner.transactional_id is not None:
            add_partitions(self._cluster, self.owner, fresh)

    def send(self, batches: Batches) -> None:
        """At most one batch for each partition. Waits only when enough is on its way already."""
        while len(self._flights) >= IN_FLIGHT_MAX:
            self._land()
        try:
            self._take_off(batches)
        except (OSError, KafkaApiError) as error:
            self._resend(batches, error)

    def flush(self) -> None:
        """Returns when the brokers have everything."""
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
        """Everything whose answer is missing, in its order, one by one: the broker sorts out what it has already."""
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
    """A single batch, and the offset of its first record. Its sequence makes it safe to send again."""

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
    """Raise the first refusal that another try, or nothing, can heal."""
    for _ in _offsets(body):
        pass


def _offsets(body: memoryview) -> Iterator[tuple[TopicPartition, int]]:
    """Where the batches begin; raises the first refusal."""
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
    """Comes right when what is missing before it has been sent again."""

    passes = True
