"""Polls every member of the process from one timer, again and again, while there is one."""

import asyncio
from typing import Protocol

# How long a record may lie in librdkafka before a reader who waits gets it.
POLL_INTERVAL_S = 0.01
# Members that have not had a record for this many rounds are asked less often.
QUIET_ROUNDS = 50
QUIET_EVERY = 5


class Polled(Protocol):
    quiet_rounds: int

    def pump(self) -> None: ...


class Poller:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._members: list[Polled] = []
        self._timer: asyncio.TimerHandle | None = None
        self._round = 0

    def add(self, member: Polled) -> None:
        self._members.append(member)
        if self._timer is None:
            self._timer = self._loop.call_later(POLL_INTERVAL_S, self._poll_all)

    def remove(self, member: Polled) -> None:
        if member in self._members:
            self._members.remove(member)

    def _poll_all(self) -> None:
        self._round += 1
        for number, member in enumerate(self._members):
            if member.quiet_rounds < QUIET_ROUNDS or (self._round + number) % QUIET_EVERY == 0:
                member.pump()
        self._timer = self._loop.call_later(POLL_INTERVAL_S, self._poll_all) if self._members else None
