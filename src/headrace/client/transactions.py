"""What only a coordinator, or the leader of a partition, can tell about transactions, with Kafka's own requests.

librdkafka's admin client has no calls for these. Decides the requests' shapes only; whom to ask is the caller's.
"""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from struct import Struct
from typing import NamedTuple

from headrace.client.connection import Connection
from headrace.model.errors import ErrorCode
from headrace.protocol.wire import INT32, Reader

_MILLISECOND = timedelta(milliseconds=1)
_STATE = Struct(">iqqh")
_STATE_BYTES_MIN = 4
_TOPIC_BYTES_MIN = 3


class TransactionRefused(Exception):
    """The broker's no, with its code."""

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
    """A producer with an open transaction, as a partition knows it."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_timestamp_ms: int
    start_offset: int


def list_transactions(connection: Connection, states: Sequence[str] = (), longer_than_ms: int = -1) -> list[Listed]:
    """Those that this broker looks after."""
    from kio.schema.list_transactions.v1.request import ListTransactionsRequest
    from kio.schema.list_transactions.v1.response import ListTransactionsResponse
    from kio.static.primitive import i64

    request = ListTransactionsRequest(state_filters=tuple(states), duration_filter=i64(longer_than_ms))
    answer = connection.call(request, ListTransactionsResponse)
    if answer.error_code:
        raise TransactionRefused(int(answer.error_code), answer.error_code.name)
    if answer.unknown_state_filters:
        raise TransactionRefused(42, f"no transaction is ever {', '.join(answer.unknown_state_filters)}")
    return [Listed(one.transactional_id, one.producer_id, one.transaction_state) for one in answer.transaction_states]


def coordinator_of(connection: Connection, transactional_id: str) -> tuple[str, int]:
    """Host and port of the broker that looks after the id."""
    from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
    from kio.schema.find_coordinator.v4.response import FindCoordinatorResponse
    from kio.static.primitive import i8

    request = FindCoordinatorRequest(key_type=i8(1), coordinator_keys=(transactional_id,))
    (row,) = connection.call(request, FindCoordinatorResponse).coordinators
    if row.error_code:
        raise TransactionRefused(int(row.error_code), row.error_message or row.error_code.name)
    return row.host, row.port


def describe_transaction(connection: Connection, transactional_id: str) -> Described:
    from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
    from kio.schema.describe_transactions.v0.response import DescribeTransactionsResponse
    from kio.schema.types import TransactionalId

    request = DescribeTransactionsRequest(transactional_ids=(TransactionalId(transactional_id),))
    # Read by hand: a producer that has begun nothing has no time of beginning, for which kio knows no value.
    reader = Reader(memoryview(connection.exchange(request, DescribeTransactionsResponse)), flexible=True)
    reader.int32()  # throttle time
    reader.array(_STATE_BYTES_MIN)
    code, name, state = reader.int16(), reader.string(), reader.string()
    if code:
        raise TransactionRefused(code, f"{name}: {_name_of(code)}")
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
    """Take the id over for a moment: what its producer has open is aborted, and that producer is fenced."""
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
        raise TransactionRefused(int(answer.error_code), f"{transactional_id}: {answer.error_code.name}")


def open_producers(connection: Connection, topic: str, partitions: Iterable[int]) -> list[OpenProducer]:
    """Producers that have a transaction open in these partitions, which this broker leads."""
    from kio.schema.describe_producers.v0.request import DescribeProducersRequest, TopicRequest
    from kio.schema.describe_producers.v0.response import DescribeProducersResponse
    from kio.schema.types import TopicName
    from kio.static.primitive import i32

    wanted = TopicRequest(name=TopicName(topic), partition_indexes=tuple(i32(index) for index in partitions))
    answer = connection.call(DescribeProducersRequest(topics=(wanted,)), DescribeProducersResponse)
    found = []
    for row in answer.topics[0].partitions:
        if row.error_code:
            raise TransactionRefused(int(row.error_code), row.error_message or row.error_code.name)
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
    """Write the marker that no coordinator will write any more. Kafka's own tools do the same."""
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
        raise TransactionRefused(int(row.error_code), f"{producer.topic}-{producer.partition}: {row.error_code.name}")
