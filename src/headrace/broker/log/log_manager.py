"""Log manager: retention, compaction and scrubbing of this broker's logs.

The rules are in `storage/log_retention.py` and `storage/cleaner/log_to_clean.py`. This module visits one partition
at a time, and runs the work in slices.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING

from headrace.broker.replica.partition import Partition
from headrace.broker.runtime.cooperative import drive, run_in_slices
from headrace.model.errors import CorruptLog, HeadraceError, PassingStorageError, StorageError
from headrace.model.ids import TopicPartition
from headrace.storage.segment.index_rebuild import IndexRebuilding
from headrace.storage.segment.log_segment import LogSegment

if TYPE_CHECKING:
    from headrace.broker.server import Broker
    from headrace.storage.cleaner.cleaner import Cleaned
    from headrace.storage.cleaner.log_to_clean import LogToClean

log = logging.getLogger(__name__)

# Bytes that the scrubber checks per call of its thread: short enough to stop soon, long enough to amortize the call.
SCRUB_STEP_BYTES = 1024 * 1024


class LogManager:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._clock = broker.clock
        self._uncleanable: set[Partition] = set()

    # Retention

    async def apply_retention(self) -> None:
        await run_in_slices(self._expire_segments())

    def _expire_segments(self) -> Iterator[None]:
        for partition in self._broker.partitions.all():
            if partition.failure is None:
                self._expire_segments_of(partition)
            yield

    def _expire_segments_of(self, partition: Partition) -> None:
        from headrace.storage.log_retention import expired_segments

        partition_log = partition.log
        now_ms = self._clock.wall_ms()
        expired = expired_segments(
            partition_log.segments,
            log_start_offset=partition_log.log_start_offset,
            log_end_offset=partition_log.log_end_offset,
            # Records of open transactions are kept: otherwise their marker would end a transaction whose records are
            # deleted.
            high_watermark=partition.last_stable_offset,
            config=partition_log.config,
            now_ms=now_ms,
            archived_to=partition_log.config.archived_to(partition.index),
        )
        if not expired.segments:
            return
        log_start = expired.log_start_offset
        if expired.segments == len(partition_log.segments) and not self._roll(partition, now_ms):
            log_start = partition_log.active.base_offset
        log.info("%s: removing %d segments: %s", partition, expired.segments, expired.reason)
        if partition.failure is None:
            partition.move_log_start(log_start)

    @staticmethod
    def _roll(partition: Partition, now_ms: int) -> bool:
        """Starts a new active segment. Returns False on an error, for example without disk space for it.

        Retention then deletes the older segments first, and the active one at its next run.
        """
        try:
            partition.log.roll(now_ms)
        except PassingStorageError as error:
            log.warning("%s: %s", partition, error)
            return False
        except StorageError as error:
            partition.go_offline(error)
            return False
        return True

    # Compaction

    async def compact(self) -> None:
        """Compacts the logs that are due, the one with the most overdue or dirtiest records first."""
        while (due := await self._dirtiest()) is not None:
            await self._clean(*due)

    async def _dirtiest(self) -> tuple[Partition, "LogToClean"] | None:
        compacted = [one for one in self._broker.partitions.all() if one.log.config.compacts]
        self._uncleanable.intersection_update(compacted)  # drops partitions of deleted topics
        if not compacted:
            return None
        # Imported before the first compaction only: a start without compacted topics saves a dozen modules.
        await asyncio.to_thread(import_module, "headrace.storage.cleaner.cleaner")
        due: list[tuple[Partition, LogToClean]] = []
        await run_in_slices(self._look_for_dirt(compacted, due))
        return max(due, key=lambda one: (one[1].overdue_ms, one[1].dirty_ratio), default=None)

    def _look_for_dirt(
        self, partitions: Iterable[Partition], due: list[tuple[Partition, "LogToClean"]]
    ) -> Iterator[None]:
        for partition in partitions:
            if partition.failure is None and partition not in self._uncleanable:
                dirty = self._cleanable(partition)
                if dirty.is_due(partition.log.config):
                    due.append((partition, dirty))
            yield

    def _cleanable(self, partition: Partition) -> "LogToClean":
        from headrace.storage.cleaner.log_to_clean import cleanable

        archived_to = partition.log.config.archived_to(partition.index)
        if archived_to is None:
            archived_to = partition.log.log_end_offset
        return cleanable(
            partition.log.segments,
            cleaned_to=self._broker.log_dir.cleaned_to(TopicPartition(partition.topic, partition.index)),
            log_start_offset=partition.log.log_start_offset,
            # Files of unflushed records are still used by group commit.
            stable_offset=min(partition.last_stable_offset, partition.log.recovery_point, archived_to),
            config=partition.log.config,
            now_ms=self._clock.wall_ms(),
        )

    async def _clean(self, partition: Partition, dirty: "LogToClean") -> None:
        from headrace.storage.cleaner.cleaner import Cleaner

        bytes_max = self._broker.settings.integer("log.cleaner.dedupe.buffer.size")
        cleaner = Cleaner(partition.log, dirty, now_ms=self._clock.wall_ms(), key_map_bytes_max=bytes_max)
        term = partition.term
        try:
            cleaned = await drive(cleaner.run())
        except CorruptLog as damage:
            self._exclude(partition, damage)
            return
        except IndexRebuilding as wait:
            await wait.rebuilt()  # nothing has changed; the next run retries
            return
        except PassingStorageError:
            raise  # nothing has changed, because incomplete cleaned segments are discarded; the next run retries
        except StorageError as error:
            # A half-completed swap of segment files may be on disk; the next start completes it.
            partition.go_offline(error)
            return
        except HeadraceError as error:
            self._exclude(partition, error)
            return
        except Exception as error:
            log.exception("Compaction of %s failed", partition)
            self._exclude(partition, error)
            return
        finally:
            self._remove_replaced_later(partition, cleaner.cleaned)
        log.info("%s: compacted %d bytes to %d", partition, cleaned.bytes_before, cleaned.bytes_after)
        if partition.term != term or partition.log_end_offset < cleaned.cleaned_to:
            # The partition was dropped or truncated in the meantime: the offset refers to records that no longer exist.
            return
        self._broker.log_dir.note_cleaned(TopicPartition(partition.topic, partition.index), cleaned.cleaned_to)
        await asyncio.to_thread(self._broker.log_dir.write_cleaned)

    def _exclude(self, partition: Partition, cause: Exception) -> None:
        """Excludes the partition from compaction until the next start. It would be selected first every time."""
        log.error("%s is excluded from compaction until this broker restarts: %s", partition, cause)
        self._uncleanable.add(partition)

    def _remove_replaced_later(self, partition: Partition, cleaned: "Cleaned") -> None:
        """Removes replaced files after file.delete.delay.ms: responses in flight may still read them."""
        for replaced in cleaned.replaced:
            self._broker.partitions.removals.remove_in_background_after(
                partition.log.config.file_delete_delay_ms / 1000, replaced.remove, self._broker.files
            )

    # Scrubbing

    async def scrub(self) -> None:
        """Verifies the checksums of all inactive segments, at a limited rate.

        Corruption is found before a consumer or a failover reads it.
        """
        bytes_per_s = self._broker.settings.integer("log.scrub.bytes.per.second")
        for partition in list(self._broker.partitions.all()):
            # By offset: references to the segments would keep files open that retention removes in the meantime.
            for base_offset in [segment.base_offset for segment in partition.log.segments[:-1]]:
                await self._scrub_segment_at(partition, base_offset, SCRUB_STEP_BYTES / bytes_per_s)

    async def _scrub_segment_at(self, partition: Partition, base_offset: int, pause_s: float) -> None:
        for segment in partition.log.segments[:-1]:
            if segment.base_offset == base_offset:
                await self._scrub_segment(partition, segment, pause_s)
                break

    async def _scrub_segment(self, partition: Partition, segment: LogSegment, pause_s: float) -> None:
        position = 0
        while position < segment.size and partition.failure is None and segment in partition.log.segments:
            truncations = partition.log.truncations
            position, damage = await asyncio.to_thread(segment.inspect, position, SCRUB_STEP_BYTES)
            if partition.log.truncations != truncations:
                return  # the bytes may have been truncated while they were read
            if damage is not None:
                log.error("%s: offsets %d to %d are corrupt: %s", segment.path, *damage[2:4], damage.reason)
                segment.note_hole(damage)
            await asyncio.sleep(pause_s)
        await self._scrub_index(partition, segment)

    async def _scrub_index(self, partition: Partition, segment: LogSegment) -> None:
        """Verifies the index of aborted transactions, which determines what read_committed consumers receive."""
        try:
            await asyncio.to_thread(segment.aborted.check)
        except CorruptLog as damage:
            if partition.failure is None and segment in partition.log.segments[:-1]:
                log.error("%s; indexing the aborted transactions again, from the batches", damage)
                await self._rebuild_index(partition, segment)

    async def _rebuild_index(self, partition: Partition, segment: LogSegment) -> None:
        from headrace.storage.producer.producer_state_loader import NewHoles
        from headrace.storage.segment.transaction_index_repair import rebuild_index

        try:
            repair = await asyncio.to_thread(rebuild_index, partition.log, segment)
            if partition.failure is None and repair.apply():
                log.warning("%s: its aborted transactions are indexed again", segment.path)
        except (NewHoles, StorageError, CorruptLog) as error:
            log.error("%s: its aborted transactions cannot be indexed until the next start: %s", segment.path, error)
