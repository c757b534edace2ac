"""LeaveGroup, versions 0 to 5: newer versions remove several members, older ones a single member."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from headrace.model.errors import ErrorCode
from headrace.protocol.bounded_reader import FIELD_WEIGHT, OBJECT_WEIGHT, POINTER_WEIGHT, BoundedReader
from headrace.protocol.primitives import INT16, INT32, Reader, array_length, nullable_string, string

THROTTLE_FROM = 1
MANY_MEMBERS_FROM = 3
FLEXIBLE_FROM = 4
REASON_FROM = 5

_MEMBER_BYTES_MIN = 2
_MEMBER_WEIGHT = POINTER_WEIGHT + OBJECT_WEIGHT + 3 * FIELD_WEIGHT


class LeavingMember(NamedTuple):
    member_id: str
    instance_id: str | None = None
    reason: str | None = None


class LeaveGroupRequest(NamedTuple):
    group_id: str
    members: tuple[LeavingMember, ...]


class LeftMember(NamedTuple):
    member_id: str
    instance_id: str | None
    error: int


class LeaveGroupResponse(NamedTuple):
    error: int = ErrorCode.NONE
    members: Sequence[LeftMember] = ()
    throttle_ms: int = 0


def failure(code: ErrorCode) -> LeaveGroupResponse:
    return LeaveGroupResponse(code)


def decode_request(body: Reader, version: int) -> LeaveGroupRequest:
    reader = BoundedReader.of_body(body)
    group_id = reader.string()
    if version >= MANY_MEMBERS_FROM:
        members = tuple([_member(reader, version) for _ in reader.elements(_MEMBER_BYTES_MIN, _MEMBER_WEIGHT)])
    else:
        members = (LeavingMember(reader.string()),)
    reader.skip_tags()
    reader.expect_end()
    return LeaveGroupRequest(group_id, members)


def _member(reader: BoundedReader, version: int) -> LeavingMember:
    member_id, instance_id = reader.string(), reader.nullable_string()
    reason = reader.nullable_string() if version >= REASON_FROM else None
    reader.skip_tags()
    return LeavingMember(member_id, instance_id, reason)


def count_errors(version: int, response: LeaveGroupResponse, counts: Counter[int]) -> None:
    if response.error:
        counts[response.error] += 1
    for member in response.members:
        if member.error:
            counts[member.error] += 1


def encode_response(version: int, response: LeaveGroupResponse) -> bytes:
    flexible = version >= FLEXIBLE_FROM
    end = b"\x00" if flexible else b""
    throttle = INT32.pack(response.throttle_ms) if version >= THROTTLE_FROM else b""
    if version < MANY_MEMBERS_FROM:
        errors = [row.error for row in response.members]
        return throttle + INT16.pack(response.error or next(iter(errors), ErrorCode.NONE))
    rows = [
        string(row.member_id, flexible) + nullable_string(row.instance_id, flexible) + INT16.pack(row.error) + end
        for row in response.members
    ]
    return throttle + INT16.pack(response.error) + array_length(len(rows), flexible) + b"".join(rows) + end
