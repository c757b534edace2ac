"""Partitions that this broker holds, by topic name and topic id, updated from the cluster metadata."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from uuid import UUID

from headrace.broker.log.index_rebuilds import IndexRebuilds
from headrace.broker.replica.file_deleter import FileDeleter
from headrace.broker.replica.flush_policies import FlushPolicies
from headrace.broker.replica.log_flusher import LogFlusher
from headrace.broker.replica.missing_replicas import MissingReplicas
from headrace.broker.replica.partition import Partition, Term
from headrace.broker.replica.partition_directories import PartitionDirectories
from headrace.broker.runtime.cooperative import run_in_slices
from headrace.broker.runtime.request_threads import RequestThreads
from headrace.config.values import LogConfig
from headrace.core.image.deltas import (
    ConfigsChanged,
    MetadataDelta,
    PartitionsAdded,
    PartitionsChanged,
    TopicCreated,
    TopicDeleted,
)
from headrace.core.image.metadata_image import MetadataImage, TopicImage
from headrace.core.image.model import ConfigResource, ResourceType
from headrace.model.clock import Clock
from headrace.model.errors import (
    HeadraceError,
    NotLeader,
    PassingStorageError,
    ResourceShortage,
    StorageError,
    UnknownTopic,
    UnknownTopicId,
)
from headrace.model.ids import TopicPartition
from headrace.storage.directory.log_directory import LogDirectory
from headrace.storage.directory.replica_inventory import ReplicaId
from headrace.storage.log import Log
from headrace.storage.log_truncation import LetGo, Truncation, restart_log_at
from headrace.storage.segment.corrupt_ranges import damaged_from
from headrace.storage.segment.index_rebuild import IndexRebuilding

log = logging.getLogger(__name__)

# How long a request for a partition's end offset waits for commits in flight. A flush takes milliseconds. If the disk
# needs longer, the response, for which clients wait 30 s, contains only what is committed.
SETTLE_MS_MAX = 5_000


class ReplicaManager:
    def __init__(
        self,
        log_dir: LogDirectory,
        clock: Clock,
        node_id: int,
        group_commit: LogFlusher | None,
        removals: FileDeleter | None = None,
    ) -> None:
        self.log_dir = log_dir
        self._clock = clock
        self._node_id = node_id
        self._group_commit = group_commit
        self._held: dict[tuple[str | UUID, int], Partition] = {}
        self._unopened: dict[tuple[str | UUID, int], StorageError] = {}
        self._opened: dict[TopicPartition, Log | StorageError] = {}  # opened in a thread, for `_hold`
        self._topics: dict[str, TopicImage] = {}
        # Topic names of `_topics` by id, looked up for every partition of a Fetch or Produce request.
        self._names: dict[UUID, str] = {}
        self._broker_configs: Mapping[str, str] = {}
        self._is_loaded = self._may_end_recovery = False
        self._unopened_at_start: frozenset[TopicPartition] = frozenset()
        self._is_fenced = False
        self.threads = RequestThreads()
        self._index_rebuilds = IndexRebuilds()
        self.removals = removals or FileDeleter(log_dir)
        self._dirs = PartitionDirectories(log_dir, clock, self.removals)
        self.lost = MissingReplicas(log_dir, node_id)
        self.flush_policies = FlushPolicies(self, log_dir, node_id, is_durable=group_commit is not None)

    # Lookup

    def leader(self, topic: str | UUID, index: int) -> Partition:
        """Returns the partition if this broker holds it. Otherwise raises the error that redirects the client."""
        partition = self._held.get((topic, index))
        if partition is None:
            raise self._absent(topic, index)
        return partition

    get = leader

    def held(self, topic: str | UUID, index: int) -> Partition | None:
        return self._held.get((topic, index))

    def _absent(self, topic: str | UUID, index: int) -> Exception:
        if (topic, index) in self._unopened:
            return self._unopened[(topic, index)].with_traceback(None)  # the traceback would grow with every raise
        image = self._image_of(topic)
        if image is not None and 0 <= index < len(image.partitions):
            return NotLeader(f"broker {image.partitions[index].leader} leads {image.name}-{index}")
        if isinstance(topic, UUID) and image is None:
            return UnknownTopicId(f"no topic has the id {topic}")
        return UnknownTopic(f"there is no partition {topic}-{index}")

    def _image_of(self, topic: str | UUID) -> TopicImage | None:
        name = self.name_of(topic)
        return self._topics.get(name) if name is not None else None

    def name_of(self, topic: str | UUID) -> str | None:
        """Returns the topic's name; None if the id is unknown."""
        return topic if isinstance(topic, str) else self._names.get(topic)

    def followed(self, topic: str) -> TopicImage | None:
        """Returns the topic as applied to the partitions here. The metadata image may be newer."""
        return self._topics.get(topic)

    def current_leader(self, topic: str | UUID, index: int) -> tuple[int, int] | None:
        image = self._image_of(topic)
        if image is None or not 0 <= index < len(image.partitions):
            return None
        return image.partitions[index].leader, image.partitions[index].leader_epoch

    @property
    def has_failed(self) -> bool:
        return bool(self._unopened) or any(partition.failure is not None for partition in self._held.values())

    def failure_of(self, topic: str | UUID, index: int) -> HeadraceError | None:
        """Returns why a partition on this broker cannot be used; None if it can, or if this broker does not hold it."""
        partition = self._held.get((topic, index))
        return partition.failure if partition is not None else self._unopened.get((topic, index))

    def unopened(self) -> dict[TopicPartition, StorageError]:
        """Returns the partitions that could not be opened or created, with the error."""
        items = self._unopened.items()
        return {TopicPartition(topic, index): error for (topic, index), error in items if isinstance(topic, str)}

    def waiting_for_space(self) -> set[str]:
        """Returns the topics with a partition that could not be opened or created because of a retriable error."""
        return {name.topic for name, error in self.unopened().items() if isinstance(error, PassingStorageError)}

    def all(self) -> Iterable[Partition]:
        return [partition for (topic, _), partition in self._held.items() if isinstance(topic, str)]

    def of_topic(self, topic: TopicImage) -> list[Partition]:
        """Returns the partitions of the topic that this broker holds."""
        held = (self._held.get((topic.topic_id, index)) for index in range(len(topic.partitions)))
        return [partition for partition in held if partition is not None]

    def may_have_acked_unsynced(self, topic_id: UUID) -> bool:
        """Whether a replica of the topic here may lose an acknowledged record in a power loss."""
        topic = self._image_of(topic_id)
        if topic is None:
            return False
        return any(
            (topic_id, index) in self._unopened
            or (held is not None and (held.failure is not None or held.may_have_acked_unsynced))
            for index in range(len(topic.partitions))
            for held in [self._held.get((topic_id, index))]
        )

    async def settled(self, places: Iterable[tuple[str, int]], wait_ms: int) -> None:
        """Returns when all records that are in these partitions now are committed, or after the timeout."""
        with suppress(TimeoutError):
            async with asyncio.timeout(min(max(wait_ms, 0), SETTLE_MS_MAX) / 1000):
                for place in places:
                    partition = self._held.get(place)
                    if partition is not None:
                        await partition.settled()

    # Applying cluster metadata

    def load(self, image: MetadataImage, broker_configs: Mapping[str, str], deleted: Iterable[UUID]) -> None:
        """Opens the directories of this broker's replicas. Removes those of deleted topics and renames all others.

        See `broker/log/stray_directories.py` for the renamed ones.
        """
        self._broker_configs = broker_configs
        self.log_dir.begin_writing()
        was_deleted = set(deleted)
        self.removals.leave_over(self.log_dir.set_aside_before())
        folders = dict(self.log_dir.folders())
        for folder, topic_id in folders.items():
            topic = image.topics.get(folder.topic)
            if (
                topic is None
                or not self._is_replica_of(topic, folder.partition)
                or not self._dirs.claim(folder, topic_id, topic.topic_id, was_deleted)
            ):
                self._dirs.set_aside_unclaimed(folder, topic_id in was_deleted)
        self.lost.look(image, broker_configs)
        self._settle_forgotten()
        self.flush_policies.record_now(image.topics.values(), broker_configs)
        for topic in image.topics.values():
            for _ in self.follow_topic(topic):
                pass
        self._settle_forgotten()
        self.lost.settle(self.all(), image)
        self._unopened_at_start = frozenset(self.unopened())
        self._is_loaded = True

    def end_recovery(self) -> None:
        """Call after `load`, when the cluster metadata records what this broker may have lost.

        While a partition waits for disk space, the metadata event that opens it ends the recovery.
        """
        self._may_end_recovery = True
        if not self._unopened:
            self.log_dir.end_recovery()

    def _is_replica_of(self, topic: TopicImage, index: int) -> bool:
        return index < len(topic.partitions) and self._node_id in topic.partitions[index].replicas

    def _settle_forgotten(self) -> None:
        try:
            self.log_dir.flush_forgotten_checkpoints()
        except StorageError as error:
            # `LogDirectory.create` retries before a new partition could inherit these rows.
            log.error("Checkpoint rows of deleted partitions not removed; retrying with the next change: %s", error)

    async def follow(self, event: MetadataDelta, image: MetadataImage, broker_configs: Mapping[str, str]) -> None:
        """Applies a metadata change to this broker's partitions, before the other listeners receive it."""
        match event:
            case TopicCreated(topic) | PartitionsAdded(topic, _) | PartitionsChanged(topic, _):
                await self._follow_topic(topic)
            case TopicDeleted(topic):
                await run_in_slices(self.delete_topic_logs(topic))
                await self._settle_names()
            case ConfigsChanged(ConfigResource(ResourceType.TOPIC, name)):
                known, newest = self._topics.get(name), image.topics.get(name)
                # The image may be ahead of this event. Only the configs are taken from it, and only if the topic id is
                # the same.
                if known is not None and newest is not None and known.topic_id == newest.topic_id:
                    await self._follow_topic(known._replace(configs=newest.configs))
            case ConfigsChanged(ConfigResource(ResourceType.BROKER, _)):
                self._broker_configs = broker_configs
                topics = list(self._topics.values())
                await self.flush_policies.record(topics, broker_configs)
                for topic in topics:
                    await self._follow_topic(topic)

    async def _follow_topic(self, topic: TopicImage) -> None:
        """As `follow_topic`, with disk operations in a thread."""
        await self.flush_policies.record((topic,), self._broker_configs)
        await self._prepare_to_hold(topic)
        postponed: list[int] = []
        await run_in_slices(self.follow_topic(topic, postponed))
        if postponed:
            await self._prepare_to_hold(topic)
            await run_in_slices(self.follow_topic(topic))
        self._dirs.write_topic_ids()
        await self._settle_names()
        if self._may_end_recovery and not self._unopened and not self.log_dir.is_recovered:
            try:
                await asyncio.to_thread(self.log_dir.end_recovery)
            except StorageError as error:
                log.error("Boot id not written; retrying with the next change: %s", error)

    async def _prepare_to_hold(self, topic: TopicImage) -> None:
        """Removes checkpoint rows of partitions to be created, and opens existing directories in a thread."""
        for index in range(len(topic.partitions)):
            self._drop_former(topic, index)
        missing = [
            TopicPartition(topic.name, index)
            for index, state in enumerate(topic.partitions)
            if self._node_id in state.replicas and (topic.topic_id, index) not in self._held
            if not self._is_offline_until_restart(topic, index)
        ]
        found: list[TopicPartition] = []
        await run_in_slices(self._look_for_folders(missing, found))
        self.log_dir.forget(set(missing).difference(found))
        await self._settle_names()
        config = self.flush_policies.config_of(topic, self._broker_configs)
        for name in found:
            self._opened[name] = await asyncio.to_thread(self._dirs.open_or_create, name, topic.topic_id, config)

    def _look_for_folders(self, names: Iterable[TopicPartition], found: list[TopicPartition]) -> Iterator[None]:
        for name in names:
            if self._dirs.exists(name):
                found.append(name)
            yield

    async def _settle_names(self) -> None:
        if not self.log_dir.is_settled:
            await asyncio.to_thread(self._settle_forgotten)

    def follow_topic(self, topic: TopicImage, postponed: list[int] | None = None) -> Iterator[None]:
        """Creates missing partitions, and applies states and configs. Yields after each partition.

        With `postponed`, partitions whose creation would wait for the disk are added to it instead: a partition that
        was dropped or truncated since then has left checkpoint rows that must be removed first.
        """
        before = self._topics.get(topic.name)
        if before is not None and before.topic_id != topic.topic_id:
            self._names.pop(before.topic_id, None)
        self._topics[topic.name], self._names[topic.topic_id] = topic, topic.name
        config = self.flush_policies.config_of(topic, self._broker_configs)
        first_error: Exception | None = None  # raised at the end, so that the other partitions are updated
        for index, state in enumerate(topic.partitions):
            partition = self._held.get((topic.topic_id, index))
            if self._node_id not in state.replicas:
                if partition is not None or (topic.topic_id, index) in self._unopened:
                    self._drop(TopicPartition(topic.name, index), topic.topic_id)
                continue
            try:
                if (
                    partition is None
                    and postponed is not None
                    and self._waits_for_disk(TopicPartition(topic.name, index))
                ):
                    postponed.append(index)
                elif partition is None:
                    self._hold(topic, index, config)
                else:
                    partition.configure(config)
                    partition.follow(state, self._clock.monotonic_ms())
            except Exception as error:
                log.exception("%s-%d does not follow its metadata", topic.name, index)
                first_error = first_error or error
            yield
        if first_error is not None:
            raise first_error

    def _waits_for_disk(self, name: TopicPartition) -> bool:
        return name not in self._opened and not self.log_dir.is_settled

    def _is_offline_until_restart(self, topic: TopicImage, index: int) -> bool:
        error = self._unopened.get((topic.topic_id, index))
        return error is not None and not isinstance(error, PassingStorageError)

    def _hold(self, topic: TopicImage, index: int, config: LogConfig) -> None:
        """Opens or creates a partition. One that cannot be opened is offline; others are not affected."""
        name = TopicPartition(topic.name, index)
        keys = ((topic.name, index), (topic.topic_id, index))
        if self._is_offline_until_restart(topic, index):
            return
        opened = self._opened.pop(name, None) or self._dirs.open_or_create(name, topic.topic_id, config)
        if isinstance(opened, StorageError):
            self._failed_to_open(name, keys, opened)
            return
        partition = self._partition(topic, index, opened)
        is_late = self._unopened.get((topic.topic_id, index)) is not None
        if is_late and self._is_behind_its_metadata(partition):
            # At a start, the metadata is corrected before the broker has a session. Now the replica could be elected at
            # any time.
            with suppress(StorageError):
                opened.close()
            self._failed_to_open(name, keys, StorageError(f"{name} was opened late and lacks records; restart"))
            return
        if is_late:
            log.warning("%s is online: a later attempt opened it", name)
        self.log_dir.opened_to(name, opened.log_end_offset)
        if self._is_fenced:
            partition.fence()
        for key in keys:
            self._held[key] = partition
            self._unopened.pop(key, None)

    def _failed_to_open(
        self, name: TopicPartition, keys: Iterable[tuple[str | UUID, int]], error: StorageError
    ) -> None:
        known = self._unopened.get((name.topic, name.partition))
        self._unopened |= dict.fromkeys(keys, error)
        if isinstance(error, PassingStorageError) and isinstance(known, PassingStorageError):
            return  # logged at the state change only
        passing = "descriptors and memory are free" if isinstance(error, ResourceShortage) else "there is disk space"
        until = passing if isinstance(error, PassingStorageError) else "the next start"
        log.critical("%s is offline until %s: it cannot be opened: %s", name, until, error)

    def _is_behind_its_metadata(self, partition: Partition) -> bool:
        """Whether a partition that is opened late must not lead: it lacks records, or its metadata was restored."""
        name = TopicPartition(partition.topic, partition.index)
        lacks_records = name in self._unopened_at_start and self.lost.lacks_records(partition)
        return lacks_records or partition.leader_epoch < partition.newest_log_epoch

    def fence(self) -> None:
        """Stops all appends, acknowledgements and reads here: another process has this broker's id."""
        self._is_fenced = True
        for partition in self.all():
            partition.fence()

    def _partition(self, topic: TopicImage, index: int, partition_log: Log) -> Partition:
        self._index_rebuilds.serve(partition_log)
        return Partition(
            topic.name,
            index,
            topic.topic_id,
            partition_log,
            topic.partitions[index],
            node_id=self._node_id,
            group_commit=self._group_commit,
            let_go=self.removals.let_go,
            in_background=self.removals.in_background,
            high_watermark=self.log_dir.high_watermark_of(TopicPartition(topic.name, index)),
            was_clean=self.log_dir.was_clean,
            now_ms=self._clock.monotonic_ms(),
        )

    def delete_topic_logs(self, topic: TopicImage) -> Iterator[None]:
        """Renames the directories of a deleted topic and removes them in the background. Yields per partition."""
        self._topics.pop(topic.name, None)
        self._names.pop(topic.topic_id, None)
        for index in range(len(topic.partitions)):
            self._drop(TopicPartition(topic.name, index), topic.topic_id)
            yield

    def _drop_former(self, topic: TopicImage, index: int) -> None:
        """Drops the partition of an earlier topic with this name, whose deletion this broker did not apply."""
        former = self._held.get((topic.name, index))
        if former is not None and former.topic_id != topic.topic_id:
            self._drop(TopicPartition(topic.name, index), former.topic_id)

    def _drop(self, name: TopicPartition, topic_id: UUID) -> None:
        index = name.partition
        partition = self._held.pop((topic_id, index), None)
        was_unopened = self._unopened.pop((topic_id, index), None) is not None
        self._held.pop((name.topic, index), None)
        self._unopened.pop((name.topic, index), None)
        if partition is not None:
            known = self._topics.get(name.topic)
            partition.retire(moved=known is not None and known.topic_id == topic_id)
        if partition is not None or (was_unopened and self._dirs.exists(name)):
            self._dirs.discard(name)
        self.log_dir.replicas.forget(ReplicaId(topic_id, index))

    def set_aside(self, partition: Partition) -> None:
        """Keeps the files of a replica as a stray directory. The next event of its topic creates an empty log."""
        name = TopicPartition(partition.topic, partition.index)
        self._held.pop((partition.topic, partition.index), None)
        self._held.pop((partition.topic_id, partition.index), None)
        partition.retire(moved=True)
        self._dirs.set_aside_unclaimed(name, was_deleted=False)

    # Truncation of followers

    async def truncate(self, partition: Partition, end_offset: int) -> bool:
        """Truncates a follower's log. Checkpoints on disk are lowered first, so that none exceeds the new log end.

        Returns False if the partition changed its leader or failed while this waited for the disk: the former
        leader's truncation offset is no longer valid.
        """
        step = await self._prepared_truncation(partition, end_offset)
        if step is None:
            return False
        self._cut(partition, step.apply)
        if not step.is_last and not await self._finish_truncation(partition, end_offset):
            return False
        # Lowered again: the former high watermark may have been checkpointed since, and a batch is truncated as a
        # whole.
        return await self._lower_checkpoints(partition, partition.log.log_end_offset)

    async def _finish_truncation(self, partition: Partition, end_offset: int) -> bool:
        """Truncates the last segment when the removal of whole segments is on disk. Returns False as `truncate`."""
        term, is_over = partition.term, False
        while not is_over:
            try:
                if not await self._sync_names(partition, term):
                    return False
                step = await self._prepared_truncation(partition, end_offset)
            except StorageError as error:
                partition.go_offline(error)  # the log is only partly truncated, also if the disk is full
                raise
            if step is None:
                return False
            self._cut(partition, step.apply)
            is_over = step.is_last
        return True

    async def _prepared_truncation(self, partition: Partition, end_offset: int) -> Truncation | None:
        """Returns the next step, which fits the log as it is now; None if the partition's term has changed (`Term`).

        Producer state at the new log end is read in a thread. For a segment of 1 GiB that takes seconds, longer than
        the session of a broker whose event loop is blocked and does not renew it.
        """
        term = partition.term
        while True:
            try:
                truncation = Truncation(partition.log, end_offset)
            except IndexRebuilding as wait:
                await wait.rebuilt()
                if partition.term != term:
                    return None
                continue
            try:
                await asyncio.to_thread(truncation.replay)
            except Exception:
                if partition.term != term:
                    return None  # it read records of the next leader, or a directory that has been renamed
                raise
            if partition.term != term or not await self._lower_checkpoints(partition, end_offset):
                return None
            if truncation.fits():
                return truncation

    def _cut(self, partition: Partition, cut: Callable[[int, LetGo], None]) -> None:
        """Truncates or restarts the log. A failure takes the partition offline, also if the disk is full.

        After a failure only some of its files are removed, and only recovery can determine where the log ends.
        """
        try:
            cut(self._clock.wall_ms(), self.removals.let_go_truncated)
        except StorageError as error:
            partition.go_offline(error)
            raise
        partition.on_truncated()

    async def _lower_checkpoints(self, partition: Partition, offset: int) -> bool:
        """Returns when no checkpoint on disk is above the offset; False if the partition's term has changed."""
        term, partition_log = partition.term, partition.log
        name = TopicPartition(partition.topic, partition.index)
        while True:
            is_above = partition_log.recovery_point > offset  # repeated if a flush in flight raised it
            partition_log.recovery_point = min(partition_log.recovery_point, offset)
            self.log_dir.lower(name, offset)
            self._forget_emptied(partition, offset)
            if self.log_dir.is_settled and not is_above:
                return True
            await asyncio.to_thread(self.log_dir.flush_forgotten_checkpoints)
            if partition.term != term:
                return False

    def _forget_emptied(self, partition: Partition, offset: int) -> None:
        """Removes the replica from the inventory if it is emptied to follow its leader: it is not lost."""
        replica = ReplicaId(partition.topic_id, partition.index)
        is_emptied = offset <= partition.log_start_offset
        if is_emptied and (offset < partition.log_end_offset or self.log_dir.replicas.is_lost(replica)):
            self.log_dir.replicas.forget(replica)

    async def _sync_names(self, partition: Partition, term: Term) -> bool:
        try:
            await asyncio.to_thread(self.log_dir.files.sync_dir, partition.log.directory)
        except FileNotFoundError:
            if partition.term == term:  # otherwise the topic was deleted and its directory renamed
                raise
        return partition.term == term

    async def truncate_corruption(self, partition: Partition) -> bool:
        """Truncates the log at the first corrupt record; the leader has the records from there on."""
        end = damaged_from(partition.log)
        if end is None:
            return True
        if end <= partition.log_start_offset:
            return await self.truncate_fully_and_start_at(partition, end)
        return await self.truncate(partition, end)

    async def truncate_fully_and_start_at(self, partition: Partition, offset: int) -> bool:
        """Restarts a follower's log at the leader's log start offset. Returns False as `truncate`."""
        try:
            return await self._start_anew(partition, offset)
        except StorageError as error:
            partition.append_failed(error)
            raise

    async def _start_anew(self, partition: Partition, offset: int) -> bool:
        term, partition_log = partition.term, partition.log
        # A crash may leave any part of the log, and records missing below the recovery point are treated as corruption.
        if not await self._lower_checkpoints(partition, min(offset, partition_log.log_start_offset)):
            return False
        partition_log.recovery_point = offset
        self._cut(partition, partial(restart_log_at, partition_log, offset))
        # Synced first: a power loss could restore former segments below a checkpoint that is past their end.
        if not await self._sync_names(partition, term):
            return False
        self.log_dir.note(TopicPartition(partition.topic, partition.index), partition_log)
        await asyncio.to_thread(self.log_dir.write_log_starts)
        await asyncio.to_thread(self.log_dir.write_recovery_points)
        return partition.term == term and await self._lower_checkpoints(partition, offset)

    # Closing

    def write_topic_ids(self) -> None:
        """Retries the `partition.metadata` files that could not be written."""
        self._dirs.write_topic_ids()

    def checkpoint(self) -> None:
        for partition in self.all():
            self.log_dir.note(TopicPartition(partition.topic, partition.index), partition.log)
        self.log_dir.write_recovery_points()

    async def close(self, *, clean: bool = True) -> None:
        """Closes every log. With `clean`, marks the directory clean if all of them closed without an error.

        Without a complete `load` the checkpoints are kept: they describe logs that this process has not opened.
        """
        has_finished = False
        try:
            await self.removals.stop()
            await self._index_rebuilds.stop()
            has_finished = True
        finally:  # logs are closed even if stopping the removals fails
            self._close_all(clean=clean and has_finished)
            await self.removals.close()

    def _close_all(self, *, clean: bool) -> None:
        for partition in self.all():
            self._close(partition)
        if not self._is_loaded:
            return
        for one in self.all():
            self.log_dir.note_high_watermark(TopicPartition(one.topic, one.index), one.high_watermark)
        try:
            self.log_dir.write_high_watermarks()
            if clean and not self.has_failed:
                self.log_dir.mark_clean()
        except StorageError as error:
            log.error("no clean shutdown, the next start checks every log: %s", error)

    def _close(self, partition: Partition) -> None:
        if partition.failure is None:
            try:
                partition.log.close()
            except (StorageError, OSError) as error:
                partition.sync_failed(error if isinstance(error, StorageError) else StorageError(str(error)))
            else:
                self.log_dir.note(TopicPartition(partition.topic, partition.index), partition.log)
