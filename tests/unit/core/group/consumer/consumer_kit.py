"""Topics of a made-up cluster, and a machine of consumer groups that writes its log down."""

from uuid import NAMESPACE_OID, UUID, uuid5

from headrace.core.coordinator import CoordinatorRecord, CoordinatorTime
from headrace.core.group.consumer.manager import ConsumerGroups
from headrace.core.group.consumer.model import ConsumerGroupConfig, Heartbeat, HeartbeatReply, Partitions
from headrace.core.group.consumer.topic_metadata import Topics
from headrace.core.image.metadata_image import MetadataImage
from headrace.core.image.model import BrokerRegistration, PartitionRegistration, TopicImage

SESSION_MS = 45_000
NAMES: dict[UUID, str] = {}


def topic_id(name: str) -> UUID:
    found = uuid5(NAMESPACE_OID, name)
    NAMES[found] = name
    return found


class FakeImage(MetadataImage):
    """An image whose topics are set at once."""

    def set_topics(self, **partitions: int) -> None:
        self.revision += 1
        self._topics.clear()
        self._topic_ids.clear()
        nodes = sorted(self._brokers) or [1]
        for name, count in partitions.items():
            states = tuple(
                PartitionRegistration((node,), (node,), node, 0, 0)
                for node in (nodes[index % len(nodes)] for index in range(count))
            )
            self._topics[name] = TopicImage(name, topic_id(name), states, {})
            self._topic_ids[topic_id(name)] = name

    def set_racks(self, **racks: str) -> None:
        self._brokers.update(
            {int(node[1:]): BrokerRegistration(int(node[1:]), 1, (), rack) for node, rack in racks.items()}
        )


class Cluster:
    """Consumer groups with a clock and a log: what was decided is written, applied and due."""

    def __init__(self, **partitions: int) -> None:
        self.image = FakeImage()
        self.image.set_topics(**partitions)
        self.now_ms = 1_000
        self.rules = ConsumerGroupConfig(session_timeout_ms=SESSION_MS)
        self.groups = self._new_groups()
        self.log: list[CoordinatorRecord] = []
        self.timers: dict[str, int] = {}
        self.causes: list[str] = []

    def _new_groups(self) -> ConsumerGroups:
        return ConsumerGroups(Topics(self.image), lambda group_id: self.rules)

    def heartbeat(self, member: str, epoch: int, **said: object) -> HeartbeatReply:
        request = Heartbeat("g", member, epoch, **said)  # type: ignore[arg-type]
        decision = self.groups.report(request, lambda name: True, 1, CoordinatorTime(self.now_ms, self.now_ms))
        self.carry_out(decision)
        reply = decision.answers[0].reply
        assert isinstance(reply, HeartbeatReply)
        return reply

    def join(self, member: str, *topics: str, **said: object) -> HeartbeatReply:
        said = {"topics": topics, "rebalance_timeout_ms": 60_000, "owned": {}, **said}
        return self.heartbeat(member, 0, **said)

    def carry_out(self, decision: object) -> None:
        for fact in decision.facts:  # type: ignore[attr-defined]
            record = self.groups.encode(fact)
            if record is None:
                self.causes.append(fact.cause)
            else:
                self.log.append(record)
            self.groups.apply(fact, len(self.log))
        for name, due_ms in decision.timers:  # type: ignore[attr-defined]
            self.timers.pop(name, None)
            if due_ms is not None:
                self.timers[name] = due_ms

    def pass_time(self, ms: int) -> None:
        end = self.now_ms + ms
        while self.timers and min(self.timers.values()) <= end:
            name = min(self.timers, key=lambda one: self.timers[one])
            self.now_ms = max(self.timers.pop(name), self.now_ms)
            self.carry_out(self.groups.expire(name.partition(" ")[2], CoordinatorTime(self.now_ms, self.now_ms)))
        self.now_ms = end

    def rebuilt(self) -> ConsumerGroups:
        """The groups as another broker reads them from the log, compacted as far as it can be."""
        last = {record.key: at for at, record in enumerate(self.log)}
        groups = self._new_groups()
        for at, record in enumerate(self.log):
            if last[record.key] == at:
                groups.replay(int.from_bytes(record.key[:2]), record, at)
        return groups


def parts(**topics: set[int]) -> Partitions:
    return {topic_id(name): frozenset(indexes) for name, indexes in topics.items() if indexes}


def same_groups(one: ConsumerGroups, other: ConsumerGroups) -> bool:
    return _values(one) == _values(other)


def _values(groups: ConsumerGroups) -> object:
    return {name: {slot: getattr(group, slot) for slot in group.__slots__} for name, group in groups.groups.items()}
