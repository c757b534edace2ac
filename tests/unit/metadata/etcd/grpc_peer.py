"""The other end of a gRPC channel: h2's server in place of a socket. It hears at once, and speaks when told to."""

import asyncio
from typing import Any, TypeVar

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, PingReceived
from h2.settings import SettingCodes, Settings

from headrace.metadata.etcd.grpc_client.channel import Channel
from headrace.metadata.etcd.grpc_client.framing import message_frame

OK = [("grpc-status", "0")]
METHOD = "/service/Method"
Kind = TypeVar("Kind", bound=Event)


class Peer(asyncio.Transport):
    def __init__(self, *, answers_pings: bool = True, streams_max: int = 100) -> None:
        super().__init__()
        self.http = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self.http.local_settings = Settings(
            client=False, initial_values={SettingCodes.MAX_CONCURRENT_STREAMS: streams_max}
        )
        self.http.initiate_connection()
        self.heard: list[Event] = []
        self.takes_data = True  # else its windows fill up
        self.is_closed = False
        self._answers_pings = answers_pings
        self._channel: Channel

    def connected(self, *, ping_after_seconds: float = 60, ping_answer_seconds_max: float = 60) -> Channel:
        self._channel = Channel("peer:1", ping_after_seconds, ping_answer_seconds_max)
        self._channel.connection_made(self)
        self.speak()
        return self._channel

    def all(self, kind: type[Kind]) -> list[Kind]:
        return [event for event in self.heard if isinstance(event, kind)]

    def data(self, stream_id: int) -> bytes:
        return b"".join(event.data for event in self.all(DataReceived) if event.stream_id == stream_id)

    def accept(self, stream_id: int, status: int = 200) -> None:
        self.http.send_headers(stream_id, [(":status", str(status)), ("content-type", "application/grpc")])
        self.speak()

    def send(self, stream_id: int, data: bytes) -> None:
        self.http.send_data(stream_id, data)
        self.speak()

    def end(self, stream_id: int, trailers: list[tuple[str, str]]) -> None:
        self.http.send_headers(stream_id, trailers, end_stream=True)
        self.speak()

    def answer(self, stream_id: int, message: bytes) -> None:
        self.accept(stream_id)
        self.send(stream_id, message_frame(message))
        self.end(stream_id, OK)

    def speak(self) -> None:
        self.say(self.http.data_to_send())

    def say(self, data: bytes) -> None:
        if data:
            self._channel.data_received(data)

    def hang_up(self) -> None:
        self._channel.eof_received()

    # As the channel sees it

    def write(self, data: Any) -> None:
        for event in self.http.receive_data(bytes(data)):
            self.heard.append(event)
            if isinstance(event, DataReceived) and self.takes_data:
                self.http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            if isinstance(event, PingReceived) and self._answers_pings:
                self.speak()

    def abort(self) -> None:
        self.is_closed = True
        asyncio.get_running_loop().call_soon(self._channel.connection_lost, None)

    def is_closing(self) -> bool:
        return self.is_closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default
