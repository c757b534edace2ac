"""Bytes to and from a broker without a client in between: for tests that send what no client would."""

import socket
from struct import Struct, pack, unpack_from

SECONDS_MAX = 20.0

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, CREATE_TOPICS = 0, 1, 2, 3, 18, 19

_INT32 = Struct(">i")


def string(text: str | None) -> bytes:
    return pack(">h", -1) if text is None else pack(">h", len(text.encode())) + text.encode()


def request(api: int, version: int, body: bytes = b"", correlation_id: int = 7) -> bytes:
    """A frame of an API in one of its inflexible versions."""
    content = pack(">hhi", api, version, correlation_id) + string("raw") + body
    return _INT32.pack(len(content)) + content


def produce_body(
    topic: str, records: bytes | None, *, partition: int = 0, acks: int = -1, timeout_ms: int = 10_000
) -> bytes:
    """Produce versions 3 to 8, one partition."""
    sized = pack(">i", -1) if records is None else pack(">i", len(records)) + records
    one_topic = string(topic) + pack(">ii", 1, partition) + sized
    return string(None) + pack(">hi", acks, timeout_ms) + pack(">i", 1) + one_topic


def fetch_body(topic: str, offset: int = 0, *, partition: int = 0, bytes_max: int = 1 << 20) -> bytes:
    """Fetch version 4, one partition, no waiting."""
    head = pack(">iiiib", -1, 0, 1, bytes_max, 0)
    return head + pack(">i", 1) + string(topic) + pack(">iiqi", 1, partition, offset, bytes_max)


class RawConnection:
    """One connection; closing it from the other side is an answer like any other."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), SECONDS_MAX)

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self) -> bytes:
        """The next frame, without its length."""
        (size,) = _INT32.unpack(self._exactly(4))
        return self._exactly(size)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            chunk = self._socket.recv(count - len(data))
            if not chunk:
                raise ConnectionResetError("the broker closed the connection")
            data += chunk
        return data

    def is_closed_by_peer(self) -> bool:
        """Waits for the end of the connection; False if an answer comes instead."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> "RawConnection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def produce_error(self, topic: str, records: bytes | None) -> tuple[int, int]:
        """Error code and base offset of a Produce with one partition."""
        self.send_produce(topic, records)
        return self.receive_produced(topic)

    def send_produce(self, topic: str, records: bytes | None, *, timeout_ms: int = 10_000) -> None:
        """In version 7, the first that knows zstd."""
        self.send(request(PRODUCE, 7, produce_body(topic, records, timeout_ms=timeout_ms)))

    def receive_produced(self, topic: str) -> tuple[int, int]:
        answer = self.receive()
        position = 4 + 4 + 2 + len(topic) + 4 + 4
        code, offset = unpack_from(">hq", answer, position)
        return code, offset

    def fetched(self, topic: str, offset: int = 0) -> bytes:
        """The records of a Fetch of one partition."""
        self.send_fetch(topic, offset)
        code, records = self.receive_fetched(topic)
        assert code == 0, f"fetch answered {code}"
        return records

    def send_fetch(self, topic: str, offset: int = 0) -> None:
        self.send(request(FETCH, 4, fetch_body(topic, offset)))

    def receive_fetched(self, topic: str) -> tuple[int, bytes]:
        """Error code and records."""
        answer = self.receive()
        # correlation id, throttle, topics; name, partitions; index, error, watermark, stable offset; aborted
        position = 4 + 4 + 4 + 2 + len(topic) + 4 + 4
        (code,) = unpack_from(">h", answer, position)
        position += 2 + 8 + 8
        (aborted,) = unpack_from(">i", answer, position)
        position += 4 + max(0, aborted) * 16
        (size,) = unpack_from(">i", answer, position)
        return code, answer[position + 4 : position + 4 + size]

    def create_topic(self, topic: str, configs: dict[str, str] | None = None) -> int:
        """Error code of a CreateTopics (version 2) with one partition."""
        entries = b"".join(string(name) + string(value) for name, value in (configs or {}).items())
        body = pack(">i", 1) + string(topic) + pack(">ih", 1, 1) + pack(">i", 0)
        body += pack(">i", len(configs or {})) + entries + pack(">i?", 10_000, False)
        self.send(request(CREATE_TOPICS, 2, body))
        answer = self.receive()
        (code,) = unpack_from(">h", answer, 4 + 4 + 4 + 2 + len(topic))
        return int(code)

    def is_served(self) -> bool:
        self.send(request(API_VERSIONS, 0, correlation_id=99))
        return self.receive()[:6] == pack(">ih", 99, 0)
