"""Recovery of partitions whose log is newer than their metadata.

That is the case after the metadata store was restored from a snapshot. Leader epochs of the restored metadata were
used before, by leaders that the metadata does not contain. A replica that led or followed in such an epoch would take
another history for its own, and replicas would truncate committed records. So the leader epoch is raised above the
log's before any replica leads. The restored ISR is as old as the snapshot: only the replica with the newer epoch
stays eligible, and the others join the ISR when they have caught up with it. A replica that may have lost records in
a power failure waits for one that has not.

A replica that comes later, when another one leads and has committed records without it, does not become leader: the
others would truncate those records. It does not truncate its own log either. Its directory is kept as a stray, and it
is replicated again from the leader (`broker/replication/replica_health.py`).

The next producer id goes back with the metadata, too. A log that contains an id would treat batches of a new producer
with the same id as duplicates of the old one's, or as out of order. So the next id is raised above those of the logs.

Pure; performs no I/O.
"""

from collections.abc import Callable, Mapping

from headrace.core.controller.leader_election import BrokerLiveness, ElectionConfig, succeeded
from headrace.core.controller.partition_change import change_wanted
from headrace.core.controller.replication_control import RulesOf
from headrace.core.image import records
from headrace.core.image.metadata_image import MetadataImage
from headrace.core.image.model import NO_LEADER, Decision, PartitionRegistration, TopicImage
from headrace.model.errors import RequestError

# A higher id was made up by a client: to reach it, brokers would have to allocate a billion ids a second for a century.
# It is ignored. Otherwise a single batch could use up all ids.
PRODUCER_ID_MAX = 2**62
# Logs of other brokers may contain ids above those of the broker that raises the next id. The distance costs nothing:
# there are 2^62.
PRODUCER_ID_JUMP = 2**32


def is_unclaimed(state: PartitionRegistration, log_epoch: int) -> bool:
    """Returns whether the partition waits for a replica that has the records of `log_epoch`.

    A replica that lost records has reported this epoch, and no replica with these records has returned yet. Only a
    restore leads to that: otherwise the epoch of a partition without a leader is in no log.
    """
    is_led = state.leader != NO_LEADER or state.last_leader != NO_LEADER
    return state.leader_epoch == log_epoch and not (is_led or state.isr or state.elr)


def is_doubtful(state: PartitionRegistration, broker: int, *, has_lost: bool) -> bool:
    """Returns whether this replica may lack committed records that another one has.

    `has_lost`: whether it may have lost records in a power failure.
    """
    return has_lost and broker not in state.isr and len(state.replicas) > 1


def is_late(state: PartitionRegistration, broker: int, condition: BrokerLiveness) -> bool:
    """Returns whether a live leader may have committed records without this replica.

    Not while the replica is in ISR or ELR: the leader commits nothing that a member of its ISR lacks, and nothing at
    all while there is an ELR.
    """
    return state.leader != NO_LEADER and state.leader in condition.live and not state.is_electable(broker)


def raised(
    state: PartitionRegistration,
    broker: int,
    log_epoch: int,
    condition: BrokerLiveness,
    rules: ElectionConfig,
    *,
    has_lost: bool = False,
) -> PartitionRegistration:
    """Returns the state in an epoch above `log_epoch`, the newest in this broker's log.

    Returns the same state if it is not behind the log. A state whose epoch is in the log is behind, too, if this
    broker is to lead in that epoch: see `Partition.is_behind_its_log`. A replica that may have lost committed records
    does not become eligible. It leaves the partition without a leader in `log_epoch`, for a replica that has that
    epoch and has lost nothing, or for an unclean election. A live leader that may have committed records without this
    broker stays.
    """
    if broker not in state.replicas or is_late(state, broker, condition):
        return state
    if is_doubtful(state, broker, has_lost=has_lost):
        return _reported(state, broker, log_epoch)
    is_to_lead_in_it = state.leader_epoch == log_epoch and state.leader == broker
    is_claim = is_unclaimed(state, log_epoch) and broker not in state.lost
    if not (state.leader_epoch < log_epoch or is_to_lead_in_it or is_claim):
        return state
    alone = state._replace(
        leader=NO_LEADER,
        isr=(),
        elr=(broker,),
        last_leader=NO_LEADER,
        leader_epoch=log_epoch,
        lost=tuple(one for one in state.lost if one != broker),
    )
    led = succeeded(alone, condition, rules)
    return led._replace(leader_epoch=log_epoch + 1, partition_epoch=state.partition_epoch + 1)


def _reported(state: PartitionRegistration, broker: int, log_epoch: int) -> PartitionRegistration:
    """Reports the log's epoch. `lost` survives a second restart, before which the broker has lost nothing more."""
    if state.leader_epoch < log_epoch:
        state = state._replace(leader=NO_LEADER, isr=(), elr=(), last_leader=NO_LEADER, lost=())
    elif not is_unclaimed(state, log_epoch) or broker in state.lost:
        return state
    return state._replace(
        leader_epoch=log_epoch,
        partition_epoch=state.partition_epoch + 1,
        lost=tuple(one for one in state.replicas if one in state.lost or one == broker),
    )


def raise_leader_epochs(
    wanted: Mapping[str, Mapping[int, int]],
    image: MetadataImage,
    node_id: int,
    condition: BrokerLiveness,
    rules: RulesOf,
    has_lost: Callable[[TopicImage], bool],
) -> dict[str, Decision[int] | RequestError]:
    """Raises leader epochs above those of this broker's logs. The row counts changed partitions.

    `wanted` has, by topic and partition, the newest epoch in the log. `has_lost`: whether this broker's last stop may
    have lost acknowledged records of the topic.
    """

    def change(topic: TopicImage, state: PartitionRegistration, log_epoch: int) -> PartitionRegistration:
        return raised(state, node_id, log_epoch, condition, rules(topic), has_lost=has_lost(topic))

    return change_wanted(wanted, image, change)


def raise_producer_ids(image: MetadataImage, used: int) -> Decision[None]:
    """Raises the next producer id far above `used`, the highest id in the logs.

    Does nothing if the metadata cannot allocate an id that was used.
    """
    if not image.next_producer_id <= used <= PRODUCER_ID_MAX:
        return Decision(None, {})
    floor = used + PRODUCER_ID_JUMP
    return Decision(None, {records.PRODUCER_IDS: records.encode_producer_ids(floor, floor)})
