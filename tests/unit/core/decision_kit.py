"""Every decision about cluster metadata, ready to be taken on any image of one small cluster.

Brokers 1 to 3 have sessions, 4 has none and holds nothing. Topic `t` has replicas on 1, 2 and 3; 3 is not in the ISR.
Topic `full` has as many partitions as one block holds. Topic `gone` was deleted.
"""

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from headrace.config.settings import Listener, Settings
from headrace.core.controller import cluster_control, replication_control, topic_control
from headrace.core.controller.alter_partition import AlterPartitionItem, alter_partition
from headrace.core.controller.config_control import Alteration, Operation, alter_configs, legacy_alter_configs
from headrace.core.controller.config_describe import BrokerLayers, broker_layers
from headrace.core.controller.leader_election import ElectionConfig
from headrace.core.controller.replica_placer import new_partitions
from headrace.core.controller.restored_metadata import raise_leader_epochs, raise_producer_ids
from headrace.core.controller.topic_control import NewPartitions, NewTopic, TopicDefaults
from headrace.core.image import records
from headrace.core.image.metadata_image import MetadataImage
from headrace.core.image.model import ConfigResource, Decision, ResourceType, Tombstone, TopicImage
from headrace.model.errors import RequestError

Outcome = Decision[Any] | RequestError
Decide = Callable[[MetadataImage], Outcome]

SETTINGS = Settings(node_id=1)
T_ID, FULL_ID, GONE_ID = UUID(int=1), UUID(int=2), UUID(int=3)
BROKER_EPOCHS = {1: 1, 2: 1, 3: 1, 4: 1}  # all are registered by the first commit
PARTITIONS_PER_BLOCK = 2  # so that a topic with several blocks is small


def first_commit() -> dict[str, bytes]:
    """The cluster at first; to be called with blocks of PARTITIONS_PER_BLOCK."""
    t = [state._replace(isr=state.isr[:2]) for state in new_partitions([(1, 2, 3), (2, 1, 3)], 5)]
    writes = {
        records.CLUSTER: records.encode_field("id", "c"),
        records.CONTROLLER: records.encode_field("node", 1),
        records.topic_key("t"): records.encode_topic(T_ID, {}),
        **records.block_writes(T_ID, t, range(2)),
        records.topic_key("full"): records.encode_topic(FULL_ID, {}),
        **records.block_writes(
            FULL_ID, new_partitions([(1, 2)] * PARTITIONS_PER_BLOCK, 0), range(PARTITIONS_PER_BLOCK)
        ),
        records.deleted_key("gone"): records.encode_tombstone(Tombstone(GONE_ID, 7, 0)),
        records.broker_configs_key(""): records.encode_configs({"log.retention.ms": "1"}),
    }
    for one in BROKER_EPOCHS:
        endpoints = [Listener("P", f"h{one}", 1)]
        writes[records.broker_key(one)] = records.encode_broker(endpoints, None, f"d{one}", f"i{one}")
    writes |= {records.session_key(one): records.encode_session(lease=one) for one in (1, 2, 3)}
    return writes


def layers(image: MetadataImage) -> BrokerLayers:
    return broker_layers(image, SETTINGS, SETTINGS.node_id)


def _rules(topic: TopicImage) -> ElectionConfig:
    return ElectionConfig(min_isr=2)


def _register(image: MetadataImage, node_id: int) -> Outcome:
    return cluster_control.register(
        image,
        node_id=node_id,
        endpoints=[Listener("P", f"h{node_id}", 2)],
        rack=None,
        configured_cluster_id=None,
        new_cluster_id="c",
        directory=f"d{node_id}",
        incarnation=f"i{node_id}",
        alone=False,
    )


def _create(number: int, name: str, replicas: tuple[int, ...] = (), partitions: int = 1) -> Decide:
    new = NewTopic(name, partitions, 2)
    if replicas:
        new = NewTopic(name, assignments={0: replicas})

    def decide(image: MetadataImage) -> Outcome:
        defaults = TopicDefaults(1, 2, layers(image))
        return topic_control.create_topics({name: new}, image, {name: UUID(int=number)}, defaults)[name]

    return decide


