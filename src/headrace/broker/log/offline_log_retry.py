"""Retries partitions that could not be opened or created because disk space, descriptors or memory were short.

No other error is retried. After such an error, nothing has been written that a second attempt does not verify. Other
errors last until the next start: after a failed sync, a read of the same pages would succeed from the page cache,
which proves nothing about the disk.
"""

from typing import TYPE_CHECKING

from headrace.core.image.deltas import PartitionsChanged

if TYPE_CHECKING:
    from headrace.broker.server import Broker

LOOK_S = 1.0
# Rate while disk space is still short: an attempt may verify a whole segment before it fails.
SHORT_LOOKS_PER_ATTEMPT = 30


class Reopening:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._looks = 0

    async def look(self) -> None:
        """Opens partitions that wait for disk space. Called every LOOK_S; attempts are rarer while the disk is full.

        The attempt is delivered as a metadata event of the topic. It is thereby ordered with changes of the topic's
        metadata, runs its disk operations in a thread, and is processed by every component that uses the partition.
        """
        waiting = self._broker.partitions.waiting_for_space()
        if not waiting:
            self._looks = 0
            return
        self._looks += 1
        is_due = self._looks % SHORT_LOOKS_PER_ATTEMPT == 1
        if not is_due and self._broker.reserve.is_short(was_short=False):
            return
        topics = [self._broker.image.topics[name] for name in sorted(waiting) if name in self._broker.image.topics]
        await self._broker.controller.deliver_again([PartitionsChanged(topic, ()) for topic in topics])
