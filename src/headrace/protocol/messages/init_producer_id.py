"""InitProducerId, versions 0 to 5: the request of an idempotent producer before its first batch."""

from collections import Counter
from struct import Struct
from typing import NamedTuple

from headrace.model.errors import ErrorCode
from headrace.model.ids import NO_EPOCH, NO_PRODUCER_ID
from headrace.protocol.primitives import Reader

FLEXIBLE_FROM = 2
CURRENT_ID_FROM = 3
PRODUCER_FENCED_FROM = 4

_BODY = Struct(">ihqh")


class InitProducerIdRequest(NamedTuple):
    transactional_id: str | None
    transaction_timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


class InitProducerIdResponse(NamedTuple):
    error: int = ErrorCode.NONE
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH
    throttle_ms: int = 0


def decode_request(reader: Reader, version: int) -> InitProducerIdRequest:
    transactional_id, timeout_ms = reader.nullable_string(), reader.int32()
    if version < CURRENT_ID_FROM:
        request = InitProducerIdRequest(transactional_id, timeout_ms)
    else:
        request = InitProducerIdRequest(transactional_id, timeout_ms, reader.int64(), reader.int16())
    reader.skip_tags()
    reader.expect_end()
    return request


def failure(error: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error)


def count_errors(version: int, response: InitProducerIdResponse, counts: Counter[int]) -> None:
    if response.error:
        counts[response.error] += 1


def encode_response(version: int, response: InitProducerIdResponse) -> bytes:
    body = _BODY.pack(response.throttle_ms, response.error, response.producer_id, response.producer_epoch)
    return body + b"\x00" if version >= FLEXIBLE_FROM else body
