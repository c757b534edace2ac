"""The metadata image: all cluster metadata in memory.

Only `apply` changes the image, in place, live and at start alike. Topics, partition states and brokers are immutable
values: an applied change replaces those that it affects, so its cost depends on the change and not on the size of the
cluster. A TopicImage that is kept across an await is consistent, and possibly outdated; compare `revision` to detect
changes.

`apply` takes committed writes and returns deltas. It does not validate them.
"""

from collections.abc import KeysView, Mapping
from types import MappingProxyType
from uuid import UUID

from headrace.core.image import records
from headrace.core.image.deltas import (
    BrokerRegistered,
    BrokerUnregistered,
    ConfigsChanged,
    ControllerChanged,
    MetadataDelta,
    PartitionsAdded,
    PartitionsChanged,
    SessionChanged,
    TopicCreated,
    TopicDeleted,
)
from headrace.core.image.model import (
    NO_CONTROLLER,
    BrokerRegistration,
    ConfigResource,
    PartitionRegistration,
    ResourceType,
    Tombstone,
    TopicImage,
)
from headrace.core.topic import unify_collision_chars

__all__ = ["BrokerRegistration", "MetadataImage", "PartitionRegistration", "Tombstone", "TopicImage"]


class MetadataImage:
    topics: Mapping[str, TopicImage]
    topic_ids: Mapping[UUID, str]
    brokers: Mapping[int, BrokerRegistration]
    broker_configs: Mapping[str, Mapping[str, str]]  # by node id as text; '' is the cluster-wide default
    group_configs: Mapping[str, Mapping[str, str]]  # by group id; a group need not exist to have some
    tombstones: Mapping[str, Tombstone]  # of deleted topics that were not created again, oldest first

    def __init__(self) -> None:
        self.revision = 0
        self.cluster_id = ""
        self.controller = NO_CONTROLLER
        self.next_producer_id = 0
        self.producer_id_floor = 0  # no lower id is allocated any more; raised after a restore
        self.leader_epoch_floor = 0  # no new topic starts below it; covers removed tombstones
        self._topics: dict[str, TopicImage] = {}
        self._topic_ids: dict[UUID, str] = {}
        self._brokers: dict[int, BrokerRegistration] = {}
        self.session_leases: dict[int, int] = {}  # by broker with a session: its lease
        self._stopping: dict[int, bool] = {}  # by broker with a session: whether it is shutting down
        self._full: dict[int, bool] = {}  # by broker with a session: whether its disk is full
        self._broker_configs: dict[str, Mapping[str, str]] = {}
        self._group_configs: dict[str, Mapping[str, str]] = {}
        self._tombstones: dict[str, Tombstone] = {}
        self._collision_names: dict[str, str] = {}
        self._versions: dict[str, int] = {}
        self.topics = MappingProxyType(self._topics)
        self.topic_ids = MappingProxyType(self._topic_ids)
        self.brokers = MappingProxyType(self._brokers)
        self.broker_configs = MappingProxyType(self._broker_configs)
        self.group_configs = MappingProxyType(self._group_configs)
        self.tombstones = MappingProxyType(self._tombstones)

    def version_of(self, key: str) -> int:
        """Returns the version of a key in this image, for commits to compare."""
        return self._versions.get(key, 0)

    def fact_keys(self) -> KeysView[str]:
        return self._versions.keys()

    @property
    def controller_epoch(self) -> int:
        """Returns the version of the controller key: rises with every new controller, 0 while there is none."""
        return self.version_of(records.CONTROLLER)

    def state_of(self, topic_id: UUID, partition: int) -> PartitionRegistration | None:
        """Returns the partition's state; None if the topic was deleted, or has no such partition."""
        name = self._topic_ids.get(topic_id)
        states = self._topics[name].partitions if name is not None else ()
        return states[partition] if 0 <= partition < len(states) else None

    def live_brokers(self) -> dict[int, BrokerRegistration]:
        """Returns the brokers that have a session, by id."""
        return {node_id: broker for node_id, broker in sorted(self._brokers.items()) if broker.is_live}

    def topic_like(self, name: str) -> str | None:
        """Returns the topic with the same name once dots and underscores are treated as equal."""
        return self._collision_names.get(unify_collision_chars(name))

    def apply(
        self,
        revision: int,
        writes: Mapping[str, bytes | None],
        versions: Mapping[str, int] | None = None,
    ) -> list[MetadataDelta]:
        """Applies committed writes. `versions` has the versions that differ from the revision (at a reload)."""
        self.revision = revision
        topic_writes: dict[str, bytes | None] = {}
        block_writes: dict[UUID, dict[int, bytes]] = {}
        events: list[MetadataDelta] = []
        for key, value in writes.items():
            version = versions.get(key, revision) if versions is not None else revision
            self._note_version(key, value, version)
            family, name = records.split_key(key)
            if family == records.TOPICS:
                topic_writes[name] = value
            elif family == records.PARTITIONS:
                if value is not None:
                    topic_id, block = records.split_block(name)
                    block_writes.setdefault(topic_id, {})[block] = value
            else:
                events += self._apply_other(family, name, value, version)
        return self._apply_topics(topic_writes, block_writes) + events

    def _note_version(self, key: str, value: bytes | None, version: int) -> None:
        if value is None:
            self._versions.pop(key, None)
        else:
            self._versions[key] = version

    def _apply_topics(
        self, topic_writes: Mapping[str, bytes | None], block_writes: Mapping[UUID, Mapping[int, bytes]]
    ) -> list[MetadataDelta]:
        events: list[MetadataDelta] = []
        new_ids = set()
        for name, value in topic_writes.items():
            fact = records.decode_topic(value) if value is not None else None
            old = self._topics.get(name)
            if old is not None and (fact is None or fact.topic_id != old.topic_id):
                self._remove(old)
                events.append(TopicDeleted(old))
                old = None
            if fact is None:
                continue
            partitions = old.partitions if old is not None else ()
            self._put(TopicImage(name, fact.topic_id, partitions, MappingProxyType(fact.configs), fact.former_ids))
            if old is None:
                new_ids.add(fact.topic_id)
            elif old.configs != fact.configs:
                events.append(ConfigsChanged(ConfigResource(ResourceType.TOPIC, name)))
        for topic_id, blocks in block_writes.items():
            if topic_id in self._topic_ids:  # else its topic was deleted in the same commit
                changed = self._apply_blocks(topic_id, blocks)
                events += [] if topic_id in new_ids else changed
        events += [TopicCreated(self._topics[self._topic_ids[topic_id]]) for topic_id in new_ids]
        return events

    def _apply_blocks(self, topic_id: UUID, blocks: Mapping[int, bytes]) -> list[MetadataDelta]:
        old = self._topics[self._topic_ids[topic_id]]
        partitions = list(old.partitions)
        changed: list[int] = []
        for block in sorted(blocks):
            start = block * records.PARTITIONS_PER_BLOCK
            assert start <= len(partitions), "blocks lie side by side"
            states = records.decode_block(blocks[block])
            before = old.partitions[start : start + records.PARTITIONS_PER_BLOCK]
            changed += [start + at for at, pair in enumerate(zip(before, states, strict=False)) if pair[0] != pair[1]]
            partitions[start : start + records.PARTITIONS_PER_BLOCK] = states
        topic = TopicImage(old.name, topic_id, tuple(partitions), old.configs, old.former_ids)
        self._put(topic)
        events: list[MetadataDelta] = [PartitionsChanged(topic, tuple(changed))] if changed else []
        if len(partitions) > len(old.partitions):
            events.append(PartitionsAdded(topic, len(old.partitions)))
        return events

    def _apply_other(self, family: str, name: str, value: bytes | None, version: int) -> list[MetadataDelta]:
        match family:
            case records.BROKERS:
                return self._apply_broker(int(name), value, version)
            case records.SESSIONS:
                return self._apply_session(int(name), value)
            case records.BROKER_CONFIGS:
                resource = ConfigResource(ResourceType.BROKER, records.broker_of_configs(name))
                return self._apply_configs(self._broker_configs, resource, value)
            case records.GROUP_CONFIGS:
                return self._apply_configs(self._group_configs, ConfigResource(ResourceType.GROUP, name), value)
            case records.DELETED:
                self._tombstones.pop(name, None)
                if value is not None:
                    self._tombstones[name] = records.decode_tombstone(value)
            case records.CLUSTER:
                self.cluster_id = records.decode_text("id", value) if value is not None else ""
            case records.CONTROLLER:
                self.controller = records.decode_number("node", value) if value is not None else NO_CONTROLLER
                return [ControllerChanged(self.controller)]
            case records.PRODUCER_IDS:
                known = records.decode_producer_ids(value) if value is not None else (0, 0)
                self.next_producer_id, self.producer_id_floor = known
            case records.LEADER_EPOCH_FLOOR:
                self.leader_epoch_floor = records.decode_number("epoch", value) if value is not None else 0
        return []

    @staticmethod
    def _apply_configs(
        table: dict[str, Mapping[str, str]], resource: ConfigResource, value: bytes | None
    ) -> list[MetadataDelta]:
        before = table.pop(resource.name, {})
        after = records.decode_configs(value) if value is not None else {}
        if after:
            table[resource.name] = MappingProxyType(after)
        return [ConfigsChanged(resource)] if before != after else []

    def _apply_broker(self, node_id: int, value: bytes | None, version: int) -> list[MetadataDelta]:
        gone = self._brokers.pop(node_id, None)
        if value is None:
            return [BrokerUnregistered(gone)] if gone is not None else []
        self._brokers[node_id] = self._with_session(records.decode_broker(node_id, value, version))
        return [BrokerRegistered(self._brokers[node_id])]

    def _apply_session(self, node_id: int, value: bytes | None) -> list[MetadataDelta]:
        self._stopping.pop(node_id, None)
        self._full.pop(node_id, None)
        self.session_leases.pop(node_id, None)
        if value is not None:
            self._stopping[node_id] = records.session_is_stopping(value)
            self._full[node_id] = records.session_is_full(value)
            self.session_leases[node_id] = records.session_lease(value)
        if node_id not in self._brokers:
            return []
        self._brokers[node_id] = self._with_session(self._brokers[node_id])
        return [SessionChanged(self._brokers[node_id])]

    def _with_session(self, broker: BrokerRegistration) -> BrokerRegistration:
        """Returns the broker with its session's state.

        A session that is older than the registration belongs to an earlier incarnation.
        """
        is_live = self.version_of(records.session_key(broker.node_id)) >= broker.epoch
        return broker._replace(
            is_live=is_live,
            is_stopping=is_live and self._stopping.get(broker.node_id, False),
            is_full=is_live and self._full.get(broker.node_id, False),
        )

    def _put(self, topic: TopicImage) -> None:
        self._topics[topic.name] = topic
        self._topic_ids[topic.topic_id] = topic.name
        self._collision_names[unify_collision_chars(topic.name)] = topic.name

    def _remove(self, topic: TopicImage) -> None:
        del self._topics[topic.name]
        del self._topic_ids[topic.topic_id]
        self._collision_names.pop(unify_collision_chars(topic.name), None)
