"""Partition state changes when brokers register, fail, restart, resign or are reassigned.

`elect` compares the controller lease, so that a controller whose lease has expired changes nothing. Any broker may
commit the other decisions, which compare the partition states that they change.

Pure; performs no I/O.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from headrace.config.values import log_config
from headrace.core.controller.leader_election import (
    BrokerLiveness,
    ElectionConfig,
    bump_leader_epoch,
    fence_replica,
    led_above,
    preferred,
    succeeded,
    without,
)
from headrace.core.controller.partition_change import begun, cancelled, change_wanted
from headrace.core.image import records
from headrace.core.image.metadata_image import MetadataImage
from headrace.core.image.model import Decision, PartitionRegistration, TopicImage
from headrace.model.errors import ErrorCode, InvalidReplicaAssignment, RequestError

RulesOf = Callable[[TopicImage], ElectionConfig]
Change = Callable[[PartitionRegistration], PartitionRegistration]


class NotController(RequestError):
    """Another broker holds the controller lease now."""

    code = ErrorCode.NOT_CONTROLLER
    retriable = True


def rules_of(topic: TopicImage, broker_configs: Mapping[str, str]) -> ElectionConfig:
    config = log_config(topic.configs, broker_configs)
    return ElectionConfig(config.min_insync_replicas, config.unclean_leader_election)


def condition_of(image: MetadataImage) -> BrokerLiveness:
    live = image.live_brokers()
    return BrokerLiveness(
        frozenset(live),
        stopping=frozenset(one.node_id for one in live.values() if one.is_stopping),
        full=frozenset(one.node_id for one in live.values() if one.is_full),
    )


def check_controls(image: MetadataImage, node_id: int) -> None:
    if image.controller != node_id:
        raise NotController(f"broker {image.controller} is the controller now")


def topics_with_offline_leader(image: MetadataImage, condition: BrokerLiveness) -> list[str]:
    """Returns topics with a partition whose leader or an ISR member is unavailable.

    Cheap enough to check before every election.
    """
    able = frozenset(broker for broker in condition.live if condition.can_lead(broker))
    return [
        topic.name
        for topic in image.topics.values()
        if any(state.leader not in able or not able.issuperset(state.isr) for state in topic.partitions)
    ]


def elect(
    names: Collection[str], image: MetadataImage, condition: BrokerLiveness, rules: RulesOf, *, node_id: int
) -> dict[str, Decision[int] | RequestError]:
    """Replaces unavailable leaders and removes unavailable ISR members. The row counts changed partitions."""
    check_controls(image, node_id)
    decisions: dict[str, Decision[int] | RequestError] = {}
    for topic in _known(names, image):
        change = partial(succeeded, condition=condition, rules=rules(topic))
        decisions[topic.name] = _changing(topic, change)
    return {name: decisions.get(name, Decision(0, {})) for name in names}


def elect_preferred(
    wanted: Mapping[str, Collection[int]], image: MetadataImage, condition: BrokerLiveness
) -> dict[str, Decision[int] | RequestError]:
    """Moves leadership of these partitions to their preferred leaders, where these can lead.

    Any broker may commit this.
    """
    decisions: dict[str, Decision[int] | RequestError] = {}
    for topic in _known(wanted, image):
        decisions[topic.name] = _changing(
            topic, lambda state: preferred(state, condition), wanted[topic.name], guards=()
        )
    return {name: decisions.get(name, Decision(0, {})) for name in wanted}


def imbalanced_partitions(image: MetadataImage, condition: BrokerLiveness) -> dict[str, list[int]]:
    """Returns, by topic, partitions that are not led by their preferred leader although it could lead."""
    found = {
        topic.name: [
            index for index, state in enumerate(topic.partitions) if preferred(state, condition).leader != state.leader
        ]
        for topic in image.topics.values()
    }
    return {name: indexes for name, indexes in found.items() if indexes}


def elect_unclean(
    wanted: Mapping[str, Collection[int]], image: MetadataImage, condition: BrokerLiveness, rules: RulesOf
) -> dict[str, Decision[int] | RequestError]:
    """Elects a leader for these partitions if any replica is available, even one that lacks records.

    Only on an operator's request.
    """

    def anybody(state: PartitionRegistration, to: ElectionConfig) -> PartitionRegistration:
        return state if state.leader in condition.live else succeeded(state, condition, to._replace(unclean=True))

    decisions: dict[str, Decision[int] | RequestError] = {}
    for topic in _known(wanted, image):
        change = partial(anybody, to=rules(topic))
        decisions[topic.name] = _changing(topic, change, wanted[topic.name], guards=())
    return {name: decisions.get(name, Decision(0, {})) for name in wanted}


def reassign(
    wanted: Mapping[str, Mapping[int, tuple[int, ...] | None]], image: MetadataImage
) -> dict[str, Decision[int] | RequestError]:
    """Starts reassignments, or cancels them (None). The caller has validated the replica counts."""
    decisions: dict[str, Decision[int] | RequestError] = {}
    for topic in _known(wanted, image):
        unknown = {one for replicas in wanted[topic.name].values() for one in replicas or ()} - image.brokers.keys()
        decisions[topic.name] = _no_broker(min(unknown)) if unknown else _reassign(topic, wanted[topic.name])
    return {name: decisions.get(name, Decision(0, {})) for name in wanted}


def _no_broker(node_id: int) -> RequestError:
    return InvalidReplicaAssignment(f"no broker has the id {node_id}")


def _reassign(topic: TopicImage, wanted: Mapping[int, tuple[int, ...] | None]) -> Decision[int]:
    states = list(topic.partitions)
    for index, replicas in wanted.items():
        if index < len(states):  # else the topic was re-created with fewer partitions
            states[index] = cancelled(states[index]) if replicas is None else begun(states[index], replicas)
    changed = [index for index, state in enumerate(states) if state != topic.partitions[index]]
    writes = dict(records.block_writes(topic.topic_id, states, changed))
    return Decision(len(changed), writes, unchanged=(records.UNREGISTRATIONS,), touched=(records.PLACEMENTS,))


def topics_held_by(image: MetadataImage, node_id: int, *, lost_log: bool = False) -> list[str]:
    """Returns topics in which this broker leads, or is in the ISR or ELR.

    With `lost_log`, returns all topics that it has replicas of.
    """

    def is_concerned(state: PartitionRegistration) -> bool:
        return state.is_electable(node_id) or (lost_log and node_id in state.replicas)

    return [topic.name for topic in image.topics.values() if any(map(is_concerned, topic.partitions))]


def handle_unclean_restart(
    names: Collection[str],
    image: MetadataImage,
    node_id: int,
    condition: BrokerLiveness,
    rules: RulesOf,
    has_lost: Callable[[TopicImage], bool],
    *,
    lost_log: bool = False,
) -> dict[str, Decision[None] | RequestError]:
    """Updates a broker's partitions after an unclean stop, before the broker registers.

    Where acknowledged records may be gone (`has_lost`), the broker leaves ISR and ELR. With `lost_log` it does so
    everywhere, because its disk was replaced. Where its records are on disk, it keeps leading in a new epoch: records
    that were not acknowledged may be gone, and new ones take their offsets. `condition` has the brokers that may take
    over where records were lost: the broker itself, if it is the only one.
    """

    def returned(state: PartitionRegistration, lost: bool, to: ElectionConfig) -> PartitionRegistration:
        if lost or lost_log:
            return without(state, node_id, condition, to, lost_log=lost_log)
        # The session of a dead broker is valid for a while, so no broker is elected here. The controller, which is a
        # live broker, elects another leader if this broker's next session does not begin first.
        return bump_leader_epoch(state) if state.leader == node_id else state

    decisions: dict[str, Decision[None] | RequestError] = {}
    for topic in _known(names, image):
        change = partial(returned, lost=has_lost(topic), to=rules(topic))
        decision = _changing(topic, change, guards=())
        decisions[topic.name] = Decision(None, decision.writes)
    return {name: decisions.get(name, Decision(None, {})) for name in names}


def lead_above(
    wanted: Mapping[str, Mapping[int, int]], image: MetadataImage, node_id: int
) -> dict[str, Decision[int] | RequestError]:
    """Raises leader epochs. `wanted` has, by topic and partition, an epoch above which this broker is to lead.

    Partitions that other brokers lead are unchanged.
    """

    def change(_: TopicImage, state: PartitionRegistration, epoch: int) -> PartitionRegistration:
        return led_above(state, node_id, epoch)

    return change_wanted(wanted, image, change)


def resign(
    wanted: Mapping[str, Collection[int]],
    image: MetadataImage,
    node_id: int,
    condition: BrokerLiveness,
    rules: RulesOf,
    *,
    to_copy_anew: bool = False,
    holds_nothing: bool = False,
    unless_last: bool = False,
) -> dict[str, Decision[int] | RequestError]:
    """Resigns leadership and ISR membership of partitions whose replicas on this broker are unusable.

    If no other replica has every committed record, the broker keeps its role, so that an operator who repairs the
    disk loses nothing. Exception: with `holds_nothing` the partition waits for its other replicas, because as
    followers of an empty log they would truncate theirs. With `unless_last` the broker stays if no other replica is
    in the ISR or ELR: its log may be empty because the partition is. Of several replicas that resign at the same
    time, one stays, because each commit compares the partition's state. A broker with a full disk does not resign in
    favor of another one with a full disk: its replica may be complete, and unusable only until there is disk space.
    """
    leave = partial(fence_replica if to_copy_anew else without, lost_log=holds_nothing)
    others = condition.without(node_id)
    can_lead = others.can_lead if node_id in condition.full else others.can_lead_as_last_choice

    def resigned(state: PartitionRegistration, to: ElectionConfig) -> PartitionRegistration:
        if unless_last and {*state.isr, *state.elr} <= {node_id}:
            return state
        able = holds_nothing or any(map(can_lead, (*state.isr, *state.elr)))
        return leave(state, node_id, others, to) if able else state

    decisions: dict[str, Decision[int] | RequestError] = {}
    for topic in _known(wanted, image):
        change = partial(resigned, to=rules(topic))
        decisions[topic.name] = _changing(topic, change, wanted[topic.name], guards=())
    return {name: decisions.get(name, Decision(0, {})) for name in wanted}


def _known(names: Iterable[str], image: MetadataImage) -> Iterable[TopicImage]:
    """Returns the topics that still exist; some may have been deleted since the names were collected."""
    return [image.topics[name] for name in names if name in image.topics]


def _changing(
    topic: TopicImage,
    change: Change,
    indexes: Collection[int] | None = None,
    guards: tuple[str, ...] = (records.CONTROLLER,),
) -> Decision[int]:
    states = [
        change(state) if indexes is None or index in indexes else state for index, state in enumerate(topic.partitions)
    ]
    changed = [index for index, state in enumerate(states) if state != topic.partitions[index]]
    return Decision(len(changed), dict(records.block_writes(topic.topic_id, states, changed)), unchanged=guards)
