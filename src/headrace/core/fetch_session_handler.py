"""Fetch sessions (KIP-227), on the follower's side: which partitions the next request names.

Pure; performs no I/O. The leader's side is `core/fetch_session.py`.
"""

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from headrace.protocol.messages.replica_fetch import WantedPartition

Key = tuple[UUID, int]
EPOCH_MAX = 2**31 - 1


class News(NamedTuple):
    session_id: int
    session_epoch: int
    wanted: dict[Key, WantedPartition]
    forgotten: list[Key]


class FetchSessionHandler:
    def __init__(self) -> None:
        self._id = 0
        self._epoch = 0  # a new session
        self._told: dict[Key, WantedPartition] = {}

    def news(self, wanted: Mapping[Key, WantedPartition]) -> News:
        """Returns the changes to send, so that the leader's session matches `wanted`."""
        told = self._told if self._epoch else {}
        changed = {key: one for key, one in wanted.items() if told.get(key) != one}
        forgotten = [key for key in told if key not in wanted]
        self._told = dict(wanted)
        return News(self._id, self._epoch, changed, forgotten)

    def answered(self, session_id: int) -> None:
        """Handles a successful response.

        Session id 0 means that the leader keeps no session, so every request is a full one.
        """
        self._id = session_id
        if session_id == 0:
            self._epoch = 0
        else:
            self._epoch = 1 if self._epoch == EPOCH_MAX else self._epoch + 1

    def forget(self) -> None:
        """Discards the session: the next request is a full one."""
        self._id = self._epoch = 0
        self._told = {}
