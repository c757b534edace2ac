"""Transactional requests, and a producer's transactions, with the blocking client.

librdkafka's admin client lacks the requests. It also does not expose the producer id and epoch, with which another
process can end a transaction: a Spark driver does that with the transactions of its tasks. The requests have versions
before KIP-890's second part, in which the end of a transaction keeps the epoch and a repeated EndTxn gets the same
response as the first.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from struct import Struct
from typing import NamedTuple

from headrace.client.sync.client import GROUP, TRANSACTION, Cluster, check
from headrace.client.sync.offsets import Committed, by_topic
from headrace.client.sync.transport import Connection
from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicPartition
from headrace.protocol.primitives import INT32, Reader

_MILLISECOND = timedelta(milliseconds=1)
_STATE = Struct(">iqqh")
_STATE_BYTES_MIN = 4
_TOPIC_BYTES_MIN = 3


class TransactionError(Exception):
    """Error response to a transactional request, with its code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Listed(NamedTuple):
    transactional_id: str
    producer_id: int
    state: str


class Described(NamedTuple):
    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int
    partitions: list[tuple[str, int]]


class OpenProducer(NamedTuple):
    """A producer with an open transaction, from the producer state of a partition."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_timestamp_ms: int
    start_offset: int


def list_transactions(connection: Connection, states: Sequence[str] = (), longer_than_ms: int = -1) -> list[Listed]:
    """Returns the transactions that the connected broker coordinates."""
    from kio.schema.list_transactions.v1.request import ListTransactionsRequest
    from kio.schema.list_transactions.v1.response import ListTransactionsResponse
    from kio.static.primitive import i64

    request = ListTransactionsRequest(state_filters=tuple(states), duration_filter=i64(longer_than_ms))
    answer = connection.call(request, ListTransactionsResponse)
    if answer.error_code:
        raise TransactionError(int(answer.error_code), answer.error_code.name)
    if answer.unknown_state_filters:
        raise TransactionError(42, f"no transaction is ever {', '.join(answer.unknown_state_filters)}")
    return [Listed(one.transactional_id, one.producer_id, one.transaction_state) for one in answer.transaction_states]


def coordinator_of(connection: Connection, transactional_id: str) -> tuple[str, int]:
    """Returns host and port of the coordinator of the transactional id."""
    from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
    from kio.schema.find_coordinator.v4.response import FindCoordinatorResponse
    from kio.static.primitive import i8

    request = FindCoordinatorRequest(key_type=i8(1), coordinator_keys=(transactional_id,))
    (row,) = connection.call(request, FindCoordinatorResponse).coordinators
    if row.error_code:
        raise TransactionError(int(row.error_code), row.error_message or row.error_code.name)
    return row.host, row.port


def describe_transaction(connection: Connection, transactional_id: str) -> Described:
    from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
    from kio.schema.describe_transactions.v0.response import DescribeTransactionsResponse
    from kio.schema.types import TransactionalId

    request = DescribeTransactionsRequest(transactional_ids=(TransactionalId(transactional_id),))
    # Decoded without kio, which has no value for the start time of a producer without a transaction.
    reader = Reader(memoryview(connection.exchange(request, DescribeTransactionsResponse)), flexible=True)
    reader.int32()  # throttle time
    reader.array(_STATE_BYTES_MIN)
    code, name, state = reader.int16(), reader.string(), reader.string()
    if code:
        raise TransactionError(code, f"{name}: {_name_of(code)}")
    timeout_ms, started_ms, producer_id, epoch = reader.numbers(_STATE)
    partitions: list[tuple[str, int]] = []
    for _ in reader.array(_TOPIC_BYTES_MIN):
        topic = reader.string()
        partitions += [(topic, reader.int32()) for _ in reader.array(INT32.size)]
        reader.skip_tags()
    return Described(name, state, producer_id, epoch, timeout_ms, started_ms, partitions)


def _name_of(code: int) -> str:
    return ErrorCode(code).name if code in ErrorCode._value2member_map_ else f"error {code}"


def fence(connection: Connection, transactional_id: str) -> None:
    """Initializes the transactional id, which aborts its open transaction and fences its producer."""
    from kio.schema.init_producer_id.v4.request import InitProducerIdRequest
    from kio.schema.init_producer_id.v4.response import InitProducerIdResponse
    from kio.schema.types import TransactionalId
    from kio.static.primitive import i32Timedelta

    request = InitProducerIdRequest(
        transactional_id=TransactionalId(transactional_id),
        transaction_timeout=i32Timedelta.parse(_MILLISECOND),
    )
    answer = connection.call(request, InitProducerIdResponse)
    if answer.error_code:
        raise TransactionError(int(answer.error_code), f"{transactional_id}: {answer.error_code.name}")


def open_producers(connection: Connection, topic: str, partitions: Iterable[int]) -> list[OpenProducer]:
    """Returns producers with open transactions in these partitions, which the connected broker must lead."""
    from kio.schema.describe_producers.v0.request import DescribeProducersRequest, TopicRequest
    from kio.schema.describe_producers.v0.response import DescribeProducersResponse
    from kio.schema.types import TopicName
    from kio.static.primitive import i32

    wanted = TopicRequest(name=TopicName(topic), partition_indexes=tuple(i32(index) for index in partitions))
    answer = connection.call(DescribeProducersRequest(topics=(wanted,)), DescribeProducersResponse)
    found = []
    for row in answer.topics[0].partitions:
        if row.error_code:
            raise TransactionError(int(row.error_code), row.error_message or row.error_code.name)
        found += [
            OpenProducer(
                topic,
                row.partition_index,
                one.producer_id,
                one.producer_epoch,
                one.coordinator_epoch,
                one.last_timestamp,
                one.current_txn_start_offset,
            )
            for one in row.active_producers
            if one.current_txn_start_offset >= 0
        ]
    return found


def abort_in_partition(connection: Connection, producer: OpenProducer) -> None:
    """Writes an abort marker for a transaction without a coordinator (a hanging one), as Kafka's tools do."""
    from kio.schema.types import ProducerId, TopicName
    from kio.schema.write_txn_markers.v1.request import (
        WritableTxnMarker,
        WritableTxnMarkerTopic,
        WriteTxnMarkersRequest,
    )
    from kio.schema.write_txn_markers.v1.response import WriteTxnMarkersResponse
    from kio.static.primitive import i16, i32

    marker = WritableTxnMarker(
        producer_id=ProducerId(producer.producer_id),
        producer_epoch=i16(producer.producer_epoch),
        transaction_result=False,
        topics=(WritableTxnMarkerTopic(name=TopicName(producer.topic), partition_indexes=(i32(producer.partition),)),),
        coordinator_epoch=i32(max(producer.coordinator_epoch, 0)),
    )
    answer = connection.call(WriteTxnMarkersRequest(markers=(marker,)), WriteTxnMarkersResponse)
    (row,) = answer.markers[0].topics[0].partitions
    if row.error_code:
        raise TransactionError(int(row.error_code), f"{producer.topic}-{producer.partition}: {row.error_code.name}")


