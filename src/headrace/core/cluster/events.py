"""What became true: told to everyone who follows the image, after it is committed and applied."""

from typing import NamedTuple

from headrace.core.cluster.values import BrokerInfo, ConfigResource, TopicImage


class TopicCreated(NamedTuple):
    topic: TopicImage


class TopicDeleted(NamedTuple):
    """The topic as it last was; a topic of the same name may exist by now, with another id."""

    topic: TopicImage


class PartitionsAdded(NamedTuple):
    topic: TopicImage
    first_new: int


class PartitionsChanged(NamedTuple):
    """These partitions have a new leader, epoch, replica list or ISR."""

    topic: TopicImage
    indexes: tuple[int, ...]


class ConfigsChanged(NamedTuple):
    """A topic, a group, a broker (by id), or all brokers (name '') have other configs than before."""

    resource: ConfigResource


class BrokerRegistered(NamedTuple):
    broker: BrokerInfo


class BrokerGone(NamedTuple):
    broker: BrokerInfo


class SessionChanged(NamedTuple):
    """The broker's session has begun or ended, or it has said that it wants to stop."""

    broker: BrokerInfo


class ControllerChanged(NamedTuple):
    node_id: int


Event = (
    TopicCreated
    | TopicDeleted
    | PartitionsAdded
    | PartitionsChanged
    | ConfigsChanged
    | BrokerRegistered
    | BrokerGone
    | SessionChanged
    | ControllerChanged
)
