"""One blocking connection to one broker, for the few requests that librdkafka has no call for.

Decides framing and correlation; messages come from kio. Meant for tools that ask one thing and go; nothing here
retries, and no thread is started.
"""

import io
import socket
from struct import Struct
from types import TracebackType
from typing import Any, TypeVar

from headrace.client.factory import CLIENT_ID, BrokerUnreachable
from headrace.model.errors import ProtocolError

# What a tool asks for is answered in a few megabytes; more means that the peer speaks another protocol.
RESPONSE_BYTES_MAX = 64 * 1024 * 1024
_LENGTH = Struct(">i")
_CHUNK_BYTES = 256 * 1024

Response = TypeVar("Response")


class Connection:
    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        try:
            self._socket = socket.create_connection((host, port), timeout=timeout_s)
        except OSError as error:
            raise BrokerUnreachable(f"no broker answers at {host}:{port} ({error.strerror or error})") from error
        self._correlation_id = 0

    def call(self, request: Any, response_type: type[Response]) -> Response:
        """Send a kio request and read its response."""
        from kio.serial import entity_reader
        from kio.serial.errors import DecodeError

        body = self.exchange(request, response_type)
        try:
            response, _ = entity_reader(response_type)(body, 0)  # type: ignore[type-var]
        except (DecodeError, IndexError, ValueError) as error:
            raise ProtocolError(f"the broker's answer makes no sense: {error}") from error
        return response

    def exchange(self, request: Any, response_type: type[Any]) -> bytes:
        """The same, for a response that the caller reads itself: its body, without the header."""
        from kio.serial import entity_reader
        from kio.serial.errors import DecodeError

        self._correlation_id += 1
        self._socket.sendall(encode_request(request, self._correlation_id))
        frame = self._read_frame()
        try:
            header, used = entity_reader(response_type.__header_schema__)(frame, 0)
        except (DecodeError, IndexError, ValueError) as error:
            raise ProtocolError(f"the broker's answer makes no sense: {error}") from error
        if header.correlation_id != self._correlation_id:
            raise ProtocolError("the broker answered another request than was asked")
        return frame[used:]

    def _read_frame(self) -> bytes:
        (length,) = _LENGTH.unpack(self._read_exactly(_LENGTH.size))
        if not 0 < length <= RESPONSE_BYTES_MAX:
            raise ProtocolError(f"the peer announces {length} bytes: it does not speak Kafka's protocol")
        return self._read_exactly(length)

    def _read_exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self._socket.recv(min(_CHUNK_BYTES, count - len(parts)))
            if not part:
                raise BrokerUnreachable("the broker closed the connection before it answered")
            parts += part
        return bytes(parts)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> "Connection":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def encode_request(request: Any, correlation_id: int, client_id: str = CLIENT_ID) -> bytes:
    """A kio request with its header, as it goes over the wire."""
    from kio.serial import entity_writer
    from kio.static.primitive import i16, i32

    header_type = request.__header_schema__
    header = header_type(
        request_api_key=i16(request.__api_key__),
        request_api_version=i16(request.__version__),
        correlation_id=i32(correlation_id),
        client_id=client_id,
    )
    buffer = io.BytesIO()
    entity_writer(header_type)(buffer, header)
    entity_writer(type(request))(buffer, request)
    body = buffer.getvalue()
    return _LENGTH.pack(len(body)) + body
