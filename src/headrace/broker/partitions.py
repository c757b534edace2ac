"""The partitions that this broker holds, by name and by topic id, kept in step with the cluster's facts."""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from uuid import UUID, uuid4

from headrace.broker.group_commit import GroupCommit
from headrace.broker.partition import Partition
from headrace.broker.removals import Removals
from headrace.broker.slices import in_slices
from headrace.core.cluster.events import (
    ConfigsChanged,
    Event,
    PartitionsAdded,
    PartitionsChanged,
    TopicCreated,
    TopicDeleted,
)
from headrace.core.cluster.image import ClusterImage, TopicImage
from headrace.core.cluster.values import ConfigResource, ResourceType
from headrace.model.clock import Clock
from headrace.model.configs import LogConfig, log_config
from headrace.model.errors import HeadraceError, NotLeader, StorageError, UnknownTopic, UnknownTopicId
from headrace.model.ids import TopicPartition
from headrace.storage.damage import damaged_from
from headrace.storage.log import Log
from headrace.storage.log_dir import DELETE_SUFFIX, STRAY_SUFFIX, LogDir
from headrace.storage.partition_metadata import uuid_to_text
from headrace.storage.segment_check import Hole
from headrace.storage.truncation import start_log_anew, truncate_log

log = logging.getLogger(__name__)

# How long a question about a partition's end waits for commits that are on their way. A sync takes milliseconds; a disk
# that needs longer than this is in trouble, and clients (whose requests time out after 30 s) are told what is certain.
SETTLE_MS_MAX = 5_000