ONGOING = "Ongoing"
COMMITTED = ("PrepareCommit", "CompleteCommit")


class ProducerIdentity(NamedTuple):
    """Producer id and epoch: of an idempotent producer, or of the owner of a transactional id."""

    transactional_id: str | None
    producer_id: int
    epoch: int


def init_producer(cluster: Cluster, transactional_id: str | None, timeout_ms: int) -> ProducerIdentity:
    """Returns a new producer identity.

    For a transactional id, the previous producer is fenced and its open transaction aborted.
    """
    from kio.schema.init_producer_id.v4.request import InitProducerIdRequest
    from kio.schema.init_producer_id.v4.response import InitProducerIdResponse
    from kio.schema.types import TransactionalId
    from kio.static.primitive import i32Timedelta

    request = InitProducerIdRequest(
        transactional_id=None if transactional_id is None else TransactionalId(transactional_id),
        transaction_timeout=i32Timedelta.parse(timedelta(milliseconds=timeout_ms)),
    )

    def attempt() -> ProducerIdentity:
        if transactional_id is None:
            answer = cluster.any_connection().call(request, InitProducerIdResponse)
        else:
            answer = cluster.ask_coordinator(TRANSACTION, transactional_id, request, InitProducerIdResponse)
        check(answer.error_code, f"a producer id for {transactional_id or 'an idempotent producer'}")
        return ProducerIdentity(transactional_id, int(answer.producer_id), int(answer.producer_epoch))

    return cluster.patiently("starting a producer", attempt)


def add_partitions(cluster: Cluster, owner: ProducerIdentity, partitions: Iterable[TopicPartition]) -> None:
    """Adds partitions to the transaction; the first call begins it."""
    from kio.schema.add_partitions_to_txn.v3.request import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
    from kio.schema.add_partitions_to_txn.v3.response import AddPartitionsToTxnResponse
    from kio.schema.types import ProducerId, TopicName, TransactionalId
    from kio.static.primitive import i16, i32

    assert owner.transactional_id is not None
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=TransactionalId(owner.transactional_id),
        v3_and_below_producer_id=ProducerId(owner.producer_id),
        v3_and_below_producer_epoch=i16(owner.epoch),
        v3_and_below_topics=tuple(
            AddPartitionsToTxnTopic(name=TopicName(name), partitions=tuple(i32(one.partition) for one in ones))
            for name, ones in by_topic(partitions).items()
        ),
    )
    name = owner.transactional_id

    def attempt() -> None:
        answer = cluster.ask_coordinator(TRANSACTION, name, request, AddPartitionsToTxnResponse)
        for topic in answer.results_by_topic_v3_and_below:
            for row in topic.results_by_partition:
                check(row.partition_error_code, f"adding {topic.name}-{row.partition_index} to {name}")

    cluster.patiently("adding partitions to a transaction", attempt)


