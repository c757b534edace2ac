"""Retries partitions that could not be opened or created because disk space, descriptors or memory were short.

No other error is retried. Such a failed open or create writes nothing that a second one does not check again. Other
errors last until the next start: a failed sync must not be followed by a read of the same pages, which succeeds from
the page cache and proves nothing about the disk.
"""

from typing import TYPE_CHECKING

from headrace.core.image.deltas import PartitionsChanged

if TYPE_CHECKING:
    from headrace.broker.server import Broker

LOOK_S = 1.0
# While the disk is still short of space: an attempt may check a whole segment before it fails.
SHORT_LOOKS_PER_ATTEMPT = 30


class Reopening:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._looks = 0

    async def look(self) -> None:
        """Called every LOOK_S. Opens what waits for disk space, at a slower pace while the disk is full.

        The attempt is delivered as an event of the topic: in order with changes of its metadata, in a thread, and
        followed by everyone who uses the partition.
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
