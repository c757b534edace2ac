"""Encodes and decodes records of `__transaction_state`, in Kafka's format.

    key     int16 version (0), transactional id
    value   int16 version (0 or 1), producer id, epoch, timeout, state, partitions by topic, times;
            version 1 is flexible: previous and next producer id and the client's version are tagged fields

One record has the whole state of a transactional id; a null value is its tombstone. Version 1 is written, both are
read.
"""

from struct import Struct

from headrace.core.coordinator import CoordinatorRecord
from headrace.core.transaction.metadata import TransactionMetadata, TransactionState
from headrace.model.errors import CorruptLog, ProtocolError
from headrace.model.ids import NO_EPOCH, NO_PRODUCER_ID, TopicPartition
from headrace.protocol.primitives import INT16, INT32, INT64, Reader, array_length, string, uvarint

KEY_VERSION = 0
VALUE_VERSION = 1
_OLD_VALUE_VERSION = 0

_OWNER_AND_STATE = Struct(">qhib")
_TIMES = Struct(">qq")

_PREVIOUS_ID_TAG = 0
_NEXT_ID_TAG = 1
_CLIENT_VERSION_TAG = 2
# headrace's own tag, far from the numbers that Kafka assigns. Kafka does not store the previous epoch, and after a
# restart fences a producer that repeats its last request. Readers skip unknown tags.
_LAST_EPOCH_TAG = 10_000

_PARTITION_BYTES_MIN = 4
_TOPIC_BYTES_MIN = 3


def encode_key(transactional_id: str) -> bytes:
    return INT16.pack(KEY_VERSION) + string(transactional_id, flexible=False)


def encode(transaction: TransactionMetadata) -> CoordinatorRecord:
    value = bytearray(INT16.pack(VALUE_VERSION))
    value += _OWNER_AND_STATE.pack(
        transaction.producer_id, transaction.epoch, transaction.timeout_ms, transaction.state
    )
    value += _partitions(transaction)
    value += _TIMES.pack(transaction.updated_ms, transaction.started_ms)
    value += _tags(transaction)
    return CoordinatorRecord(encode_key(transaction.transactional_id), bytes(value))


def _partitions(transaction: TransactionMetadata) -> bytes:
    if transaction.state is TransactionState.EMPTY:
        return b"\x00"  # null
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(transaction.partitions):
        by_topic.setdefault(topic, []).append(partition)
    out = bytearray(array_length(len(by_topic), flexible=True))
    for topic, indexes in by_topic.items():
        out += string(topic, flexible=True) + array_length(len(indexes), flexible=True)
        out += b"".join(map(INT32.pack, indexes)) + b"\x00"
    return bytes(out)


def _tags(transaction: TransactionMetadata) -> bytes:
    """Returns the tagged fields in numeric order, without those that have their defaults."""
    tags: list[tuple[int, bytes]] = []
    if transaction.previous_producer_id != NO_PRODUCER_ID:
        tags.append((_PREVIOUS_ID_TAG, INT64.pack(transaction.previous_producer_id)))
    if transaction.next_producer_id != NO_PRODUCER_ID:
        tags.append((_NEXT_ID_TAG, INT64.pack(transaction.next_producer_id)))
    if transaction.client_version:
        tags.append((_CLIENT_VERSION_TAG, INT16.pack(transaction.client_version)))
    if transaction.last_epoch != NO_EPOCH:
        tags.append((_LAST_EPOCH_TAG, INT16.pack(transaction.last_epoch)))
    return uvarint(len(tags)) + b"".join(uvarint(tag) + uvarint(len(value)) + value for tag, value in tags)


def decode_key(key: bytes) -> str | None:
    """Returns the transactional id; None for an unknown kind of record."""
    try:
        reader = Reader(memoryview(key))
        return reader.string() if reader.int16() == KEY_VERSION else None
    except ProtocolError as error:
        raise CorruptLog(f"a key of the transaction log: {error}") from error


def decode_value(transactional_id: str, value: bytes) -> TransactionMetadata | None:
    """Decodes a transactional id's state; None for an unknown version."""
    try:
        reader = Reader(memoryview(value))
        version = reader.int16()
        if version not in (_OLD_VALUE_VERSION, VALUE_VERSION):
            return None
        reader.flexible = version >= VALUE_VERSION
        return _decode(transactional_id, reader)
    except (ProtocolError, ValueError) as error:
        raise CorruptLog(f"the transaction log's record of {transactional_id!r}: {error}") from error


def _decode(transactional_id: str, reader: Reader) -> TransactionMetadata:
    producer_id, epoch, timeout_ms, state = reader.numbers(_OWNER_AND_STATE)
    partitions = []
    for _ in reader.nullable_array(_TOPIC_BYTES_MIN) or ():
        topic = reader.string()
        partitions += [TopicPartition(topic, reader.int32()) for _ in reader.array(_PARTITION_BYTES_MIN)]
        reader.skip_tags()
    updated_ms, started_ms = reader.numbers(_TIMES)
    previous = next_id = NO_PRODUCER_ID
    client_version, last_epoch = 0, NO_EPOCH
    for tag, field in reader.tags():
        if tag == _PREVIOUS_ID_TAG:
            previous = field.int64()
        elif tag == _NEXT_ID_TAG:
            next_id = field.int64()
        elif tag == _CLIENT_VERSION_TAG:
            client_version = field.int16()
        elif tag == _LAST_EPOCH_TAG:
            last_epoch = field.int16()
    return TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=producer_id,
        epoch=epoch,
        last_epoch=last_epoch,
        previous_producer_id=previous,
        next_producer_id=next_id,
        timeout_ms=timeout_ms,
        state=TransactionState(state),
        partitions=frozenset(partitions),
        started_ms=started_ms,
        updated_ms=updated_ms,
        client_version=client_version,
    )
