"""Group coordinator: runs the state machines of `core/group` over the partitions of `__consumer_offsets`.

Creates the topic at the first coordinator lookup, follows the leadership of its partitions, and expires offsets.
Handlers use `call` for a decision about one group, or `machines` to read all groups.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.broker.coordinator.context import CoordinatorContext, Waiter
from headrace.broker.coordinator.errors import NotCoordinator
from headrace.broker.coordinator.internal_topic import InternalTopicManager
from headrace.broker.coordinator.leadership_check import can_be_replaced, confirm_leadership
from headrace.broker.coordinator.runtime import CoordinatorRuntime
from headrace.config.keys.group import group_config
from headrace.config.settings import Settings
from headrace.core.coordinator import Answer, CoordinatorTime, Decision, RequestId
from headrace.core.group.consumer.manager import ConsumerGroups
from headrace.core.group.consumer.model import ConsumerGroupConfig
from headrace.core.group.consumer.topic_metadata import Topics
from headrace.core.group.coordinator_shard import GroupCoordinatorShard
from headrace.core.group.model import GroupCoordinatorConfig
from headrace.core.group.offset_manager import REMOVED_MAX
from headrace.core.group.rebalance_history import History
from headrace.core.group.records import NO_TOPIC_ID
from headrace.core.image.deltas import MetadataDelta, TopicCreated, TopicDeleted
from headrace.core.topic import OFFSETS_TOPIC
from headrace.model.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.broker.server import Broker


log = logging.getLogger(__name__)

# Backoff for removing the offsets of a deleted topic while the partition is loading or rejects appends.
REMOVAL_RETRY_S = 0.1
REMOVAL_RETRY_S_MAX = 5.0

Removal = Callable[[GroupCoordinatorShard], Decision[Any]]


class GroupRuntime(CoordinatorRuntime[GroupCoordinatorShard]):
    def __init__(self, broker: "Broker", new_machine: Callable[[], GroupCoordinatorShard]) -> None:
        commit_timeout_ms = broker.settings.integer("offsets.commit.timeout.ms")
        # If a record is skipped, a group continues from an older commit or without its members: consumers reprocess
        # records.
        super().__init__(broker, OFFSETS_TOPIC, new_machine, commit_timeout_ms=commit_timeout_ms, skips_corruption=True)

    async def _load(self, shard: CoordinatorContext[GroupCoordinatorShard]) -> None:
        """Loads a partition, then removes offsets of topics that were recreated while it had no coordinator."""
        await super()._load(shard)
        if shard.is_loaded:
            self._remove(shard.partition.index, GroupCoordinatorShard.remove_outdated, REMOVAL_RETRY_S)

    def remove_everywhere(self, decide: Removal, *, retries: bool = True) -> None:
        for shard in self.led():
            self._remove(shard.partition.index, decide, REMOVAL_RETRY_S if retries else None)

    def topic_created(self, topic: str) -> None:
        """Removes offsets of a former topic of this name.

        Skips partitions that are loading; they remove outdated offsets afterwards.
        """
        for shard in self.shards():
            self._remove(shard.partition.index, lambda machine: machine.topic_created(topic), REMOVAL_RETRY_S)

    def _remove(self, index: int, decide: Removal, retry_s: float | None) -> None:
        """Appends tombstones. With `retry_s`, retries until the partition accepts them or has another leader.

        If the partition is reloaded in between, its new state machine decides. Removals beyond the limit of one
        decision follow in the next event-loop iteration: requests and the broker's session do not wait for them.
        """
        shard = self.led_shard(index)
        if shard is None:
            return
        removed = 0

        def counted(machine: GroupCoordinatorShard) -> Decision[Any]:
            nonlocal removed
            decision = decide(machine)
            removed = len(decision.facts)
            return decision

        try:
            self.decide(shard, counted)
        except Exception as error:
            is_expected = isinstance(error, HeadraceError)
            log.error("%s: offsets could not be removed: %s", shard.partition, error, exc_info=not is_expected)
            if retry_s is not None:
                next_s = min(2 * retry_s, REMOVAL_RETRY_S_MAX)
                asyncio.get_running_loop().call_later(retry_s, self._remove, index, decide, next_s)
            return
        if removed >= REMOVED_MAX:
            asyncio.get_running_loop().call_soon(self._remove, index, decide, retry_s)


_MINUTE_MS = 60_000


class GroupCoordinatorService:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._limits = limits_from(broker.settings)
        self._rules = rules_from(broker.settings)
        self._topics = Topics(broker.image)
        self.runtime = GroupRuntime(broker, self.new_machine)
        self._topic = InternalTopicManager(
            broker,
            self.runtime,
            OFFSETS_TOPIC,
            partitions=broker.settings.integer("offsets.topic.num.partitions"),
            replication_factor=broker.settings.integer("offsets.topic.replication.factor"),
            configs={
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(broker.settings.integer("offsets.topic.segment.bytes")),
            },
        )
        self._expiry: asyncio.TimerHandle | None = None
        self._looks: set[asyncio.Task[None]] = set()

    def new_machine(self) -> GroupCoordinatorShard:
        history = History()
        groups = ConsumerGroups(self._topics, self._rules_of, history)
        return GroupCoordinatorShard(self._limits, groups, history, topic_id_of=self._topic_id_of)

    def _topic_id_of(self, topic: str) -> bytes:
        known = self._broker.image.topics.get(topic)
        return NO_TOPIC_ID if known is None else known.topic_id.bytes

    def _rules_of(self, group_id: str) -> ConsumerGroupConfig:
        overrides = self._broker.image.group_configs.get(group_id)
        return self._rules if overrides is None else rules_from(self._broker.settings, overrides)

    # Requests

    async def call(
        self, group_id: str, decide: Callable[[GroupCoordinatorShard, RequestId, CoordinatorTime], Decision[Any]]
    ) -> Any:
        """Runs a decision of the group's state machine. Returns the reply, which a later decision may produce."""
        return await self.runtime.call(group_id, decide)

    async def ask(self, group_id: str, question: Callable[[GroupCoordinatorShard], Any]) -> Any:
        """Reads from the group's state machine. Returns when the state that was read is committed."""
        return await self.runtime.call(
            group_id, lambda machine, ticket, now: Decision(answers=(Answer(ticket, question(machine)),))
        )

    def look(
        self,
        group_id: str,
        decide: Callable[[GroupCoordinatorShard, RequestId, CoordinatorTime], Decision[Any]],
        waiter: Waiter,
        *,
        confirm: bool = False,
    ) -> None:
        """Runs a read and calls the waiter when its state is committed.

        Fails if another broker may have become the coordinator. That is checked with the followers if `confirm` is
        set or this broker's session may have expired.
        """
        may_be_fenced = self._may_be_fenced()
        if (
            self._broker.membership is None
            or not (confirm or may_be_fenced)
            or not can_be_replaced(self.runtime.shard_for(group_id).partition, may_be_fenced=may_be_fenced)
        ):
            self.runtime.submit(group_id, decide, waiter)
            return
        task = asyncio.create_task(self._look_if_followed(group_id, decide, waiter))
        self._looks.add(task)
        task.add_done_callback(self._looks.discard)

    async def _look_if_followed(
        self,
        group_id: str,
        decide: Callable[[GroupCoordinatorShard, RequestId, CoordinatorTime], Decision[Any]],
        waiter: Waiter,
    ) -> None:
        try:
            if not await confirm_leadership(self.runtime.shard_for(group_id).partition, self._may_be_fenced):
                raise NotCoordinator("another broker may look after the group by now")
            self.runtime.submit(group_id, decide, waiter)
        except HeadraceError as error:
            waiter(error)

    def _may_be_fenced(self) -> bool:
        membership = self._broker.membership
        return membership is not None and membership.may_be_fenced

    def machines(self) -> Iterable[GroupCoordinatorShard]:
        """Returns the state machines of all partitions led here. Raises while one is loading."""
        return [shard.machine for shard in self.runtime.all_shards()]

    def shard(self, index: int) -> CoordinatorContext[GroupCoordinatorShard]:
        """Returns the context of one partition of the topic. Raises unless this broker leads it and has loaded it."""
        return self.runtime.shard(index)

    async def leader_of(self, group_id: str) -> int:
        """Returns the broker that coordinates the group. The first lookup creates the topic."""
        topic = await self._topic.ensure()
        return topic.partitions[self.runtime.partition_of(group_id)].leader

    # Applying cluster metadata

    def start(self) -> None:
        """Loads the partitions that this broker leads, and schedules the expiration of offsets."""
        self._topic.lead()
        self._schedule_expiry()

    def follow(self, event: MetadataDelta) -> None:
        self._topic.follow(event)
        if isinstance(event, TopicDeleted):
            deleted_ms = self._broker.clock.wall_ms()
            self.runtime.remove_everywhere(lambda machine: machine.topic_deleted(event.topic.name, deleted_ms))
        elif isinstance(event, TopicCreated):
            self.runtime.topic_created(event.topic.name)

    def _schedule_expiry(self) -> None:
        interval_ms = self._broker.settings.integer("offsets.retention.check.interval.ms")
        self._expiry = asyncio.get_running_loop().call_later(interval_ms / 1000, self._expire_offsets)

    def _expire_offsets(self) -> None:
        self._schedule_expiry()
        now = self.runtime.now()
        self.runtime.remove_everywhere(lambda machine: machine.expire_offsets(now), retries=False)

    async def close(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        for task in list(self._looks):
            task.cancel()
        await asyncio.gather(*self._looks, return_exceptions=True)
        await self.runtime.close()


def limits_from(settings: Settings) -> GroupCoordinatorConfig:
    return GroupCoordinatorConfig(
        session_timeout_min_ms=settings.integer("group.min.session.timeout.ms"),
        session_timeout_max_ms=settings.integer("group.max.session.timeout.ms"),
        initial_delay_ms=settings.integer("group.initial.rebalance.delay.ms"),
        members_max=settings.integer("group.max.size"),
        offset_metadata_bytes_max=settings.integer("offset.metadata.max.bytes"),
        offsets_retention_ms=settings.integer("offsets.retention.minutes") * _MINUTE_MS,
    )


def rules_from(settings: Settings, overrides: Mapping[str, str] | None = None) -> ConsumerGroupConfig:
    """Returns the configuration of a group with the consumer protocol; `overrides` are the group's own configs."""
    assignors = settings.config("group.consumer.assignors")
    assert isinstance(assignors, tuple), "the key is a list"
    policy = settings.config("group.consumer.migration.policy")
    own, broker = overrides or {}, settings.broker_configs
    return ConsumerGroupConfig(
        session_timeout_ms=group_config("consumer.session.timeout.ms", own, broker),
        heartbeat_interval_ms=group_config("consumer.heartbeat.interval.ms", own, broker),
        assignment_interval_ms=group_config("consumer.assignment.interval.ms", own, broker),
        members_max=settings.integer("group.consumer.max.size"),
        assignors=assignors,
        may_upgrade=policy in ("upgrade", "bidirectional"),
        may_downgrade=policy in ("downgrade", "bidirectional"),
    )