def add_group_offsets(
    cluster: Cluster, owner: ProducerIdentity, group: str, offsets: Mapping[TopicPartition, Committed]
) -> None:
    """Adds offsets of a group that are committed together with the transaction."""
    from kio.schema.add_offsets_to_txn.v3.request import AddOffsetsToTxnRequest
    from kio.schema.add_offsets_to_txn.v3.response import AddOffsetsToTxnResponse
    from kio.schema.txn_offset_commit.v3.request import (
        TxnOffsetCommitRequest,
        TxnOffsetCommitRequestPartition,
        TxnOffsetCommitRequestTopic,
    )
    from kio.schema.txn_offset_commit.v3.response import TxnOffsetCommitResponse
    from kio.schema.types import GroupId, ProducerId, TopicName, TransactionalId
    from kio.static.primitive import i16, i32, i64

    assert owner.transactional_id is not None
    name = owner.transactional_id
    adding = AddOffsetsToTxnRequest(
        transactional_id=TransactionalId(name),
        producer_id=ProducerId(owner.producer_id),
        producer_epoch=i16(owner.epoch),
        group_id=GroupId(group),
    )
    topics = tuple(
        TxnOffsetCommitRequestTopic(
            name=TopicName(topic),
            partitions=tuple(
                TxnOffsetCommitRequestPartition(
                    partition_index=i32(one.partition),
                    committed_offset=i64(offsets[one].offset),
                    committed_metadata=offsets[one].metadata,
                )
                for one in ones
            ),
        )
        for topic, ones in by_topic(offsets).items()
    )
    committing = TxnOffsetCommitRequest(
        transactional_id=TransactionalId(name),
        group_id=GroupId(group),
        producer_id=ProducerId(owner.producer_id),
        producer_epoch=i16(owner.epoch),
        topics=topics,
    )

    def attempt() -> None:
        answer = cluster.ask_coordinator(TRANSACTION, name, adding, AddOffsetsToTxnResponse)
        check(answer.error_code, f"adding the group {group} to {name}")
        written = cluster.ask_coordinator(GROUP, group, committing, TxnOffsetCommitResponse)
        for topic in written.topics:
            for row in topic.partitions:
                check(row.error_code, f"offsets of the group {group} in {name}")

    cluster.patiently("adding offsets to a transaction", attempt)


def end_transaction(cluster: Cluster, owner: ProducerIdentity, *, commit: bool) -> None:
    """Ends the transaction. Safe to retry: if it has already ended in the same way, this succeeds."""
    from kio.schema.end_txn.v3.request import EndTxnRequest
    from kio.schema.end_txn.v3.response import EndTxnResponse
    from kio.schema.types import ProducerId, TransactionalId
    from kio.static.primitive import i16

    assert owner.transactional_id is not None
    name = owner.transactional_id
    request = EndTxnRequest(
        transactional_id=TransactionalId(name),
        producer_id=ProducerId(owner.producer_id),
        producer_epoch=i16(owner.epoch),
        committed=commit,
    )

    def attempt() -> None:
        answer = cluster.ask_coordinator(TRANSACTION, name, request, EndTxnResponse)
        check(answer.error_code, f"{'committing' if commit else 'aborting'} {name}")

    cluster.patiently("ending a transaction", attempt)


def describe(cluster: Cluster, transactional_id: str) -> Described | None:
    """Returns the coordinator's state of the transactional id; None if it has none."""

    def attempt() -> Described | None:
        try:
            return describe_transaction(cluster.coordinator_connection(TRANSACTION, transactional_id), transactional_id)
        except TransactionError as refusal:
            if refusal.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                return None
            check(refusal.code, f"describing {transactional_id}")
            raise

    return cluster.patiently("describing a transaction", attempt)


def open_transactions(cluster: Cluster, prefix: str) -> list[str]:
    """Returns the transactional ids with this prefix and an open transaction, from all coordinators."""

    def attempt() -> list[str]:
        found: list[str] = []
        for address in cluster.addresses():
            listed = list_transactions(cluster.connection(address), [ONGOING])
            found += [one.transactional_id for one in listed if one.transactional_id.startswith(prefix)]
        return found

    return cluster.patiently("listing transactions", attempt)
