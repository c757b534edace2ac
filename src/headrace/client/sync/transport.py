"""Blocking connection to one broker, for requests that librdkafka lacks and for raw batches.

Implements framing, correlation ids and the SASL handshake; messages are kio's, or bytes of the caller. Performs no
retries and starts no thread.
"""

import io
import socket
from struct import Struct
from types import TracebackType
from typing import Any, TypeVar

from headrace.client.core.config import SecurityConfig
from headrace.client.librdkafka import CLIENT_ID, BrokerUnreachable
from headrace.model.errors import ProtocolError

# The largest response is a fetch: its limit, and one batch that may exceed it. A larger frame is not Kafka's protocol.
RESPONSE_BYTES_MAX = 256 * 1024 * 1024
_LENGTH = Struct(">i")
_REQUEST_START = Struct(">ihhih")  # size, API key, version, correlation id, length of the client id

Response = TypeVar("Response")


class AuthenticationError(ConnectionError):
    """The broker rejected the credentials or the mechanism; not retriable."""


class Connection:
    def __init__(
        self,
        host: str,
        port: int,
        timeout_s: float,
        *,
        security: SecurityConfig | None = None,
        client_id: str = CLIENT_ID,
    ) -> None:
        self._client_id = client_id
        self._correlation_id = 0
        try:
            plain = socket.create_connection((host, port), timeout=timeout_s)
        except OSError as error:
            raise BrokerUnreachable(f"no broker responds at {host}:{port} ({error.strerror or error})") from error
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = security.wrap(plain, host) if security else plain
            if security and security.uses_sasl:
                self._authenticate(security)
        except BaseException:
            plain.close()
            raise

    def _authenticate(self, security: SecurityConfig) -> None:
        from kio.schema.sasl_authenticate.v1.request import SaslAuthenticateRequest
        from kio.schema.sasl_authenticate.v1.response import SaslAuthenticateResponse
        from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
        from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse

        offered = self.call(SaslHandshakeRequest(mechanism=security.mechanism), SaslHandshakeResponse)
        if offered.error_code:
            raise AuthenticationError(
                f"the broker does not take {security.mechanism}; it offers {', '.join(offered.mechanisms)}"
            )
        token: bytes | None
        token, step = security.exchange()
        while token is not None:
            answer = self.call(SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse)
            if answer.error_code:
                raise AuthenticationError(answer.error_message or answer.error_code.name)
            token = step(answer.auth_bytes)

    def call(self, request: Any, response_type: type[Response]) -> Response:
        """Sends one of kio's requests and returns the response."""
        from kio.serial import entity_reader
        from kio.serial.errors import DecodeError

        body = self.exchange(request, response_type)
        try:
            response, _ = entity_reader(response_type)(body, 0)  # type: ignore[type-var]
        except (DecodeError, IndexError, ValueError) as error:
            raise ProtocolError(f"malformed response: {error}") from error
        return response

    def exchange(self, request: Any, response_type: type[Any]) -> bytes:
        """Like `call`, for a response that the caller decodes: returns its body, without the header."""
        from kio.serial import entity_reader
        from kio.serial.errors import DecodeError

        self._correlation_id += 1
        self._socket.sendall(encode_request(request, self._correlation_id, self._client_id))
        frame = bytes(self._read_frame())
        try:
            header, used = entity_reader(response_type.__header_schema__)(frame, 0)
        except (DecodeError, IndexError, ValueError) as error:
            raise ProtocolError(f"malformed response: {error}") from error
        if header.correlation_id != self._correlation_id:
            raise ProtocolError("the response has an unexpected correlation id")
        return frame[used:]

    def send(self, api_key: int, version: int, body: bytes) -> int:
        """Sends a request of a version without tagged fields; returns its correlation id for `receive`."""
        self._correlation_id += 1
        name = self._client_id.encode()
        start = _REQUEST_START.pack(
            _REQUEST_START.size - 4 + len(name) + len(body), api_key, version, self._correlation_id, len(name)
        )
        self._socket.sendall(b"".join((start, name, body)))
        return self._correlation_id

    def receive(self, correlation_id: int) -> memoryview:
        """Returns the body of the response to `send`. Responses must be received in the order of the requests."""
        frame = self._read_frame()
        if len(frame) < _LENGTH.size or _LENGTH.unpack_from(frame)[0] != correlation_id:
            raise ProtocolError("the response has an unexpected correlation id")
        return frame[_LENGTH.size :]

    def _read_frame(self) -> memoryview:
        (length,) = _LENGTH.unpack(self._read_exactly(_LENGTH.size))
        if not 0 < length <= RESPONSE_BYTES_MAX:
            raise ProtocolError(f"the peer announces {length} bytes: it does not speak Kafka's protocol")
        return self._read_exactly(length)

    def _read_exactly(self, count: int) -> memoryview:
        view = memoryview(bytearray(count))
        filled = 0
        while filled < count:
            received = self._socket.recv_into(view[filled:])
            if not received:
                raise BrokerUnreachable("the broker closed the connection before it sent a response")
            filled += received
        return view

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> "Connection":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def encode_request(request: Any, correlation_id: int, client_id: str = CLIENT_ID) -> bytes:
    """Encodes one of kio's requests with its header and size."""
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
