"""Metadata deltas: sent to the subscribers of the metadata image after a change is committed and applied."""

from typing import NamedTuple

from headrace.core.image.model import BrokerRegistration, ConfigResource, TopicImage


class TopicCreated(NamedTuple):
    topic: TopicImage


class TopicDeleted(NamedTuple):
    """The topic in its last state; a topic of the same name may exist by now, with another id."""

    topic: TopicImage


class PartitionsAdded(NamedTuple):
    topic: TopicImage
    first_new: int


class PartitionsChanged(NamedTuple):
    """These partitions have a new leader, epoch, replica list or ISR."""

    topic: TopicImage
    indexes: tuple[int, ...]


class ConfigsChanged(NamedTuple):
    """The configs of a topic, a group, a broker (by id) or all brokers (name '') have changed."""

    resource: ConfigResource


class BrokerRegistered(NamedTuple):
    broker: BrokerRegistration


class BrokerUnregistered(NamedTuple):
    broker: BrokerRegistration


class SessionChanged(NamedTuple):
    """The broker's session has begun or ended, or the broker has started to shut down."""

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
