"""Headers of requests and responses.

    request    size i32 │ api key i16 │ version i16 │ correlation id i32 │ client id │ tags? │ body
    response   size i32 │ correlation id i32 │ tags? │ body

A response is a list of parts: bytes, and references to records in a file, which are sent from the file.
"""

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple, Protocol, TypeAlias

from headrace.model.errors import ProtocolError, UnsupportedVersion
from headrace.protocol.api import SERVED, ApiKey, response_header_version
from headrace.protocol.primitives import EMPTY_TAGS, INT32, Reader

REQUEST_HEADER = Struct(">hhi")
CORRELATION_ID_AT = 4  # in a request without its size, and in a response with it
_RESPONSE_HEADER = Struct(">ii")

# API by its number in a request: creating an enum member would take longer than parsing the header.
_BY_NUMBER = {int(api): (api, versions) for api, versions in SERVED.items()}


class RecordsRef(Protocol):
    """Batches in a file that the response includes without reading them."""

    @property
    def length(self) -> int: ...


Part: TypeAlias = bytes | bytearray | memoryview | RecordsRef
Parts: TypeAlias = Sequence[Part]


# What a NamedTuple's own constructor calls, in half its time; every request has a header.
_new_tuple = tuple.__new__


class RequestHeader(NamedTuple):
    api: ApiKey
    version: int
    correlation_id: int
    client_id: str


def parse_request_header(frame: memoryview) -> tuple[RequestHeader, Reader]:
    """Returns the header, and a reader positioned at the body."""
    if len(frame) < REQUEST_HEADER.size:
        raise ProtocolError(f"a request of {len(frame)} bytes is too short for its header")
    key, version, correlation_id = REQUEST_HEADER.unpack_from(frame)
    known = _BY_NUMBER.get(key)
    if known is None:
        raise ProtocolError(f"API {key} is not served here")
    api, served = known
    reader = Reader(frame, REQUEST_HEADER.size)
    client_id = reader.nullable_string() or ""
    if not served.lowest <= version <= served.highest:
        raise UnsupportedVersionFor(api, version, correlation_id, client_id)
    if version >= served.first_flexible:
        reader.flexible = True
        reader.skip_tags()
    return _new_tuple(RequestHeader, (api, version, correlation_id, client_id)), reader


class UnsupportedVersionFor(UnsupportedVersion):
    """The API is served, but not in this version. Only ApiVersions has a response for that."""

    def __init__(self, api: ApiKey, version: int, correlation_id: int, client_id: str) -> None:
        super().__init__(f"{api.name} v{version} is not served")
        self.api, self.version, self.correlation_id, self.client_id = api, version, correlation_id, client_id


def response_start(api: ApiKey, version: int, correlation_id: int, body_bytes: int) -> bytes:
    """Returns size and response header of a response with a body of `body_bytes`."""
    if response_header_version(api, version):
        return _RESPONSE_HEADER.pack(body_bytes + 5, correlation_id) + EMPTY_TAGS
    return _RESPONSE_HEADER.pack(body_bytes + 4, correlation_id)


def response(api: ApiKey, version: int, correlation_id: int, body: bytes) -> list[Part]:
    """Returns a complete response in one part."""
    return [response_start(api, version, correlation_id, len(body)) + body]


# For requests on a fast path, which are not parsed (produce_fast_path.py, offset_commit_fast_path.py).


def correlation_id_of(frame: memoryview) -> int:
    number: int = INT32.unpack_from(frame, CORRELATION_ID_AT)[0]
    return number


def with_correlation_id(reply: bytes, correlation_id: int) -> bytearray:
    """Returns a copy of an earlier response with another correlation id."""
    copy = bytearray(reply)
    INT32.pack_into(copy, CORRELATION_ID_AT, correlation_id)
    return copy
