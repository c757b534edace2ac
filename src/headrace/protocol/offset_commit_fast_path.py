"""Fast path for OffsetCommit: recognizes a request that differs from the member's last one only in its offsets."""

from struct import Struct

from headrace.protocol.api import ApiKey
from headrace.protocol.frames import (
    CORRELATION_ID_AT,
    REQUEST_HEADER,
    RequestHeader,
    parse_request_header,
    response,
    with_correlation_id,
)
from headrace.protocol.messages.offset_commit import (
    INSTANCE_FROM,
    LEADER_EPOCH_FROM,
    RETENTION_BEFORE,
    TOPIC_ID_FROM,
    OffsetCommitRequest,
    OffsetCommitResponse,
    TopicRows,
    encode_response,
)
from headrace.protocol.primitives import INT64

# With more, comparing the constant parts is hardly faster than parsing.
PARTITIONS_MAX = 16
REQUEST_BYTES_MAX = 2 * 1024


class OffsetCommitTemplate:
    """A repeated request of a member, and its response if every partition is accepted."""

    __slots__ = ("_api", "_frame_bytes", "_layout", "_reply", "_said", "request", "version")

    def __init__(self, frame: memoryview, header: RequestHeader, request: OffsetCommitRequest) -> None:
        self.request, self.version = request, header.version
        self._api, self._frame_bytes = bytes(frame[:CORRELATION_ID_AT]), len(frame)
        offsets_at = _offsets_at(frame)
        # The constant parts between the offsets, from after the correlation id to the end.
        starts = [REQUEST_HEADER.size, *(at + INT64.size for at in offsets_at)]
        pieces = zip(starts, [*offsets_at, len(frame)], strict=True)
        self._layout = Struct(">" + "q".join(f"{end - start}s" for start, end in pieces))
        self._said = self._layout.unpack_from(frame, REQUEST_HEADER.size)[::2]
        rows = [TopicRows(topic, [(one.partition, 0) for one in commits]) for topic, commits in request.topics]
        body = encode_response(header.version, OffsetCommitResponse(rows))
        self._reply = b"".join(response(ApiKey.OFFSET_COMMIT, header.version, 0, body))  # type: ignore[arg-type]

    @classmethod
    def of(
        cls, frame: memoryview, header: RequestHeader, request: OffsetCommitRequest
    ) -> "OffsetCommitTemplate | None":
        """Returns a template, or None for a request that is too large for the fast path."""
        count = sum(len(topic.partitions) for topic in request.topics)
        if not 0 < count <= PARTITIONS_MAX or len(frame) > REQUEST_BYTES_MAX:
            return None
        return cls(frame, header, request)

    def offsets(self, frame: memoryview) -> tuple[int, ...] | None:
        """Returns the offsets of a repeated request, in the order of the partitions; None for any other."""
        if len(frame) != self._frame_bytes or frame[:CORRELATION_ID_AT] != self._api:
            return None
        parts = self._layout.unpack_from(frame, REQUEST_HEADER.size)
        return parts[1::2] if parts[::2] == self._said else None

    def reply(self, correlation_id: int) -> bytearray:
        """Returns the response if all offsets were committed."""
        return with_correlation_id(self._reply, correlation_id)


def _offsets_at(frame: memoryview) -> list[int]:
    """Returns the positions of the offsets in a valid request."""
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
