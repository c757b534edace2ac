"""What happens in the background: timeouts, checkpoints, expiry, and the care for the logs.

Work is written as generators of small steps. They run on the loop a slice at a time, so that no request waits for
them; where the disk is what takes the time, a thread waits for it instead.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

from headrace.broker.handlers.produce import ProduceHandler
from headrace.broker.log_keeper import LogKeeper
from headrace.broker.slices import in_slices
from headrace.model.errors import HeadraceError
from headrace.model.ids import TopicPartition

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

log = logging.getLogger(__name__)

# Produce timeouts are seconds long; looking once a second is precise enough and costs nothing.
TIMEOUT_CHECK_S = 1.0


class Housekeeper:
    def __init__(self, broker: "Broker", produce: ProduceHandler) -> None:
        self._broker = broker
        self._produce = produce
        self._keeper = LogKeeper(broker)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        settings = self._broker.settings
        self._every(TIMEOUT_CHECK_S, self._expire_produce_waits)
        self._every(settings.integer("log.flush.offset.checkpoint.interval.ms") / 1000, self._checkpoint)
        self._every(settings.integer("log.retention.check.interval.ms") / 1000, self._keeper.apply_retention)
        self._every(settings.integer("log.scrub.interval.ms") / 1000, self._keeper.scrub)
        if settings.flag("log.cleaner.enable"):
            self._every(settings.integer("log.cleaner.backoff.ms") / 1000, self._keeper.compact)
        self._every(settings.integer("producer.id.expiration.check.interval.ms") / 1000, self._expire_producers)

    def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(self._repeat(seconds, work), name=work.__name__))

    async def _repeat(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await work()
            except HeadraceError as error:
                log.error("%s: %s", work.__name__, error)
            except Exception:
                log.exception("%s failed; it is tried again in %s s", work.__name__, seconds)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _expire_produce_waits(self) -> None:
        self._produce.expire(self._broker.clock.monotonic_ms())

    async def _checkpoint(self) -> None:
        """Write down up to where the logs are on disk, so that a crash costs little reading."""
        await in_slices(self._note_recovery_points())
        await asyncio.to_thread(self._broker.log_dir.write_recovery_points)

    def _note_recovery_points(self) -> Iterator[None]:
        for partition in self._broker.partitions.all():
            partition.sync_in_background()
            self._broker.log_dir.note(TopicPartition(partition.topic, partition.index), partition.log)
            yield

    async def _expire_producers(self) -> None:
        await in_slices(self._forget_silent_producers())

    def _forget_silent_producers(self) -> Iterator[None]:
        expiration_ms = self._broker.settings.integer("producer.id.expiration.ms")
        for partition in self._broker.partitions.all():
            partition.log.producers.expire(self._broker.clock.wall_ms(), expiration_ms)
            yield
