"""What the controller decides when brokers come and go: new states for the partitions that are concerned.

Every decision compares the controller's own fact, so that a controller that has lost its lease changes nothing. Pure:
reads the image, answers with facts.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from headrace.core.cluster import facts
from headrace.core.cluster.image import ClusterImage
from headrace.core.cluster.reassignment import begun, cancelled
from headrace.core.cluster.succession import (
    Condition,
    Rules,
    led_anew,
    preferred,
    set_back,
    succeeded,
    without,
)
from headrace.core.cluster.values import Decision, PartitionState, TopicImage
from headrace.model.configs import log_config
from headrace.model.errors import ErrorCode, RequestError

RulesOf = Callable[[TopicImage], Rules]
Change = Callable[[PartitionState], PartitionState]


class NotController(RequestError):
    """Somebody else holds the controller's lease by now."""

    code = ErrorCode.NOT_CONTROLLER
    retriable = True


def rules_of(topic: TopicImage, broker_configs: Mapping[str, str]) -> Rules:
    config = log_config(topic.configs, broker_configs)
    return Rules(config.min_insync_replicas, config.unclean_leader_election)


def condition_of(image: ClusterImage) -> Condition:
    live = image.live_brokers()
    return Condition(frozenset(live), frozenset(one.node_id for one in live.values() if one.is_stopping))


def check_controls(image: ClusterImage, node_id: int) -> None:
    if image.controller != node_id:
        raise NotController(f"broker {image.controller} is the controller now")


def topics_in_need(image: ClusterImage, condition: Condition) -> list[str]:
    """Topics with a partition whose leader is gone, or whose ISR has somebody who is: quick to find out."""
    able = frozenset(broker for broker in condition.live if condition.can_lead(broker))
    return [
        topic.name
        for topic in image.topics.values()
        if any(state.leader not in able or not able.issuperset(state.isr) for state in topic.partitions)
    ]


def elect(
    names: Collection[str], image: ClusterImage, condition: Condition, rules: RulesOf, *, node_id: int
) -> dict[str, Decision[int] | RequestError]:
    """New leaders and ISRs where the present ones are gone. The row is how many partitions changed."""
    check_controls(image, node_id)
    decisions: dict[str, Decision[int] | RequestError] = {}
    for topic in _known(names, image):
        change = partial(succeeded, condition=condition, rules=rules(topic))
        decisions[topic.name] = _changing(topic, change)
    return {name: decisions.get(name, Decision(0, {})) for name in names}


def elect_preferred(
    wanted: Mapping[str, Collection[int]], image: ClusterImage, condition: Condition
) -> dict[str, Decision[int] | RequestError]:
    """The first replica takes over in these partitions, where it can. Anybody may wish for that."""
    decisions: dict[str, Decision[int] | RequestError] = {}
    for topic in _known(wanted, image):
        decisions[topic.name] = _changing(
            topic, lambda state: preferred(state, condition), wanted[topic.name], guards=()
        )
    return {name: decisions.get(name, Decision(0, {})) for name in wanted}


def out_of_place(image: ClusterImage, condition: Condition) -> dict[str, list[int]]:
    """Partitions by topic that their first replica could lead, and does not."""
    found = {
        topic.name: [
            index for index, state in enumerate(topic.partitions) if preferred(state, condition).leader != state.leader
        ]
        for topic in image.topics.values()
    }
    return {name: indexes for name, indexes in found.items() if indexes}


def elect_unclean(
    wanted: Mapping[str, Collection[int]], image: ClusterImage, condition: Condition, rules: RulesOf
) -> dict[str, Decision[int] | RequestError]:
    """Somebody leads these partitions, if anybody can: even one that lacks records. Only a person may wish for that."""

    def anybody(state: PartitionState, to: Rules) -> PartitionState:
        return state if state.leader in condition.live else succeeded(state, condition, to._replace(unclean=True))

    decisions: dict[str, Decision[int] | RequestError] = {}
    for topic in _known(wanted, image):
        change = partial(anybody, to=rules(topic))
        decisions[topic.name] = _changing(topic, change, wanted[topic.name], guards=())
    return {name: decisions.get(name, Decision(0, {})) for name in wanted}