def _grow(name: str, count: int, replicas: tuple[int, ...]) -> Decide:
    def decide(image: MetadataImage) -> Outcome:
        present = len(image.topics[name].partitions) if name in image.topics else 0
        more = NewPartitions(name, count, (replicas,) * (count - present))
        return topic_control.add_partitions({name: more}, image)[name]

    return decide


def _delete(name: str) -> Decide:
    return lambda image: topic_control.delete_topics([name], image, enabled=True, now_ms=0)[name]


def _reassign(name: str, replicas: tuple[int, ...] | None) -> Decide:
    return lambda image: replication_control.reassign({name: {0: replicas}}, image)[name]


def _alter(kind: ResourceType, name: str, config: str, value: str) -> Decide:
    resource = ConfigResource(kind, name)
    change = [Alteration(config, Operation.SET, value)]
    return lambda image: alter_configs({resource: change}, image, layers(image))[resource]


def _isr(isr: tuple[int, ...], joining: Mapping[int, int], partition: int = 0) -> Decide:
    """A proposal of the leader for the state that `t` has at first."""
    proposal = AlterPartitionItem(T_ID, partition, 5, 0, isr, joining)
    block = (T_ID, 0)
    leader = 1 + partition
    return lambda image: alter_partition({block: [proposal]}, image, leader, _rules)[block]


def _come_back(image: MetadataImage, node_id: int) -> Outcome:
    condition = replication_control.condition_of(image)
    return replication_control.handle_unclean_restart(["t"], image, node_id, condition, _rules, lambda topic: True)["t"]


def _resign(image: MetadataImage, node_id: int) -> Outcome:
    condition = replication_control.condition_of(image)
    return replication_control.resign({"t": [0, 1]}, image, node_id, condition, _rules, to_copy_anew=True)["t"]


def _elect(image: MetadataImage) -> Outcome:
    return replication_control.elect(["t"], image, replication_control.condition_of(image), _rules, node_id=1)["t"]


def _on_condition(elect: Callable[..., Mapping[str, Outcome]], *rules: object) -> Decide:
    return lambda image: elect({"t": [0, 1]}, image, replication_control.condition_of(image), *rules)["t"]


def _raise_epochs(image: MetadataImage) -> Outcome:
    return raise_leader_epochs(
        {"t": {0: 9}}, image, 1, replication_control.condition_of(image), _rules, lambda topic: False
    )["t"]


def _report_epochs(image: MetadataImage) -> Outcome:
    return raise_leader_epochs(
        {"t": {0: 9}}, image, 3, replication_control.condition_of(image), _rules, lambda topic: True
    )["t"]


def _session_ends(node_id: int) -> Decide:
    """Not a decision of a broker: the store ends the lease."""
    return lambda image: Decision(None, {records.session_key(node_id): None})


TOPIC_CONFIG, BROKER_CONFIG, GROUP_CONFIG = ResourceType.TOPIC, ResourceType.BROKER, ResourceType.GROUP

