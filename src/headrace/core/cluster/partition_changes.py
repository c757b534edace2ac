"""A decision that changes partitions of several topics, each with an argument of its own.

Pure; performs no I/O.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

from headrace.core.cluster import facts
from headrace.core.cluster.image import ClusterImage
from headrace.core.cluster.values import Decision, PartitionState, TopicImage
from headrace.model.errors import RequestError

Wish = TypeVar("Wish")


def change_wanted(
    wanted: Mapping[str, Mapping[int, Wish]],
    image: ClusterImage,
    change: Callable[[TopicImage, PartitionState, Wish], PartitionState],
) -> dict[str, Decision[int] | RequestError]:
    """New states for partitions that are named with an argument of their change. The row counts changed partitions.

    Topics and partitions that do not exist are skipped: a topic may have been created again, with fewer partitions.
    """
    decisions: dict[str, Decision[int] | RequestError] = {}
    for name, wishes in wanted.items():
        topic = image.topics.get(name)
        if topic is None:
            decisions[name] = Decision(0, {})
            continue
        states = list(topic.partitions)
        for index, wish in wishes.items():
            if index < len(states):
                states[index] = change(topic, states[index], wish)
        changed = [index for index, state in enumerate(states) if state != topic.partitions[index]]
        decisions[name] = Decision(len(changed), dict(facts.block_writes(topic.topic_id, states, changed)))
    return decisions
