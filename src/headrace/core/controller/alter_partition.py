"""AlterPartition: ISR changes that a leader proposes for its own partitions.

A proposal is committed only over the state that it was made for: same leader, same leader epoch, same partition
epoch. A replica joins only if its broker's session began with the broker epoch that it fetched with, so that a
delayed fetch of an earlier incarnation of the broker adds no replica (KIP-903).

Pure; performs no I/O.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from headrace.core.controller.leader_election import ElectionConfig, changed, with_isr
from headrace.core.controller.partition_change import settled
from headrace.core.controller.replication_control import RulesOf
from headrace.core.image import records
from headrace.core.image.metadata_image import MetadataImage
from headrace.core.image.model import Decision, PartitionRegistration
from headrace.model.errors import RequestError, UnknownTopicId


class AlterPartitionItem(NamedTuple):
    """A leader's ISR proposal for one of its partitions."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    partition_epoch: int  # of the state that the proposal was made for
    isr: tuple[int, ...]
    joining: Mapping[int, int]  # replicas that join, with the broker epochs that they fetched with


class IsrOutcome(NamedTuple):
    """Outcome of the proposals for one block: how many were accepted, and which ones can never be committed any more.

    The others were made for an outdated state. The metadata image has the present one.
    """

    good: int
    refused: tuple[AlterPartitionItem, ...]


Block = tuple[UUID, int]


def by_block(proposals: Sequence[AlterPartitionItem]) -> dict[Block, list[AlterPartitionItem]]:
    """Groups proposals by metadata key. Proposals for the same key are committed together."""
    blocks: dict[Block, list[AlterPartitionItem]] = {}
    for proposal in proposals:
        blocks.setdefault((proposal.topic_id, proposal.partition // records.PARTITIONS_PER_BLOCK), []).append(proposal)
    return blocks


def alter_partition(
    wanted: Mapping[Block, Sequence[AlterPartitionItem]], image: MetadataImage, node_id: int, rules: RulesOf
) -> dict[Block, Decision[IsrOutcome] | RequestError]:
    decisions: dict[Block, Decision[IsrOutcome] | RequestError] = {}
    for block, proposals in wanted.items():
        topic_id, _ = block
        name = image.topic_ids.get(topic_id)
        if name is None:
            decisions[block] = UnknownTopicId(f"the topic {topic_id} has been deleted")
            continue
        topic = image.topics[name]
        topic_rules = rules(topic)
        states = list(topic.partitions)
        good: list[int] = []
        refused: list[AlterPartitionItem] = []
        guards: set[str] = set()
        for proposal in proposals:
            if not _is_for(proposal, states[proposal.partition], node_id):
                continue
            if not _may_join(proposal, image):
                # An earlier attempt with an unknown outcome cannot succeed either: its commit compares a session that
                # has ended.
                refused.append(proposal)
                continue
            states[proposal.partition] = _next(states[proposal.partition], proposal, topic_rules)
            # The registration is compared, too. A broker that registers again may have lost what its earlier
            # incarnation fetched, while the session of that incarnation is still valid.
            guards |= {key(broker) for broker in proposal.joining for key in (records.session_key, records.broker_key)}
            good.append(proposal.partition)
        writes = records.block_writes(topic_id, states, good)
        outcome = IsrOutcome(len(good), tuple(refused))
        decisions[block] = Decision(outcome, dict(writes), unchanged=tuple(sorted(guards)))
    return decisions


def _is_for(proposal: AlterPartitionItem, state: PartitionRegistration, node_id: int) -> bool:
    return (
        state.leader == node_id
        and state.leader_epoch == proposal.leader_epoch
        and state.partition_epoch == proposal.partition_epoch
    )


def _may_join(proposal: AlterPartitionItem, image: MetadataImage) -> bool:
    return all(is_eligible(image, broker, epoch) for broker, epoch in proposal.joining.items())


def is_eligible(image: MetadataImage, broker: int, epoch: int) -> bool:
    """Returns whether the broker is live with this broker epoch, is not shutting down and has disk space."""
    known = image.brokers.get(broker)
    if known is None or not known.is_live or known.epoch != epoch:
        return False
    return not known.is_stopping and not known.is_full


def _next(state: PartitionRegistration, proposal: AlterPartitionItem, rules: ElectionConfig) -> PartitionRegistration:
    new = with_isr(state, proposal.isr, rules)
    if new == state:  # the same ISR, proposed to clear a stale ELR
        new = changed(state, elr=())
    return settled(new)._replace(partition_epoch=state.partition_epoch + 1)
