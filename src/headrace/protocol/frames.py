"""The envelope of every message: request header in, response header out.

    request    size i32 │ api key i16 │ version i16 │ correlation id i32 │ client id │ tags? │ body
    response   size i32 │ correlation id i32 │ tags? │ body

A reply is a list of parts: bytes, and references to records that lie in a file and are sent from there.
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

# A number from the wire to its API: making an enum member of it costs more than parsing the header.
_BY_NUMBER = {int(api): (api, versions) for api, versions in SERVED.items()}


class RecordsRef(Protocol):
    """Batches that the reply carries without looking at them."""

    @property
    def length(self) -> int: ...


Part: TypeAlias = bytes | bytearray | memoryview | RecordsRef
Parts: TypeAlias = Sequence[Part]


# What a NamedTuple's own constructor ends up calling, at half its price; every request has a header.
_new_tuple = tuple.__new__


class RequestHeader(NamedTuple):
    api: ApiKey
    version: int
    correlation_id: int
    client_id: str


def parse_request_header(frame: memoryview) -> tuple[RequestHeader, Reader]:
    """The header, and a reader that stands at the body."""
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
    """A version that we do not speak, of an API that we serve. Only ApiVersions has an answer to that."""

    def __init__(self, api: ApiKey, version: int, correlation_id: int, client_id: str) -> None:
        super().__init__(f"{api.name} v{version} is not served")
        self.api, self.version, self.correlation_id, self.client_id = api, version, correlation_id, client_id


def response_start(api: ApiKey, version: int, correlation_id: int, body_bytes: int) -> bytes:
    """Size and response header of a reply whose body has `body_bytes`."""
    if response_header_version(api, version):
        return _RESPONSE_HEADER.pack(body_bytes + 5, correlation_id) + EMPTY_TAGS
    return _RESPONSE_HEADER.pack(body_bytes + 4, correlation_id)


def response(api: ApiKey, version: int, correlation_id: int, body: bytes) -> list[Part]:
    """A whole reply in one piece."""
    return [response_start(api, version, correlation_id, len(body)) + body]


# For requests that are recognised without being read (produce_fast_path.py, offset_commit_fast_path.py).


def correlation_id_of(frame: memoryview) -> int:
    number: int = INT32.unpack_from(frame, CORRELATION_ID_AT)[0]
    return number


def with_correlation_id(reply: bytes, correlation_id: int) -> bytearray:
    """A copy of an earlier reply, as the answer to another request."""
    copy = bytearray(reply)
    INT32.pack_into(copy, CORRELATION_ID_AT, correlation_id)
    return copy
