"""A follower's side of a fetch session: what to name in the next request, so that the leader knows the rest (KIP-227).

Decides only which partitions are news. The leader's side is `core/fetch_session.py`.
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
        """What to send so that the leader knows everything that is wanted now."""
        told = self._told if self._epoch else {}
        changed = {key: one for key, one in wanted.items() if told.get(key) != one}
        forgotten = [key for key in told if key not in wanted]
        self._told = dict(wanted)
        return News(self._id, self._epoch, changed, forgotten)

    def answered(self, session_id: int) -> None:
        """The leader has kept up; id 0 means that it keeps no session, so everything is told each time."""
        self._id = session_id
        if session_id == 0:
            self._epoch = 0
        else:
            self._epoch = 1 if self._epoch == EPOCH_MAX else self._epoch + 1

    def forget(self) -> None:
        """Whatever the leader knows, the next request starts over."""
        self._id = self._epoch = 0
        self._told = {}
