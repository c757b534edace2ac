"""State machine of one partition of `__consumer_offsets`: groups of every type, and their offsets.

Each group type has a group manager (`group_manager.py`): `core/group/classic/manager.py` for groups of the classic
protocol; consumer groups of KIP-848 are added to `families` the same way, with their own kinds of records and timers.
This module has what concerns all types: the type of a group, offsets, listing, deletion. Pure; performs no I/O.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from headrace.core.coordinator import (
    Answer,
    CoordinatorRecord,
    CoordinatorTime,
    Decision,
    Producer,
    RequestId,
    Timer,
    merged,
)
from headrace.core.group.classic.manager import ClassicGroups
from headrace.core.group.classic.membership import check_group_id, check_metadata
from headrace.core.group.errors import (
    GroupNotFound,
    GroupSubscribedToTopic,
    IllegalGeneration,
    NonEmptyGroup,
    OffsetMetadataTooLarge,
    UnstableOffset,
)
from headrace.core.group.group_manager import ClassicProtocolSupport, Committer, GroupManager, OffsetExpirationCondition
from headrace.core.group.model import (
    GroupChanged,
    GroupCoordinatorConfig,
    GroupListing,
    GroupState,
    JoinRequest,
    MemberIdentity,
    SyncRequest,
)
from headrace.core.group.offset_manager import (
    NO_PRODUCER,
    REMOVED_MAX,
    OffsetCommitted,
    OffsetFact,
    OffsetForgotten,
    Offsets,
    TopicOffsetsRemoved,
)
from headrace.core.group.rebalance_history import History
from headrace.core.group.records import (
    NO_TOPIC_ID,
    OFFSET_KEYS,
    OffsetAndMetadata,
    OffsetKey,
    offset_record,
    read_offset,
    read_offset_key,
    record_kind,
)
from headrace.model.errors import HeadraceError, UnknownTopic
from headrace.model.ids import TopicPartition

TIME_MS_MAX = 2**63 - 1  # the latest timestamp of a record

Outcomes = dict[TopicPartition, HeadraceError | None]


class NewOffset(NamedTuple):
    partition: TopicPartition
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    retention_ms: int = -1  # old clients may request a retention time; -1: the broker's
    topic_id: bytes = NO_TOPIC_ID  # of the topic that the request was resolved to


class FetchedOffsets(NamedTuple):
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    unstable: frozenset[TopicPartition]

    def of(self, partition: TopicPartition, topic_id: bytes) -> OffsetAndMetadata | None:
        """Returns the committed offset, unless its topic id is that of another topic with the same name."""
        committed = self.offsets.get(partition)
        return None if committed is None or is_of_another_topic(committed.topic_id, topic_id) else committed


TopicIdOf = Callable[[str], bytes]  # NO_TOPIC_ID if there is no such topic


def no_topic_ids(topic: str) -> bytes:
    return NO_TOPIC_ID


def is_of_another_topic(topic_id: bytes, present_id: bytes) -> bool:
    """Returns whether two topic ids differ. As in Kafka, an unknown id matches every topic."""
    return topic_id != present_id and topic_id != NO_TOPIC_ID and present_id != NO_TOPIC_ID


class GroupCoordinatorShard:
    def __init__(
        self, limits: GroupCoordinatorConfig, *more_families: GroupManager, topic_id_of: TopicIdOf = no_topic_ids
    ) -> None:
        """`topic_id_of` returns the present id of a topic."""
        self._limits = limits
        self._topic_id_of = topic_id_of
        self.offsets = Offsets()
        self.classic = ClassicGroups(limits)
        self.families: tuple[GroupManager, ...] = (self.classic, *more_families)
        self._history = next((family for family in more_families if isinstance(family, History)), None)
        self._doors = [family for family in self.families if isinstance(family, ClassicProtocolSupport)]
        self._by_fact = {kind: family for family in self.families for kind in family.fact_types}
        self._by_record = {kind: family for family in self.families for kind in family.record_kinds}

    def family_of(self, group_id: str) -> GroupManager | None:
        """Returns the group manager of the group; None for a group with offsets only and for an unknown one."""
        for family in self.families:
            if family.holds(group_id):
                return family
        return None

    # CoordinatorShard (core/coordinator.py)

    def encode(self, fact: Any) -> CoordinatorRecord | None:
        if isinstance(fact, OffsetCommitted):
            return offset_record(fact.key, fact.committed)
        if isinstance(fact, OffsetForgotten):
            return offset_record(fact.key, None)
        if isinstance(fact, TopicOffsetsRemoved):
            return None
        return self._by_fact[type(fact)].encode(fact)

    def apply(self, fact: Any, offset: int) -> None:
        if isinstance(fact, OffsetFact):
            self.offsets.apply(fact, offset)
        else:
            self._by_fact[type(fact)].apply(fact, offset)

    def replay(self, record: CoordinatorRecord, offset: int) -> None:
        key, value = record
        if key[:2] in OFFSET_KEYS:  # nearly all records, so without another call
            if value is None:
                self.offsets.forget(read_offset_key(key))
            else:
                self.offsets.put(read_offset_key(key), read_offset(value, offset))
            return
        kind = record_kind(record)
        if kind in self._by_record:
            self._by_record[kind].replay(kind, record, offset)

    def replay_in_transaction(self, record: CoordinatorRecord, offset: int, producer: Producer) -> None:
        if record.key[:2] not in OFFSET_KEYS:
            return
        key = read_offset_key(record.key)
        if record.value is None:
            self.offsets.forget(key)
        else:
            self.offsets.put(key, read_offset(record.value, offset), producer.producer_id)

    def transaction_ended(self, producer_id: int, *, committed: bool) -> None:
        self.offsets.transaction_ended(producer_id, committed=committed)

    def loaded(self, now_ms: CoordinatorTime) -> Decision[Any]:
        return merged([family.loaded(now_ms) for family in self.families])

    def expire(self, timer: str, now_ms: CoordinatorTime) -> Decision[Any]:
        name, _, rest = timer.partition(" ")
        family = next(family for family in self.families if family.name == name)
        return self._noted(family.expire(rest, now_ms), now_ms)

    def _noted(self, decision: Decision[Any], now: CoordinatorTime) -> Decision[Any]:
        """Adds the history records of classic groups' rebalances to the decision."""
        if self._history is None:
            return decision
        changes = [fact for fact in decision.facts if isinstance(fact, GroupChanged)]
        notes = [
            note
            for change in changes
            for note in self._history.of_classic(
                self.classic.get(change.group.group_id), change.group, change.cause, now
            )
        ]
        return replace(decision, facts=(*decision.facts, *notes)) if notes else decision

    # The classic protocol. Managers of other group types may also admit classic-protocol members.

    def join(self, request: JoinRequest, new_id: str, ticket: RequestId, now: CoordinatorTime) -> Decision[Any]:
        check_metadata(request)
        family = self.family_of(request.group_id)
        if family is None or family is self.classic or not family.is_empty(request.group_id):
            return self._noted(self._classic_door(request.group_id).join(request, new_id, ticket, now), now)
        # An empty group takes on the type of its next first member.
        emptied: Decision[Any] = Decision(facts=family.forget(request.group_id))
        return merged([emptied, self._noted(self.classic.join(request, new_id, ticket, now), now)])

    def sync(self, request: SyncRequest, ticket: RequestId, now: CoordinatorTime) -> Decision[Any]:
        return self._noted(self._classic_door(request.group_id).sync(request, ticket, now), now)

    def heartbeat(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        ticket: RequestId,
        now: CoordinatorTime,
    ) -> Decision[Any]:
        return self._classic_door(group_id).heartbeat(group_id, member_id, instance_id, generation, ticket, now)

    def leave(
        self, group_id: str, leaving: Sequence[MemberIdentity], ticket: RequestId, now: CoordinatorTime
    ) -> Decision[Any]:
        return self._noted(self._classic_door(group_id).leave(group_id, leaving, ticket, now), now)

    def _classic_door(self, group_id: str) -> ClassicProtocolSupport:
        for door in self._doors:
            if door.holds(group_id):
                return door
        return self.classic

    # Offsets

    def commit(
        self,
        group_id: str,
        committer: Committer,
        wanted: Sequence[NewOffset],
        ticket: RequestId,
        now: CoordinatorTime,
        producer: Producer | None = None,
    ) -> Decision[Any]:
        """Handles OffsetCommit and TxnOffsetCommit. The response has an error or None for each partition."""
        check_group_id(group_id)
        timers = self._check_commit(group_id, committer, now)
        outcomes: Outcomes = {}
        facts: list[OffsetCommitted] = []
        producer_id = NO_PRODUCER if producer is None else producer.producer_id
        for partition, offset, leader_epoch, note, retention_ms, topic_id in wanted:
            if note and len(note.encode()) > self._limits.offset_metadata_bytes_max:
                outcomes[partition] = OffsetMetadataTooLarge(f"the note for {partition} is too long")
                continue
            # A transactional commit waits for the transaction coordinator after its topics were resolved. They may have
            # been re-created since.
            if producer is not None and is_of_another_topic(topic_id, self._topic_id_of(partition.topic)):
                outcomes[partition] = UnknownTopic(f"topic {partition.topic} was deleted and created again")
                continue
            outcomes[partition] = None
            expires_ms = -1 if retention_ms < 0 else min(now.wall_ms + retention_ms, TIME_MS_MAX)
            committed = OffsetAndMetadata(offset, leader_epoch, note, now.wall_ms, expires_ms, topic_id)
            facts.append(OffsetCommitted(OffsetKey(group_id, partition), committed, producer_id))
        return Decision(answers=(Answer(ticket, outcomes),), facts=facts, timers=timers, producer=producer)

    def _check_commit(self, group_id: str, committer: Committer, now: CoordinatorTime) -> Sequence[Timer]:
        family = self.family_of(group_id)
        if family is not None:
            return family.check_commit(group_id, committer, now)
        # A consumer without a group, or an administrator, commits under a group id without members.
        if committer.generation >= 0:
            raise IllegalGeneration(f"there is no group {group_id}, so it has no generation {committer.generation}")
        return ()

    def fetch(self, group_id: str, committer: Committer, *, require_stable: bool) -> FetchedOffsets:
        family = self.family_of(group_id)
        if family is not None:
            family.check_fetch(group_id, committer)
        unstable = frozenset(
            partition
            for partition, pending in (self.offsets.pending(group_id) if require_stable else ())
            if not is_of_another_topic(pending.topic_id, self._topic_id_of(partition.topic))
        )
        return FetchedOffsets(dict(self.offsets.of_group(group_id)), unstable)

    def forget_offsets(self, group_id: str, wanted: Iterable[TopicPartition], ticket: RequestId) -> Decision[Any]:
        """Handles OffsetDelete. The response has an error or None for each partition."""
        family = self.family_of(group_id)
        if family is None and not self.offsets.holds(group_id):
            raise GroupNotFound(f"there is no group {group_id}")
        in_use: frozenset[str] = frozenset()
        if family is not None and not family.is_empty(group_id):
            subscribed = family.subscribed_topics(group_id)
            if subscribed is None:
                raise NonEmptyGroup(f"group {group_id} has members, and their subscriptions are unknown")
            in_use = subscribed
        known, unstable = self.offsets.of_group(group_id), self.offsets.unstable(group_id)
        outcomes: Outcomes = {}
        for partition in wanted:
            if partition.topic in in_use:
                outcomes[partition] = GroupSubscribedToTopic(f"members of {group_id} read {partition.topic}")
            elif partition in unstable:
                outcomes[partition] = UnstableOffset(f"a transaction commits an offset for {partition}")
            else:
                outcomes[partition] = None
        gone = [one for one, outcome in outcomes.items() if outcome is None and one in known]
        facts = [OffsetForgotten(OffsetKey(group_id, one)) for one in gone]
        return Decision(answers=(Answer(ticket, outcomes),), facts=facts, is_divisible=True)

    def topic_deleted(self, topic: str, deleted_ms: int = TIME_MS_MAX) -> Decision[Any]:
        """Removes the offsets of a deleted topic, committed and pending.

        Offsets with the id of a new topic of the same name stay. Those without an id, from older versions, stay if
        they were committed after `deleted_ms`.

        If the decision has at least REMOVED_MAX records, the caller repeats the call after they are applied: there
        may be more to remove.
        """
        present_id = self._topic_id_of(topic)

        def is_outdated(committed: OffsetAndMetadata) -> bool:
            if committed.topic_id == NO_TOPIC_ID:
                return committed.committed_ms <= deleted_ms
            return committed.topic_id != present_id

        return Decision(facts=self.offsets.removal(topic, is_outdated), is_divisible=True)

    def topic_created(self, topic: str) -> Decision[Any]:
        """Removes offsets of an earlier topic of the same name, whose deletion this coordinator has not seen."""
        return Decision(facts=self._removal_for_another_topic(topic), is_divisible=True)

    def remove_outdated(self) -> Decision[Any]:
        """`topic_created` for all topics: another broker may have been the coordinator when they were re-created."""
        facts: list[OffsetFact] = []
        for topic in self.offsets.topics_with_ids():
            facts += self._removal_for_another_topic(topic)
            if len(facts) >= REMOVED_MAX:
                break
        return Decision(facts=facts, is_divisible=True)

    def _removal_for_another_topic(self, topic: str) -> list[OffsetFact]:
        known_ids = self.offsets.topics_with_ids().get(topic)
        if known_ids is None:
            return []
        present_id = self._topic_id_of(topic)
        if not any(is_of_another_topic(one, present_id) for one in known_ids):
            return []
        return self.offsets.removal(topic, lambda committed: is_of_another_topic(committed.topic_id, present_id))

    def expire_offsets(self, now: CoordinatorTime) -> Decision[Any]:
        """Removes expired offsets, and groups that have no offsets left. To be repeated like `topic_deleted`."""
        facts: list[Any] = []
        groups = {listing.group_id for listing in self.listings()}
        for group_id in groups:
            facts += self._expired_facts(group_id, now.wall_ms)
            if len(facts) >= REMOVED_MAX:
                break
        # Offsets are removed before their group: after a crash in between, the group is loaded as an empty one and
        # expires next time.
        return Decision(facts=facts, is_divisible=True)

    def _expired_facts(self, group_id: str, wall_ms: int) -> list[Any]:
        family = self.family_of(group_id)
        rule = OffsetExpirationCondition() if family is None else family.offsets_rule(group_id)
        known, unstable = self.offsets.of_group(group_id), self.offsets.unstable(group_id)
        gone = [
            partition
            for partition, committed in known.items()
            if partition not in unstable and self._is_expired(partition, committed, rule, wall_ms)
        ]
        facts: list[Any] = [OffsetForgotten(OffsetKey(group_id, partition)) for partition in gone[:REMOVED_MAX]]
        if len(gone) > REMOVED_MAX:
            return facts
        if family is not None and family.is_empty(group_id) and len(gone) == len(known) and not unstable:
            facts += family.forget(group_id)
            if self._history is not None:
                facts += self._history.forget(group_id)
        return facts

    def _is_expired(
        self, partition: TopicPartition, committed: OffsetAndMetadata, rule: OffsetExpirationCondition, wall_ms: int
    ) -> bool:
        if committed.expires_ms >= 0:
            return wall_ms >= committed.expires_ms
        if rule.keeps_all or partition.topic in rule.keeps_topics:
            return False
        since_ms = committed.committed_ms if rule.idle_since_ms is None else rule.idle_since_ms
        return wall_ms - max(since_ms, committed.committed_ms) >= self._limits.offsets_retention_ms

    # Groups of every type

    def listings(self) -> Iterable[GroupListing]:
        named = set()
        for family in self.families:
            for listing in family.listings():
                named.add(listing.group_id)
                yield listing
        for group_id in self.offsets.groups():
            if group_id not in named:
                yield GroupListing(group_id, "", GroupState.EMPTY, self.classic.name)

    def delete(self, group_id: str, ticket: RequestId) -> Decision[Any]:
        """Deletes one group without members, and its offsets."""
        family = self.family_of(group_id)
        if family is None and not self.offsets.holds(group_id):
            raise GroupNotFound(f"there is no group {group_id}")
        if family is not None and not family.is_empty(group_id):
            raise NonEmptyGroup(f"group {group_id} has members")
        if self.offsets.has_pending(group_id):
            raise NonEmptyGroup(f"a transaction commits offsets of group {group_id}")
        facts: list[Any] = [OffsetForgotten(OffsetKey(group_id, one)) for one in self.offsets.of_group(group_id)]
        if family is not None:
            facts += family.forget(group_id)
        if self._history is not None:
            facts += self._history.forget(group_id)
        return Decision(answers=(Answer(ticket, None),), facts=facts, is_divisible=True)
