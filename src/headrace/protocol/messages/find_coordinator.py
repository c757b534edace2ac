"""FindCoordinator, versions 0 to 6: newer versions request many keys at once, older ones a single key."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from headrace.model.errors import ErrorCode
from headrace.protocol.bounded_reader import POINTER_WEIGHT, BoundedReader
from headrace.protocol.primitives import INT16, INT32, Reader, array_length, nullable_string, string

KEY_TYPE_FROM = 1
FLEXIBLE_FROM = 3
MANY_KEYS_FROM = 4

NO_NODE = -1
NO_PORT = -1


class FindCoordinatorRequest(NamedTuple):
    key_type: int
    keys: tuple[str, ...]


class CoordinatorRow(NamedTuple):
    key: str
    node_id: int = NO_NODE
    host: str = ""
    port: int = NO_PORT
    error: int = ErrorCode.NONE
    message: str | None = None


class FindCoordinatorResponse(NamedTuple):
    coordinators: Sequence[CoordinatorRow]
    throttle_ms: int = 0


def decode_request(body: Reader, version: int) -> FindCoordinatorRequest:
    reader = BoundedReader.of_body(body)
    if version >= MANY_KEYS_FROM:
        key_type = reader.int8()
        keys = tuple([reader.string() for _ in reader.elements(1, POINTER_WEIGHT)])
    else:
        keys = (reader.string(),)
        key_type = reader.int8() if version >= KEY_TYPE_FROM else 0
    reader.skip_tags()
    reader.expect_end()
    return FindCoordinatorRequest(key_type, keys)


def count_errors(version: int, response: FindCoordinatorResponse, counts: Counter[int]) -> None:
    for row in response.coordinators:
        if row.error:
            counts[row.error] += 1


def encode_response(version: int, response: FindCoordinatorResponse) -> bytes:
    flexible = version >= FLEXIBLE_FROM
    end = b"\x00" if flexible else b""
    throttle = INT32.pack(response.throttle_ms)
    if version >= MANY_KEYS_FROM:
        rows = [_row(row) for row in response.coordinators]
        return throttle + array_length(len(rows), flexible) + b"".join(rows) + end
    (one,) = response.coordinators
    address = INT32.pack(one.node_id) + string(one.host, flexible) + INT32.pack(one.port)
    if version < KEY_TYPE_FROM:
        return INT16.pack(one.error) + address
    return throttle + INT16.pack(one.error) + nullable_string(one.message, flexible) + address + end


def _row(row: CoordinatorRow) -> bytes:
    address = INT32.pack(row.node_id) + string(row.host, True) + INT32.pack(row.port)
    return string(row.key, True) + address + INT16.pack(row.error) + nullable_string(row.message, True) + b"\x00"