class Partitions:
    def __init__(self, log_dir: LogDir, clock: Clock, node_id: int, group_commit: GroupCommit | None) -> None:
        self.log_dir = log_dir
        self._clock = clock
        self._node_id = node_id
        self._group_commit = group_commit
        self._held: dict[tuple[str | UUID, int], Partition] = {}
        self._unopened: dict[tuple[str | UUID, int], StorageError] = {}
        self._topics: dict[str, TopicImage] = {}
        self._broker_configs: Mapping[str, str] = {}
        self.removals = Removals(log_dir)

    # Looking up

    def leader(self, topic: str | UUID, index: int) -> Partition:
        """The partition, if we hold it; else the error that sends the client the right way."""
        partition = self._held.get((topic, index))
        if partition is None:
            raise self._absent(topic, index)
        return partition

    get = leader

    def held(self, topic: str | UUID, index: int) -> Partition | None:
        return self._held.get((topic, index))

    def _absent(self, topic: str | UUID, index: int) -> Exception:
        if (topic, index) in self._unopened:
            return self._unopened[(topic, index)]
        image = self._image_of(topic)
        if image is not None and 0 <= index < len(image.partitions):
            return NotLeader(f"broker {image.partitions[index].leader} leads {image.name}-{index}")
        if isinstance(topic, UUID) and image is None:
            return UnknownTopicId(f"no topic has the id {topic}")
        return UnknownTopic(f"there is no partition {topic}-{index}")

    def _image_of(self, topic: str | UUID) -> TopicImage | None:
        if isinstance(topic, str):
            return self._topics.get(topic)
        return next((image for image in self._topics.values() if image.topic_id == topic), None)

    def name_of(self, topic: str | UUID) -> str | None:
        """The topic's name; None for an id that nobody knows."""
        if isinstance(topic, str):
            return topic
        partition = self._held.get((topic, 0))
        if partition is not None:
            return partition.topic
        image = self._image_of(topic)
        return image.name if image is not None else None

    def current_leader(self, topic: str | UUID, index: int) -> tuple[int, int] | None:
        image = self._image_of(topic)
        if image is None or not 0 <= index < len(image.partitions):
            return None
        return image.partitions[index].leader, image.partitions[index].leader_epoch

    @property
    def has_failed(self) -> bool:
        return bool(self._unopened) or any(partition.failure is not None for partition in self._held.values())

    def failure_of(self, topic: str | UUID, index: int) -> HeadraceError | None:
        """Why a partition that we hold cannot be used; None if it can, or is not ours."""
        partition = self._held.get((topic, index))
        return partition.failure if partition is not None else self._unopened.get((topic, index))

    def all(self) -> Iterable[Partition]:
        return [partition for (topic, _), partition in self._held.items() if isinstance(topic, str)]

    def of_topic(self, topic: TopicImage) -> list[Partition]:
        """Those of the topic that this broker holds."""
        held = (self._held.get((topic.topic_id, index)) for index in range(len(topic.partitions)))
        return [partition for partition in held if partition is not None]

    async def settled(self, places: Iterable[tuple[str, int]], wait_ms: int) -> None:
        """Returns when everything that is written in these partitions now is committed, or when the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(min(max(wait_ms, 0), SETTLE_MS_MAX) / 1000):
                for place in places:
                    partition = self._held.get(place)
                    if partition is not None:
                        await partition.settled()

    # Following the cluster's facts

    def load(self, image: ClusterImage, broker_configs: Mapping[str, str], deleted: Iterable[UUID]) -> None:
        """Open every folder that a topic claims; remove the ones of deleted topics, keep strangers aside."""
        self._broker_configs = broker_configs
        was_deleted = set(deleted)
        for path in self.log_dir.set_aside_before():
            self.removals.remove_tree(path)
        folders = dict(self.log_dir.folders())
        for folder, topic_id in folders.items():
            if not self._is_claimed(image.topics.get(folder.topic), folder, topic_id, was_deleted):
                self._set_aside_unclaimed(folder, topic_id in was_deleted)
        self.log_dir.settle_forgotten()
        for topic in image.topics.values():
            for _ in self.follow_topic(topic):
                pass
        self._doubt_missing(folders)

    def _doubt_missing(self, folders: Mapping[TopicPartition, UUID | None]) -> None:
        """Where there is no folder, or no segment in it, everything was lost: or nothing ever written, who knows."""
        for partition in self.all():
            name = TopicPartition(partition.topic, partition.index)
            has_nothing = name not in folders or partition.log.was_opened_without_segments
            if has_nothing and partition.counts and {*partition.isr, *partition.elr} - {self._node_id}:
                start = partition.log_start_offset
                partition.log.holes.append(Hole(0, 0, start, start, "its files are gone"))

    def _is_claimed(
        self, topic: TopicImage | None, folder: TopicPartition, topic_id: UUID | None, deleted: set[UUID]
    ) -> bool:
        """Whether a folder is the topic's; also if its id cannot be read, or is wrong by one character: a flipped bit.

        Nobody else's folder can be here: a deleted topic's folder is renamed before its name can be used again.
        """
        if topic is None or folder.partition >= len(topic.partitions):
            return False
        if topic_id == topic.topic_id:
            return True
        if topic_id is not None and (topic_id in deleted or not _differ_by_one_character(topic_id, topic.topic_id)):
            return False
        log.error("the topic id in the folder of %s is damaged; it is written anew", folder)
        try:
            self.log_dir.restore_topic_id(folder, topic.topic_id)
        except StorageError as error:
            log.error("%s", error)
        return True

    def _set_aside_unclaimed(self, folder: TopicPartition, was_deleted: bool) -> None:
        suffix = DELETE_SUFFIX if was_deleted else STRAY_SUFFIX
        path = self.log_dir.set_aside(folder, uuid4(), suffix)
        if was_deleted:
            self.removals.remove_tree(path)
        else:
            log.error("no topic claims the folder of %s; it is kept as %s", folder, path)

    async def follow(self, event: Event, image: ClusterImage, broker_configs: Mapping[str, str]) -> None:
        """Make a change of the cluster's facts true here, before anybody is told of it."""
        match event:
            case TopicCreated(topic) | PartitionsAdded(topic, _) | PartitionsChanged(topic, _):
                await in_slices(self.follow_topic(topic))
            case TopicDeleted(topic):
                self.drop_topic(topic)
                await asyncio.to_thread(self.log_dir.settle_forgotten)
            case ConfigsChanged(ConfigResource(ResourceType.TOPIC, name)) if name in image.topics:
                await in_slices(self.follow_topic(image.topics[name]))
            case ConfigsChanged(ConfigResource(ResourceType.BROKER, _)):
                self._broker_configs = broker_configs
                for topic in list(image.topics.values()):
                    await in_slices(self.follow_topic(topic))

    def follow_topic(self, topic: TopicImage) -> Iterator[None]:
        """Create what is missing, and take over states and configuration; a step for each partition."""
        self._topics[topic.name] = topic
        config = log_config(topic.configs, self._broker_configs)
        for index, state in enumerate(topic.partitions):
            partition = self._held.get((topic.name, index))
            if self._node_id not in state.replicas:
                if partition is not None or (topic.name, index) in self._unopened:
                    self._drop(topic, index)
                continue
            if partition is None:
                self._hold(topic, index, config)
            else:
                partition.log.config = config
                partition.follow(state, self._clock.monotonic_ms())
            yield

    def _hold(self, topic: TopicImage, index: int, config: LogConfig) -> None:
        """One partition that cannot be opened is offline; the others, and the broker, are not."""
        name = TopicPartition(topic.name, index)
        now_ms = self._clock.wall_ms()
        try:
            if self._has_folder(topic.name, index):
                partition_log = self.log_dir.open(name, config, now_ms=now_ms)
            else:
                partition_log = self.log_dir.create(name, topic.topic_id, config, now_ms=now_ms)
        except StorageError as error:
            log.critical("%s is offline until the next start: it cannot be opened: %s", name, error)
            self._unopened[(topic.name, index)] = self._unopened[(topic.topic_id, index)] = error
            return
        partition = self._partition(topic, index, partition_log)
        self._held[(topic.name, index)] = partition
        self._held[(topic.topic_id, index)] = partition

    def _partition(self, topic: TopicImage, index: int, partition_log: Log) -> Partition:
        return Partition(
            topic.name,
            index,
            topic.topic_id,
            partition_log,
            topic.partitions[index],
            node_id=self._node_id,
            group_commit=self._group_commit,
            let_go=self.removals.let_go,
            high_watermark=self.log_dir.high_watermark_of(TopicPartition(topic.name, index)),
            now_ms=self._clock.monotonic_ms(),
        )

    def drop_topic(self, topic: TopicImage) -> None:
        """The topic is gone from the facts: its folders get out of the way now and are removed in the background."""
        self._topics.pop(topic.name, None)
        for index in range(len(topic.partitions)):
            self._drop(topic, index)

    def _drop(self, topic: TopicImage, index: int) -> None:
        name = topic.name
        partition = self._held.pop((name, index), None)
        self._held.pop((topic.topic_id, index), None)
        self._unopened.pop((topic.topic_id, index), None)
        was_unopened = self._unopened.pop((name, index), None) is not None
        if partition is not None:
            partition.retire(moved=name in self._topics)
        if partition is not None or (was_unopened and self._has_folder(name, index)):
            path = self.log_dir.set_aside(TopicPartition(name, index), uuid4(), DELETE_SUFFIX)
            self.removals.in_background(self.log_dir.files.remove_tree, path)

    def _has_folder(self, topic: str, index: int) -> bool:
        return self.log_dir.files.exists(f"{self.log_dir.path}/{TopicPartition(topic, index)}")

    # Cutting, for followers

    def truncate(self, partition: Partition, end_offset: int) -> None:
        """Cut a follower's log. First no checkpoint remembers more than will be left."""
        partition_log = partition.log
        if partition_log.recovery_point > end_offset:
            partition_log.recovery_point = end_offset
            self.log_dir.note(TopicPartition(partition.topic, partition.index), partition_log)
            self.log_dir.write_recovery_points()
        truncate_log(partition_log, end_offset, self._clock.wall_ms())
        partition.was_cut()

    def cut_damage(self, partition: Partition) -> None:
        """Give up everything from the first damaged record on: the leader has it."""
        end = damaged_from(partition.log)
        if end is None:
            return
        if end <= partition.log_start_offset:
            self.start_anew(partition, end)
        else:
            self.truncate(partition, end)

    def start_anew(self, partition: Partition, offset: int) -> None:
        """A follower's log begins again where the leader's does."""
        partition_log = partition.log
        partition_log.recovery_point = partition_log.log_start_offset = offset
        self.log_dir.note(TopicPartition(partition.topic, partition.index), partition_log)
        self.log_dir.write_log_starts()
        self.log_dir.write_recovery_points()
        start_log_anew(partition_log, offset, self._clock.wall_ms())
        partition.was_cut()

    # Closing

    def checkpoint(self) -> None:
        for partition in self.all():
            self.log_dir.note(TopicPartition(partition.topic, partition.index), partition.log)
        self.log_dir.write_recovery_points()

    async def close(self) -> None:
        await self.removals.finish()
        for partition in self.all():
            self._close(partition)
        watermarks = [(TopicPartition(one.topic, one.index), one.high_watermark) for one in self.all()]
        try:
            self.log_dir.write_high_watermarks(watermarks)
            if not self._unopened and all(partition.failure is None for partition in self.all()):
                self.log_dir.mark_clean()
        except StorageError as error:
            log.error("no clean shutdown, the next start checks every log: %s", error)

    def _close(self, partition: Partition) -> None:
        if partition.failure is None:
            try:
                partition.log.close()
            except StorageError as error:
                partition.sync_failed(error)
            else:
                self.log_dir.note(TopicPartition(partition.topic, partition.index), partition.log)


def _differ_by_one_character(one: UUID, other: UUID) -> bool:
    """As they stand in their files."""
    pairs = zip(uuid_to_text(one), uuid_to_text(other), strict=True)
    return sum(a != b for a, b in pairs) == 1
