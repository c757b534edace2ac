"""HTTP/2 settings and keepalive pings of the gRPC client.

The settings apply to h2's state machine, which performs no I/O. The keepalive sends a ping after a time without
received data, and gives up the connection if no data arrives after it. The channel provides the functions for that.
"""

import asyncio
from collections.abc import Callable

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes, Settings

ALPN = "h2"
# Bytes in flight to this client, per stream and in total: more than the bandwidth-delay product of a fast network, so
# that a node that loads all cluster metadata never waits.
WINDOW_BYTES = 4 * 1024 * 1024
_WINDOW_BYTES_AT_FIRST = 65_535  # of a connection; only a WINDOW_UPDATE can change it
_PING = b"headrace"  # any eight bytes


class Http2(H2Connection):
    # h2 remembers closed streams to distinguish frames that were in flight when a stream was reset from protocol
    # errors. Its default of 65,536 streams would take megabytes after some hours.
    MAX_CLOSED_STREAMS = 1024

    def __init__(self) -> None:
        super().__init__(H2Configuration(client_side=True, header_encoding=None))
        # Set before the first frame, so that they apply to it and not only after the peer has acknowledged them.
        self.local_settings = Settings(
            client=True,
            initial_values={
                SettingCodes.ENABLE_PUSH: 0,
                SettingCodes.INITIAL_WINDOW_SIZE: WINDOW_BYTES,
                SettingCodes.MAX_HEADER_LIST_SIZE: self.DEFAULT_MAX_HEADER_LIST_SIZE,
            },
        )
        self._unacknowledged_bytes = 0

    def begin(self) -> None:
        self.initiate_connection()
        self.increment_flow_control_window(WINDOW_BYTES - _WINDOW_BYTES_AT_FIRST)

    def ask_for_a_sign(self) -> None:
        self.ping(_PING)

    @property
    def has_room_for_a_stream(self) -> bool:
        return self.open_outbound_streams < self.remote_settings.max_concurrent_streams

    def room_in_a_frame(self, stream_id: int) -> int:
        """Returns how much data the next frame can have; negative if the peer has reduced its windows."""
        return min(self.local_flow_control_window(stream_id), self.max_outbound_frame_size)

    def acknowledge(self, received_bytes: int) -> None:
        """Opens the window of the connection: one stream that is not read must not stop the others."""
        self._unacknowledged_bytes += received_bytes
        if self._unacknowledged_bytes >= WINDOW_BYTES // 2:
            self.increment_flow_control_window(self._unacknowledged_bytes)
            self._unacknowledged_bytes = 0


class KeepalivePing:
    def __init__(
        self,
        *,
        ask_after_seconds: float,
        answer_seconds_max: float,
        is_wanted: Callable[[], bool],
        ask: Callable[[], None],
        give_up: Callable[[str], None],
    ) -> None:
        self._ask_after_seconds = ask_after_seconds
        self._answer_seconds_max = answer_seconds_max
        self._is_wanted = is_wanted
        self._ask = ask
        self._give_up = give_up
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._timer = self._loop.call_later(ask_after_seconds, self._look)

    def heard(self) -> None:
        """Records that the peer is alive, on any received data."""
        self._heard_at = self._loop.time()

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        remaining = self._heard_at + self._ask_after_seconds - self._loop.time()
        if remaining > 0:
            self._timer = self._loop.call_later(remaining, self._look)
        elif not self._is_wanted():
            self._timer = self._loop.call_later(self._ask_after_seconds, self._look)
        else:
            self._timer = self._loop.call_later(self._answer_seconds_max, self._judge, self._heard_at)
            self._ask()

    def _judge(self, heard_before: float) -> None:
        if self._heard_at == heard_before:
            self._give_up(f"no response to a ping for {self._answer_seconds_max:g} s")
        else:
            self._look()