def reassign(
    wanted: Mapping[str, Mapping[int, tuple[int, ...] | None]], image: ClusterImage
) -> dict[str, Decision[int] | RequestError]:
    """Replicas on the way to other brokers, or back (None). What may be wished for was checked before."""
    decisions: dict[str, Decision[int] | RequestError] = {}
    for topic in _known(wanted, image):
        states = list(topic.partitions)
        for index, replicas in wanted[topic.name].items():
            states[index] = cancelled(states[index]) if replicas is None else begun(states[index], replicas)
        changed = [index for index, state in enumerate(states) if state != topic.partitions[index]]
        decisions[topic.name] = Decision(len(changed), dict(facts.block_writes(topic.topic_id, states, changed)))
    return {name: decisions.get(name, Decision(0, {})) for name in wanted}


def topics_held_by(image: ClusterImage, node_id: int) -> list[str]:
    """Topics in which this broker leads, or counts as one that holds everything."""
    return [
        topic.name for topic in image.topics.values() if any(state.relies_on(node_id) for state in topic.partitions)
    ]


def come_back(
    names: Collection[str],
    image: ClusterImage,
    node_id: int,
    condition: Condition,
    rules: RulesOf,
    has_lost: Callable[[TopicImage], bool],
) -> dict[str, Decision[None] | RequestError]:
    """What a broker's own return after an unclean stop means for its partitions, before it registers.

    Where what it had acknowledged may be gone (`has_lost`), it counts as in sync nowhere. Where it is on disk, it only
    hands over what it leads, or leads on in a new epoch: what nobody was promised may be gone, and other records will
    take those offsets. `condition` says who may take over: the broker itself, if it is alone.
    """

    def returned(state: PartitionState, lost: bool, to: Rules) -> PartitionState:
        if lost:
            return without(state, node_id, condition, to)
        if state.leader != node_id:
            return state
        new = succeeded(state, condition, to)
        return led_anew(state) if new.leader == node_id else new

    decisions: dict[str, Decision[None] | RequestError] = {}
    for topic in _known(names, image):
        change = partial(returned, lost=has_lost(topic), to=rules(topic))
        decision = _changing(topic, change, guards=())
        decisions[topic.name] = Decision(None, decision.writes)
    return {name: decisions.get(name, Decision(None, {})) for name in names}


def resign(
    wanted: Mapping[str, Collection[int]],
    image: ClusterImage,
    node_id: int,
    condition: Condition,
    rules: RulesOf,
    *,
    to_copy_anew: bool = False,
    holds_nothing: bool = False,
) -> dict[str, Decision[int] | RequestError]:
    """A broker whose copies of these partitions are unusable leaves them to others, where there are others.

    Where there is nobody else that holds everything, it stays what it is: whoever repairs its disk loses nothing.
    Unless it holds nothing: then the others are waited for, because to follow its empty log they would cut theirs.
    """
    leave = set_back if to_copy_anew else without
    others = Condition(frozenset(condition.live) - {node_id}, condition.stopping)

    def resigned(state: PartitionState, to: Rules) -> PartitionState:
        able = any(others.can_lead(one) or (holds_nothing and one != node_id) for one in (*state.isr, *state.elr))
        return leave(state, node_id, others, to) if able else state

    decisions: dict[str, Decision[int] | RequestError] = {}
    for topic in _known(wanted, image):
        change = partial(resigned, to=rules(topic))
        decisions[topic.name] = _changing(topic, change, wanted[topic.name], guards=())
    return {name: decisions.get(name, Decision(0, {})) for name in wanted}


def _known(names: Iterable[str], image: ClusterImage) -> Iterable[TopicImage]:
    """Those that were not deleted since the names were collected."""
    return [image.topics[name] for name in names if name in image.topics]


def _changing(
    topic: TopicImage,
    change: Change,
    indexes: Collection[int] | None = None,
    guards: tuple[str, ...] = (facts.CONTROLLER,),
) -> Decision[int]:
    states = [
        change(state) if indexes is None or index in indexes else state for index, state in enumerate(topic.partitions)
    ]
    changed = [index for index, state in enumerate(states) if state != topic.partitions[index]]
    return Decision(len(changed), dict(facts.block_writes(topic.topic_id, states, changed)), unchanged=guards)
