"""Scheduler of background work: timeouts, checkpoints, expiration, retention, compaction and scrubbing.

Work is written as generators of small steps, which run on the event loop in slices, so that requests do not wait for
it. Work that waits for the disk runs in a thread.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

from headrace.broker.handlers.data.produce import ProduceHandler
from headrace.broker.log.log_manager import LogManager
from headrace.broker.log.offline_log_retry import LOOK_S, Reopening
from headrace.broker.log.stray_directories import Strays
from headrace.broker.runtime.cooperative import run_in_slices
from headrace.model.errors import HeadraceError, StorageError
from headrace.model.ids import TopicPartition

if TYPE_CHECKING:
    from headrace.broker.server import Broker

log = logging.getLogger(__name__)

# Produce timeouts are seconds long. A check every second is precise enough, and its cost is negligible.
TIMEOUT_CHECK_S = 1.0
# One system call. Producers are rejected below the reserve, so preallocated bytes are freed within about 1 s.
SPACE_CHECK_S = 1.0


class Scheduler:
    def __init__(self, broker: "Broker", produce: ProduceHandler) -> None:
        self._broker = broker
        self._produce = produce
        self._keeper = LogManager(broker)
        self._reopening = Reopening(broker)
        self.strays = Strays(broker)
        self._tasks: list[asyncio.Task[object]] = []
        self._watermarks: dict[TopicPartition, int] = {}  # as last written

    def start(self) -> None:
        self._broker.partitions.removals.remove_left_over()
        settings = self._broker.settings
        self._every(TIMEOUT_CHECK_S, self._expire_produce_waits)
        self._every(LOOK_S, self._reopen)
        if not settings.in_memory:
            self._every(SPACE_CHECK_S, self._give_back_room)
        self._every(settings.integer("log.flush.offset.checkpoint.interval.ms") / 1000, self._checkpoint)
        if self._broker.membership is not None and not settings.in_memory:
            # A single broker needs no checkpoint: every record that recovery keeps is committed.
            watermarks_ms = settings.integer("replica.high.watermark.checkpoint.interval.ms")
            self._every(watermarks_ms / 1000, self._checkpoint_high_watermarks)
        self._every(settings.integer("log.retention.check.interval.ms") / 1000, self._keeper.apply_retention)
        self._every(settings.integer("log.scrub.interval.ms") / 1000, self._keeper.scrub)
        if not settings.in_memory:
            self._once(self.strays.look)  # so that the metrics contain them from the start
            self._every(settings.integer("log.retention.check.interval.ms") / 1000, self.strays.remove)
        if settings.flag("log.cleaner.enable"):
            self._every(settings.integer("log.cleaner.backoff.ms") / 1000, self._keeper.compact)
        self._every(settings.integer("producer.id.expiration.check.interval.ms") / 1000, self._expire_producers)

    def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(self._repeat(seconds, work), name=work.__name__))

    def _once(self, work: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(self._attempt(work), name=work.__name__))

    async def _repeat(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        last_error = ""
        while True:
            await asyncio.sleep(seconds)
            last_error = await self._attempt(work, last_error)

    async def _attempt(self, work: Callable[[], Awaitable[None]], last_error: str = "") -> str:
        """Runs the work. Returns the error of disk or metadata store, which is logged if it is not the last one."""
        try:
            await work()
        except (HeadraceError, FileNotFoundError) as error:
            if str(error) != last_error:  # a full disk fails every checkpoint: logged once, not every 5 s
                log.error("%s: %s", work.__name__, error)
            return str(error)
        except Exception:
            log.exception("%s failed", work.__name__)
            return last_error
        return ""

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _expire_produce_waits(self) -> None:
        self._produce.expire(self._broker.clock.monotonic_ms())

    async def _give_back_room(self) -> None:
        """Frees the preallocated bytes of all logs while disk space is short."""
        if self._broker.reserve.is_short(was_short=False):
            await run_in_slices(self._give_back_room_of_logs())

    def _give_back_room_of_logs(self) -> Iterator[None]:
        for partition in self._broker.partitions.all():
            if partition.failure is None:
                try:
                    partition.log.trim_preallocation()
                except StorageError as error:
                    partition.append_failed(error)
            yield

    async def _reopen(self) -> None:
        await self._reopening.look()

    async def _checkpoint(self) -> None:
        """Writes the recovery checkpoints, which limit what recovery reads after a crash."""
        self._broker.partitions.write_topic_ids()
        await run_in_slices(self._note_recovery_points())
        await asyncio.to_thread(self._broker.log_dir.write_recovery_points)
        await self._broker.partitions.flush_policies.forget_synced()

    async def _checkpoint_high_watermarks(self) -> None:
        """Writes the high watermarks, from which a new leader starts after a crash. Otherwise it would report 0."""
        await run_in_slices(self._note_high_watermarks())
        rows = self._broker.log_dir.high_watermarks()
        if rows != self._watermarks:
            await asyncio.to_thread(self._broker.log_dir.write_high_watermarks)
            self._watermarks = rows

    def _note_high_watermarks(self) -> Iterator[None]:
        for partition in self._broker.partitions.all():
            if partition.failure is not None:
                continue  # dropped since this run began: its name may belong to another topic now
            self._broker.log_dir.note_high_watermark(
                TopicPartition(partition.topic, partition.index), partition.high_watermark
            )
            yield

    def _note_recovery_points(self) -> Iterator[None]:
        for partition in self._broker.partitions.all():
            if partition.failure is not None:
                continue  # dropped since this run began: no checkpoint contains it any more
            partition.request_flush()
            self._broker.log_dir.note(TopicPartition(partition.topic, partition.index), partition.log)
            yield

    async def _expire_producers(self) -> None:
        await run_in_slices(self._forget_silent_producers())

    def _forget_silent_producers(self) -> Iterator[None]:
        expiration_ms = self._broker.settings.integer("producer.id.expiration.ms")
        for partition in self._broker.partitions.all():
            # Monotonic, because the wall clock may jump by days when a host's wrong date is corrected. If a producer's
            # state is removed early, its next retry is appended a second time.
            partition.log.producers.expire(self._broker.clock.monotonic_ms(), expiration_ms)
            yield
