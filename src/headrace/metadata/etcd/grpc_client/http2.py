"""HTTP/2 settings and keepalive pings of the gRPC client.

HTTP/2 as a client of etcd speaks it: h2's state machine with our settings. No I/O.

Whether the other side is still there: a question when it has been silent for long, and an end if none is answered.

Decides when to ask and when to give up; what is asked, and whether anybody waits for answers, it is told.
"""

import asyncio
from collections.abc import Callable

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes, Settings

ALPN = "h2"
# How much may be on its way to us, in a stream and in all of them together: more than a fast network holds, so that a
# node that loads all facts never waits.
WINDOW_BYTES = 4 * 1024 * 1024
_WINDOW_BYTES_AT_FIRST = 65_535  # of a connection; only an update can change it
_PING = b"headrace"  # eight bytes, whichever


class Http2(H2Connection):
    # By this memory frames that were under way when we reset their stream are told from nonsense. The default of
    # 65,536 streams would take megabytes after some hours.
    MAX_CLOSED_STREAMS = 1024

    def __init__(self) -> None:
        super().__init__(H2Configuration(client_side=True, header_encoding=None))
        # Set before the first frame, so that they hold for it and not only when the peer has confirmed them.
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
        """How much data can be sent in the next frame; may be negative when the peer has narrowed its windows."""
        return min(self.local_flow_control_window(stream_id), self.max_outbound_frame_size)

    def acknowledge(self, received_bytes: int) -> None:
        """For the connection as a whole: one stream that is not read must not stop the others."""
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
        """Whatever it was: it is alive."""
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
