"""What the controller decides when brokers come and go: new states for the partitions that are concerned.

Every decision compares the controller's own fact, so that a controller that has lost its lease changes nothing. Pure:
reads the image, answers with facts.
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
    """Somebody else holds the controller's lease by now."""

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
    """Topics with a partition whose leader is gone, or whose ISR has somebody who is: quick to find out."""
    able = frozenset(broker for broker in condition.live if condition.can_lead(broker))
    return [
        topic.name
        for topic in image.topics.values()
        if any(state.leader not in able or not able.issuperset(state.isr) for state in topic.partitions)
    ]


def elect(
    names: Collection[str], image: MetadataImage, condition: BrokerLiveness, rules: RulesOf, *, node_id: int
) -> dict[str, Decision[int] | RequestError]:
    """New leaders and ISRs where the present ones are gone. The row is how many partitions changed."""
    check_controls(image, node_id)
    decisions: dict[str, Decision[int] | RequestError] = {}
    for topic in _known(names, image):
        change = partial(succeeded, condition=condition, rules=rules(topic))
        decisions[topic.name] = _changing(topic, change)
    return {name: decisions.get(name, Decision(0, {})) for name in names}


def elect_preferred(
    wanted: Mapping[str, Collection[int]], image: MetadataImage, condition: BrokerLiveness
) -> dict[str, Decision[int] | RequestError]:
    """The first replica takes over in these partitions, where it can. Anybody may wish for that."""
    decisions: dict[str, Decision[int] | RequestError] = {}
    for topic in _known(wanted, image):
        decisions[topic.name] = _changing(
            topic, lambda state: preferred(state, condition), wanted[topic.name], guards=()
        )
    return {name: decisions.get(name, Decision(0, {})) for name in wanted}


def imbalanced_partitions(image: MetadataImage, condition: BrokerLiveness) -> dict[str, list[int]]:
    """Partitions by topic that their first replica could lead, and does not."""
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
    """Somebody leads these partitions, if anybody can: even one that lacks records. Only a person may wish for that."""

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
    """Replicas on the way to other brokers, or back (None). The caller has checked the numbers of replicas."""
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
        if index < len(states):  # else the topic was created again, with fewer partitions
            states[index] = cancelled(states[index]) if replicas is None else begun(states[index], replicas)
    changed = [index for index, state in enumerate(states) if state != topic.partitions[index]]
    writes = dict(records.block_writes(topic.topic_id, states, changed))
    return Decision(len(changed), writes, unchanged=(records.UNREGISTRATIONS,), touched=(records.PLACEMENTS,))


def topics_held_by(image: MetadataImage, node_id: int, *, lost_log: bool = False) -> list[str]:
    """Topics in which this broker leads, or counts as one that holds everything; if its log is lost, all it has."""

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
    """What a broker's own return after an unclean stop means for its partitions, before it registers.

    Where what it had acknowledged may be gone (`has_lost`), it counts as in sync nowhere. `lost_log`: so is all
    else, because its disk is another one. Where it is on disk, it leads on in a new epoch: records
    that were not acknowledged may be gone, and others will take their offsets.
    `condition` says who may take over where it has lost something: the broker itself, if it is alone.
    """

    def returned(state: PartitionRegistration, lost: bool, to: ElectionConfig) -> PartitionRegistration:
        if lost or lost_log:
            return without(state, node_id, condition, to, lost_log=lost_log)
        # Sessions of dead brokers last on for a while, so none of them is elected here. The controller, which is a
        # live broker, elects another one if this broker's next session does not begin first.
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
    """`wanted`: by topic and partition, an epoch above which this broker is to lead. Others' partitions stay as is."""

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
    """A broker whose copies of these partitions are unusable leaves them to others, where there are others.

    Where there is nobody else that holds everything, it stays what it is: whoever repairs its disk loses nothing.
    Unless it holds nothing: then the others are waited for, because to follow its empty log they would truncate theirs.
    With `unless_last` it stays if no other replica is in the ISR or ELR: it may hold nothing because there is nothing.
    Of several replicas that decide so at the same time, one stays, because each compares the partition's state.
    A broker with a full disk does not resign in favor of another one with a full disk. Its replica may be complete,
    and unusable only until there is disk space.
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
    """Those that were not deleted since the names were collected."""
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