DECISIONS: Mapping[str, Decide] = {
    "create a.b": _create(10, "a.b"),
    "create a_b": _create(11, "a_b"),
    "create new on 4": _create(12, "new", (1, 4)),
    "create gone again": _create(13, "gone"),
    "create large": _create(14, "large", partitions=3),
    "delete a_b": _delete("a_b"),
    "delete new": _delete("new"),
    "delete t": _delete("t"),
    "delete full": _delete("full"),
    "grow t onto 4": _grow("t", 3, (1, 2, 4)),
    "grow full": _grow("full", 3, (1, 2)),
    "grow full beyond a block": _grow("full", 5, (1, 4)),
    "prune tombstones": topic_control.prune_tombstones,
    "reassign t to 4": _reassign("t", (1, 4)),
    "cancel reassignment": _reassign("t", None),
    "register 3 again": lambda image: _register(image, 3),
    "register 4": lambda image: _register(image, 4),
    "begin session of 4": lambda image: (
        cluster_control.begin_session(image, 4, image.brokers[4].epoch, lease=9)
        if 4 in image.brokers
        else RequestError("broker 4 is not registered")
    ),
    "count stop of 3": lambda image: cluster_control.count_stop(image, 3, 7),
    "session of 1 ends": _session_ends(1),
    "session of 2 ends": _session_ends(2),
    "session of 3 ends": _session_ends(3),
    "unregister 3": lambda image: cluster_control.unregister(image, 3),
    "unregister 4": lambda image: cluster_control.unregister(image, 4),
    "take control": lambda image: cluster_control.claim_controller(image, 2),
    "allocate producer ids": cluster_control.next_producer_ids,
    "raise producer ids": lambda image: raise_producer_ids(image, 5000),
    "alter t": _alter(TOPIC_CONFIG, "t", "min.insync.replicas", "2"),
    "replace configs of t": lambda image: legacy_alter_configs(
        {ConfigResource(TOPIC_CONFIG, "t"): {"retention.ms": "3"}}, image, layers(image)
    )[ConfigResource(TOPIC_CONFIG, "t")],
    "lower compaction lag everywhere": _alter(BROKER_CONFIG, "", "log.cleaner.max.compaction.lag.ms", "10"),
    "raise compaction lag of 1": _alter(BROKER_CONFIG, "1", "log.cleaner.min.compaction.lag.ms", "20"),
    "alter 4": _alter(BROKER_CONFIG, "4", "log.retention.ms", "4"),
    "alter group": _alter(GROUP_CONFIG, "g", "consumer.session.timeout.ms", "50000"),
    "elect": _elect,
    "elect preferred": _on_condition(replication_control.elect_preferred),
    "elect unclean": _on_condition(replication_control.elect_unclean, _rules),
    "resign 1": lambda image: _resign(image, 1),
    "come back 2": lambda image: _come_back(image, 2),
    "raise leader epochs": _raise_epochs,
    "report leader epochs": _report_epochs,
    "lead above an epoch": lambda image: replication_control.lead_above({"t": {0: 9, 7: 9}}, image, 1)["t"],
    "isr without 2": _isr((1,), {}),
    "isr of partition 1": _isr((2,), {}, partition=1),
    "isr stays, 3 joins": _isr((1, 2, 3), {3: BROKER_EPOCHS[3]}),
}


def taken(name: str, image: MetadataImage) -> Outcome:
    """The decision of this name, or the error that it is rejected with."""
    try:
        return DECISIONS[name](image)
    except RequestError as error:
        return error


def broken_invariants(image: MetadataImage, keys: Mapping[str, object]) -> list[str]:
    """What must never be true of committed metadata, whichever decisions led to it."""
    found = [
        f"{topic.name}-{index} has a replica on {one}, which is not registered"
        for topic in image.topics.values()
        for index, state in enumerate(topic.partitions)
        for one in state.replicas
        if one not in image.brokers
    ]
    for topic in image.topics.values():
        others = {*image.topics} - {topic.name}
        found += [f"{topic.name} collides with {one}" for one in others if _folded(one) == _folded(topic.name)]
        if topic.name in image.tombstones:
            found.append(f"{topic.name} exists next to its tombstone")
        for state in topic.partitions:
            electable = {*state.isr, *state.elr, *state.adding, *state.removing, state.leader} - {-1}
            if not electable <= set(state.replicas):
                found.append(f"{topic.name} has {state}")
    blocks = [records.split_block(records.split_key(key)[1])[0] for key in keys if key.startswith(records.PARTITIONS)]
    return found + [f"a block of {one} has no topic" for one in blocks if one not in image.topic_ids]


def _folded(name: str) -> str:
    return name.replace(".", "_")
