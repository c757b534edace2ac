"""A member's next OffsetCommit, recognised by its last one: of the same partitions, only the offsets differ."""

from struct import Struct

from headrace.protocol.api import ApiKey
from headrace.protocol.frames import RequestHeader, parse_request_header, response
from headrace.protocol.offset_commit import (
    INSTANCE_FROM,
    LEADER_EPOCH_FROM,
    RETENTION_BEFORE,
    TOPIC_ID_FROM,
    OffsetCommitRequest,
    OffsetCommitResponse,
    TopicRows,
    encode_response,
)
from headrace.protocol.wire import INT32, INT64

# Beyond that, comparing piece by piece gains little over reading.
PARTITIONS_MAX = 16
REQUEST_BYTES_MAX = 2 * 1024

_CORRELATION_AT = 4
_SAID_FROM = 8


class RepeatedCommit:
    """What a member says again and again, and how it is answered when every partition is accepted."""

    __slots__ = ("_api", "_frame_bytes", "_layout", "_reply", "_said", "request", "version")

    def __init__(self, frame: memoryview, header: RequestHeader, request: OffsetCommitRequest) -> None:
        self.request, self.version = request, header.version
        self._api, self._frame_bytes = bytes(frame[:_CORRELATION_AT]), len(frame)
        at = _offsets_at(frame)
        edges = [_SAID_FROM, *at]
        pieces = [end - start for start, end in zip(edges, [*at, len(frame)], strict=True)]
        # The first piece begins behind the correlation id, the others behind the offset before them.
        pieces = [pieces[0], *(size - INT64.size for size in pieces[1:])]
        self._layout = Struct(">" + "q".join(f"{size}s" for size in pieces))
        self._said = self._layout.unpack_from(frame, _SAID_FROM)[::2]
        rows = [TopicRows(topic, [(one.partition, 0) for one in commits]) for topic, commits in request.topics]
        (self._reply,) = response(
            ApiKey.OFFSET_COMMIT, header.version, 0, encode_response(header.version, OffsetCommitResponse(rows))
        )

    @classmethod
    def of(cls, frame: memoryview, header: RequestHeader, request: OffsetCommitRequest) -> "RepeatedCommit | None":
        """None for a request that is not worth it."""
        count = sum(len(topic.partitions) for topic in request.topics)
        if not 0 < count <= PARTITIONS_MAX or len(frame) > REQUEST_BYTES_MAX:
            return None
        return cls(frame, header, request)

    def offsets(self, frame: memoryview) -> tuple[int, ...] | None:
        """Those of a request that says nothing else anew; in the order of the partitions."""
        if len(frame) != self._frame_bytes or frame[:_CORRELATION_AT] != self._api:
            return None
        parts = self._layout.unpack_from(frame, _SAID_FROM)
        return parts[1::2] if parts[::2] == self._said else None

    @staticmethod
    def correlation_id(frame: memoryview) -> int:
        number: int = INT32.unpack_from(frame, _CORRELATION_AT)[0]
        return number

    def reply(self, correlation_id: int) -> bytearray:
        """All of it was committed."""
        reply = bytearray(self._reply)  # type: ignore[arg-type]  # what is encoded here is bytes
        INT32.pack_into(reply, _CORRELATION_AT, correlation_id)
        return reply


def _offsets_at(frame: memoryview) -> list[int]:
    """Where the offsets stand in a request that could be read."""
    header, reader = parse_request_header(frame)
    version, found = header.version, []
    reader.string()
    reader.int32()
    reader.string()
    if version >= INSTANCE_FROM:
        reader.nullable_string()
    if version < RETENTION_BEFORE:
        reader.int64()
    for _ in reader.array(1):
        if version >= TOPIC_ID_FROM:
            reader.uuid()
        else:
            reader.string()
        for _ in reader.array(1):
            reader.int32()
            found.append(reader.position)
            reader.int64()
            if version >= LEADER_EPOCH_FROM:
                reader.int32()
            reader.nullable_string()
            reader.skip_tags()
        reader.skip_tags()
    return found
