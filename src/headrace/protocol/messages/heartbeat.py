"""Heartbeat, versions 0 to 4: every member of every classic group sends one every few seconds."""

from collections import Counter
from typing import NamedTuple

from headrace.model.errors import ErrorCode
from headrace.protocol.primitives import INT16, INT32, Reader

THROTTLE_FROM = 1
INSTANCE_FROM = 3
FLEXIBLE_FROM = 4


class HeartbeatRequest(NamedTuple):
    group_id: str
    generation: int
    member_id: str
    instance_id: str | None = None


class HeartbeatResponse(NamedTuple):
    error: int = ErrorCode.NONE
    throttle_ms: int = 0


def failure(code: ErrorCode) -> HeartbeatResponse:
    return HeartbeatResponse(code)


def decode_request(reader: Reader, version: int) -> HeartbeatRequest:
    group_id, generation, member_id = reader.string(), reader.int32(), reader.string()
    instance_id = reader.nullable_string() if version >= INSTANCE_FROM else None
    reader.skip_tags()
    reader.expect_end()
    return HeartbeatRequest(group_id, generation, member_id, instance_id)


def count_errors(version: int, response: HeartbeatResponse, counts: Counter[int]) -> None:
    if response.error:
        counts[response.error] += 1


def encode_response(version: int, response: HeartbeatResponse) -> bytes:
    body = INT16.pack(response.error)
    if version >= THROTTLE_FROM:
        body = INT32.pack(response.throttle_ms) + body
    return body + b"\x00" if version >= FLEXIBLE_FROM else body
