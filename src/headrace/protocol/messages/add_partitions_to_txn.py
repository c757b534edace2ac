"""AddPartitionsToTxn, versions 0 to 5: older versions have one transaction, newer ones several.

Clients use the older versions. The newer ones are for brokers, which send them on behalf of the producers that write
to them. Their request and response have other fields, so that neither can be decoded as the older ones.
"""

from collections import Counter
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicPartition
from headrace.protocol.primitives import INT16, INT32, Reader, array_length, string

FLEXIBLE_FROM = 3
MANY_FROM = 4

_PRODUCER = Struct(">qh")
_ROW = Struct(">ih")

# Smallest encoded size of an element: bounds the counts that are accepted.
_TRANSACTION_BYTES_MIN = 14
_TOPIC_BYTES_MIN = 2


class TransactionToAdd(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    verify_only: bool
    partitions: list[TopicPartition]


class AddPartitionsToTxnRequest(NamedTuple):
    transactions: list[TransactionToAdd]


class TransactionResult(NamedTuple):
    transactional_id: str
    errors: Sequence[tuple[TopicPartition, int]]


class AddPartitionsToTxnResponse(NamedTuple):
    results: Sequence[TransactionResult] = ()
    error: int = ErrorCode.NONE
    throttle_ms: int = 0


def decode_request(reader: Reader, version: int) -> AddPartitionsToTxnRequest:
    if version < MANY_FROM:
        transactions = [_transaction(reader, version)]
    else:
        transactions = []
        for _ in reader.array(_TRANSACTION_BYTES_MIN):
            transactions.append(_transaction(reader, version))
            reader.skip_tags()
    reader.skip_tags()
    reader.expect_end()
    return AddPartitionsToTxnRequest(transactions)


def _transaction(reader: Reader, version: int) -> TransactionToAdd:
    transactional_id = reader.string()
    producer_id, epoch = reader.numbers(_PRODUCER)
    verify_only = version >= MANY_FROM and reader.boolean()
    partitions: list[TopicPartition] = []
    for _ in reader.array(_TOPIC_BYTES_MIN):
        topic = reader.string()
        partitions += [TopicPartition(topic, reader.int32()) for _ in reader.array(INT32.size)]
        reader.skip_tags()
    return TransactionToAdd(transactional_id, producer_id, epoch, verify_only, partitions)


def failure(error: ErrorCode) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(error=error)


def count_errors(version: int, response: AddPartitionsToTxnResponse, counts: Counter[int]) -> None:
    if response.error and version >= MANY_FROM:
        counts[response.error] += 1
    for result in response.results:
        for _, error in result.errors:
            if error:
                counts[error] += 1


def encode_response(version: int, response: AddPartitionsToTxnResponse) -> bytes:
    flexible = version >= FLEXIBLE_FROM
    body = bytearray(INT32.pack(response.throttle_ms))
    if version < MANY_FROM:
        body += _topics(response.results[0].errors if response.results else (), flexible)
    else:
        body += INT16.pack(response.error) + array_length(len(response.results), flexible)
        for result in response.results:
            body += string(result.transactional_id, flexible) + _topics(result.errors, flexible) + b"\x00"
    if flexible:
        body.append(0)
    return bytes(body)


def _topics(errors: Sequence[tuple[TopicPartition, int]], flexible: bool) -> bytes:
    end = b"\x00" if flexible else b""
    by_topic: dict[str, list[bytes]] = {}
    for (topic, partition), error in errors:
        by_topic.setdefault(topic, []).append(_ROW.pack(partition, error) + end)
    out = bytearray(array_length(len(by_topic), flexible))
    for topic, rows in by_topic.items():
        out += string(topic, flexible) + array_length(len(rows), flexible) + b"".join(rows) + end
    return bytes(out)
