"""Fast path for Produce: recognizes a request that repeats an earlier one of its connection.

Consecutive requests of a producer to a partition differ only in the correlation id and the batch. So the bytes before
the batch are looked up among those of earlier requests, which takes a tenth of the time of parsing them, and the
response is a copy of the last one with other numbers.

Only for small requests with a single batch and no transaction: parsing does not dominate the cost of large ones.
"""

from collections.abc import Iterable
from struct import Struct

from headrace.protocol.frames import (
    CORRELATION_ID_AT,
    REQUEST_HEADER,
    Parts,
    RequestHeader,
    correlation_id_of,
    with_correlation_id,
)
from headrace.protocol.messages.produce import FLEXIBLE_FROM, PartitionResult, ProduceRequest, encode_response, row_at
from headrace.protocol.primitives import INT32

BATCH_BYTES_MAX = 16 * 1024 - 2  # the largest whose length takes two bytes as a varint
# Partitions per connection with a template. A producer of more partitions sends several of them in a request.
PLACES_MAX = 64
# Length of the bytes before the batch: a client id and a topic name of ordinary lengths.
SAID_BYTES_MAX = 1024
# A connection whose requests keep changing in structure gains nothing, and each change has a small cost.
SUBJECTS_MAX = 16
# First version whose response has the log start offset and whose requests allow every codec.
VERSION_MIN = 7

_TAIL = b"\x00\x00\x00"  # no tagged fields of the partition, the topic and the request
_NUMBERS = Struct(">qqq")
_BEFORE_NUMBERS = 6  # bytes of partition index and error code


class ProduceTemplate:
    """A repeated request: topic, partition, acks and timeout, with the response to it."""

    __slots__ = ("_numbers_at", "_reply", "acks", "index", "timeout_ms", "topic", "version")

    def __init__(self, version: int, request: ProduceRequest) -> None:
        ((self.topic, ((self.index, _),)),) = request.topics
        self.version, self.acks, self.timeout_ms = version, request.acks, request.timeout_ms
        parts = encode_response(version, 0, [(self.topic, [PartitionResult(self.index)])])
        self._reply = b"".join(parts)  # type: ignore[arg-type]  # what is encoded here is bytes
        self._numbers_at = row_at(version, self.topic) + _BEFORE_NUMBERS

    def reply(self, correlation_id: int, base_offset: int, append_time_ms: int, log_start_offset: int) -> bytearray:
        """Returns the response for a batch that was appended."""
        reply = with_correlation_id(self._reply, correlation_id)
        _NUMBERS.pack_into(reply, self._numbers_at, base_offset, append_time_ms, log_start_offset)
        return reply

    def replies(self, rows: Iterable[tuple[int, int, int, int]]) -> Parts:
        """Returns several responses as one part."""
        return (b"".join([self.reply(*row) for row in rows]),)


class ProduceTemplates:
    """The templates of one connection."""

    __slots__ = ("_api", "_flexible", "_places", "_said_until", "_subjects")

    def __init__(self) -> None:
        self._api = b""
        self._said_until = 0
        self._flexible = False
        self._places: dict[bytes, ProduceTemplate] = {}
        self._subjects = 0

    def learn(self, frame: memoryview, header: RequestHeader, request: ProduceRequest) -> None:
        """Adds a template for a request that has been parsed, if the fast path can recognize it."""
        records = _single_batch(header, request)
        if records is None or self._subjects > SUBJECTS_MAX:
            return
        flexible = header.version >= FLEXIBLE_FROM
        length_bytes = 4 if not flexible else 1 if len(records) < 0x7F else 2
        said_until = len(frame) - (len(_TAIL) if flexible else 0) - len(records) - length_bytes
        if said_until > SAID_BYTES_MAX:
            return
        api = bytes(frame[:CORRELATION_ID_AT])
        if (api, said_until) != (self._api, self._said_until):
            self._api, self._said_until, self._flexible = api, said_until, flexible
            self._places = {}
            self._subjects += 1
        elif len(self._places) >= PLACES_MAX:
            self._places = {}
        said = bytes(frame[REQUEST_HEADER.size : said_until])
        self._places[said] = ProduceTemplate(header.version, request)
        found = self.recognise(frame)
        # the request has tagged fields, so that its parts are at other positions
        if found is None or found[2] != records:
            del self._places[said]

    def recognise(self, frame: memoryview) -> tuple[ProduceTemplate, int, memoryview] | None:
        """Returns template, correlation id and batch of a repeated request; None for any other."""
        position = self._said_until
        if frame[:CORRELATION_ID_AT] != self._api or len(frame) < position + 4:
            return None
        place = self._places.get(bytes(frame[REQUEST_HEADER.size : position]))
        if place is None:
            return None
        if self._flexible:
            length, position = frame[position], position + 1
            if length > 0x7F:
                following, position = frame[position], position + 1
                if following > 0x7F:
                    return None
                length = length & 0x7F | following << 7
            end = position + length - 1
            if frame[end:] != _TAIL:
                return None
        else:
            end = position + 4 + INT32.unpack_from(frame, position)[0]
            position += 4
            if end != len(frame):
                return None
        if end <= position:
            return None
        return place, correlation_id_of(frame), frame[position:end]

    def recognise_run(
        self, view: memoryview, position: int, end: int, most: int
    ) -> tuple[ProduceTemplate, list[tuple[int, memoryview]], int] | None:
        """Parses consecutive requests of one template from `position` on.

        Returns them and the position of the next request.

        A request is its correlation id and its batch. Returns None unless there are at least two.
        """
        place: ProduceTemplate | None = None
        requests: list[tuple[int, memoryview]] = []
        while len(requests) < most and end - position >= 4:
            after = position + 4 + INT32.unpack_from(view, position)[0]
            found = self.recognise(view[position + 4 : after]) if position < after <= end else None
            if found is None or (found[0] is not place and place is not None):
                break
            place = found[0]
            requests.append(found[1:])
            position = after
        return (place, requests, position) if place is not None and len(requests) > 1 else None


def _single_batch(header: RequestHeader, request: ProduceRequest) -> memoryview | None:
    if header.version < VERSION_MIN or request.transactional_id is not None or request.acks == 0:
        return None
    if len(request.topics) != 1 or len(request.topics[0][1]) != 1:
        return None
    records = request.topics[0][1][0][1]
    return records if records is not None and 0 < len(records) <= BATCH_BYTES_MAX else None
