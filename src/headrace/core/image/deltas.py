"""What became true: told to everyone who follows the image, after it is committed and applied."""

from typing import NamedTuple

from headrace.core.image.model import BrokerRegistration, ConfigResource, TopicImage


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
    broker: BrokerRegistration


class BrokerUnregistered(NamedTuple):
    broker: BrokerRegistration


class SessionChanged(NamedTuple):
    """The broker's session has begun or ended, or it has said that it wants to stop."""

    broker: BrokerRegistration


class ControllerChanged(NamedTuple):
    node_id: int


MetadataDelta = (
    TopicCreated
    | TopicDeleted
    | PartitionsAdded
    | PartitionsChanged
    | ConfigsChanged
    | BrokerRegistered
    | BrokerUnregistered
    | SessionChanged
    | ControllerChanged
)
