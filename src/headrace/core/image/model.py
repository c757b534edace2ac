"""Immutable value types of the metadata image.

They are named tuples: a topic may have ten thousand partition states, and a tuple is created and compared several
times faster than a dataclass. Its class is defined twenty times faster, which matters for a start within a tenth of a
second.
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
    elr: tuple[int, ...] = ()  # eligible leader replicas: not in the ISR, and have every committed record (KIP-966)
    last_leader: int = NO_LEADER  # the last leader, kept while ISR and ELR are empty
    adding: tuple[int, ...] = ()  # replicas that a reassignment adds; `replicas` contains them already
    removing: tuple[int, ...] = ()  # replicas that it removes once those to be added are in sync
    lost: tuple[int, ...] = ()  # replicas that lost their whole log and have not been in the ISR since

    def is_electable(self, broker: int) -> bool:
        """Returns whether the broker is the leader or may be elected: it is in the ISR or ELR."""
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
    epoch: int  # the broker epoch: the revision of its registration, which rises with every start
    endpoints: tuple[Listener, ...]
    rack: str | None
    directory: str = ""  # the id of its data directory; another id means that the data is gone
    is_live: bool = False  # it has a session that began with or after this registration
    is_stopping: bool = False  # it is shutting down
    # of two processes with the same incarnation, the earlier one is dead; see `LogDirectory.incarnation`
    incarnation: str = ""
    is_full: bool = False  # its disk is full: it leads only where no other replica can
    registrations: int = 0  # registrations and clean stops, as counted in its data directory


class Tombstone(NamedTuple):
    """What is kept of a deleted topic, so that a re-created one can be distinguished from it."""

    topic_id: UUID
    leader_epoch: int
    deleted_ms: int
    former_ids: tuple[UUID, ...] = ()  # of topics of this name that were deleted before


class ResourceType(IntEnum):
    """Resources that have configs, by Kafka's numbers."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    GROUP = 32


class ConfigResource(NamedTuple):
    """A config resource: the name of a topic or group, a broker's id as text, or '' for the cluster-wide default."""

    type: int
    name: str


class Decision(NamedTuple, Generic[Row]):
    """A result, and the metadata records that must be committed together before the result is valid.

    The commit compares the version of every key in `writes` and `unchanged` with the one in the image. Two concurrent
    decisions have the outcome of one after the other, because each compares every key that it read and that the other
    may write. Exceptions, with the same outcome in the end:

    - Elections and ISR changes read topic and broker configs; the decisions that write these read no partition state.
    - Placements and elections read sessions. The controller checks all partitions after every change of a session and
      after every new partition. The session and the registration of a replica that joins an ISR are compared.

    Keys in `touched` are written and not compared: decisions that touch the same key do not conflict with each other,
    only with those that compare it.
    """

    row: Row
    writes: Mapping[str, bytes | None]
    unchanged: tuple[str, ...] = ()
    touched: tuple[str, ...] = ()
