"""What this broker can still be relied on for, told to the others: copies that fail, a disk that is full.

A partition whose files cannot be used any more is left to other replicas: this one neither leads it nor counts as in
sync. A broker without room wants to lead nothing, as one that is about to stop: it would refuse what others can take.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.core.cluster.values import TopicImage
from headrace.model.errors import HeadraceError, StorageError

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.replication.session import BrokerSession

log = logging.getLogger(__name__)

# Often enough that clients who are refused find another leader while they still try.
LOOK_S = 0.5


class Health:
    def __init__(self, broker: "Broker", session: "BrokerSession") -> None:
        self._broker = broker
        self._session = session
        self._task: asyncio.Task[None] | None = None
        self._was_full = False

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="health")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self._look_at_copies()
                await self._look_at_disk()
            except HeadraceError as error:
                log.warning("the others cannot be told how this broker is: %s", error)
            except Exception:
                log.exception("this broker cannot look after itself")

    async def _look_at_copies(self) -> None:
        if not self._broker.partitions.has_failed:
            return
        failed = {topic.name: self._failed_of(topic) for topic in self._broker.image.topics.values()}
        wanted = {name: indexes for name, indexes in failed.items() if indexes}
        if wanted:
            await self._broker.controller.states.resign(wanted)

    def _failed_of(self, topic: TopicImage) -> list[int]:
        """Partitions that count on us, and cannot."""
        me = self._broker.node_id
        return [
            index
            for index, state in enumerate(topic.partitions)
            if me in (state.leader, *state.isr, *state.elr)
            and isinstance(self._broker.partitions.failure_of(topic.topic_id, index), StorageError)
        ]

    async def _look_at_disk(self) -> None:
        is_full = self._broker.reserve.is_short(self._was_full)
        if is_full != self._was_full:
            await self._session.say_leading(not is_full)
            self._was_full = is_full
            log.warning("this broker %s", "has no room and leaves leading to others" if is_full else "has room again")
