"""The nouns of the cluster image: small values that never change; a change makes a new one.

They are named tuples: a topic may have ten thousand partition states, and a tuple is made and compared several
times faster than a dataclass; its class is defined twenty times faster, which a start in a tenth of a second feels.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Generic, NamedTuple, TypeVar
from uuid import UUID

from headrace.config.settings import Listener

Row = TypeVar("Row")

NO_LEADER = -1
NO_CONTROLLER = -1


class PartitionRegistration(NamedTuple):
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int  # rises with every new leader
    partition_epoch: int  # rises with every change of this state
    elr: tuple[int, ...] = ()  # out of sync, yet known to hold everything that is committed: they may lead (KIP-966)
    last_leader: int = NO_LEADER  # who led last, remembered while nobody is known to hold everything
    adding: tuple[int, ...] = ()  # replicas that a reassignment brings in; they are among `replicas` already
    removing: tuple[int, ...] = ()  # replicas that it takes away, once those to be added are in sync
    lost: tuple[int, ...] = ()  # replicas that lost their whole log and have not been in the ISR since

    def is_electable(self, broker: int) -> bool:
        """Whether the broker leads, or is one of those that may lead because they hold everything."""
        return broker in (self.leader, *self.isr, *self.elr)


class TopicImage(NamedTuple):
    name: str
    topic_id: UUID
    partitions: tuple[PartitionRegistration, ...]
    configs: Mapping[str, str]  # only what was set on the topic, as canonical text
    former_ids: tuple[UUID, ...] = ()  # of deleted topics of this name, oldest first: their directories may be removed

    @property
    def replication_factor(self) -> int:
        return len(self.partitions[0].replicas)

    @property
    def highest_leader_epoch(self) -> int:
        return max(partition.leader_epoch for partition in self.partitions)

    @property
    def lowest_leader_epoch(self) -> int:
        return min(partition.leader_epoch for partition in self.partitions)


class BrokerRegistration(NamedTuple):
    node_id: int
    epoch: int  # the revision of its registration: every start of the broker has a higher one
    endpoints: tuple[Listener, ...]
    rack: str | None
    directory: str = ""  # the id of its data directory: another one means that the data is gone
    is_live: bool = False  # it has a session that began with or after this registration
    is_stopping: bool = False  # it is shutting down
    incarnation: str = ""  # of two processes with the same one, the earlier is dead; see `LogDirectory.incarnation`
    is_full: bool = False  # its disk is full: it leads only where no other replica can
    registrations: int = 0  # and clean stops, as its data directory counts them


class Tombstone(NamedTuple):
    """What is remembered of a deleted topic, so that its successor can be told from it."""

    topic_id: UUID
    leader_epoch: int
    deleted_ms: int
    former_ids: tuple[UUID, ...] = ()  # of topics of this name that were deleted before


class ResourceType(IntEnum):
    """What configs can be set on, by Kafka's numbers."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    GROUP = 32


class ConfigResource(NamedTuple):
    """The name of a topic or group, a broker's id as text, or '' for the default of all brokers."""

    type: int
    name: str


class Decision(NamedTuple, Generic[Row]):
    """What to answer, and the metadata that must be committed together before it is true.

    The commit compares the version of every key in `writes` and `unchanged` with the one in the image. Two decisions
    that are taken at the same time have the outcome of one after the other, because each compares every key that it
    read and that the other may write. Exceptions, with the same outcome in the end:

    - Elections and ISR changes read topic and broker configs; the decisions that write these read no partition state.
    - Placements and elections read sessions. The controller looks at all partitions after every change of a session
      and after every new partition. A replica that joins an ISR has its session and its registration compared.

    Keys in `touched` are written and not compared: decisions that touch the same key do not conflict with each other,
    only with those that compare it.
    """

    row: Row
    writes: Mapping[str, bytes | None]
    unchanged: tuple[str, ...] = ()
    touched: tuple[str, ...] = ()
