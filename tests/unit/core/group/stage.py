"""A machine on a stage: its log, its timers and its clock are in the test's hands.

Every decision is checked for changing nothing; every fact goes through the log's bytes as well, so that the machine can
be rebuilt from them at any time.
"""

import heapq
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

from headrace.core.coordinator import CoordinatorRecord, CoordinatorTime, Decision, Producer, RequestId
from headrace.core.group.classic.rebalance import JOIN, PENDING, SESSION, SYNC
from headrace.core.group.coordinator_shard import GroupCoordinatorShard
from headrace.core.group.group_manager import timer_name
from headrace.core.group.model import ClassicGroup, GroupCoordinatorConfig, GroupState, Protocol
from headrace.core.group.records import NO_TOPIC_ID

WALL_MS = 1_700_000_000_000
Decide = Callable[[GroupCoordinatorShard, RequestId, CoordinatorTime], Decision[Any]]


class Stage:
    def __init__(self, limits: GroupCoordinatorConfig | None = None, topic_ids: dict[str, bytes] | None = None) -> None:
        self.topic_ids = {} if topic_ids is None else topic_ids
        self.limits = GroupCoordinatorConfig() if limits is None else limits
        self.machine = self.new_machine()
        self.log: list[tuple[CoordinatorRecord, Producer | None]] = []
        self.now_ms = 0
        self.timers: dict[str, int] = {}
        self.waiting: set[RequestId] = set()
        self.answers: list[tuple[RequestId, object]] = []
        self.causes: list[str] = []
        self._tickets = count(1)

    def new_machine(self) -> GroupCoordinatorShard:
        return GroupCoordinatorShard(self.limits, topic_id_of=lambda topic: self.topic_ids.get(topic, NO_TOPIC_ID))

    @property
    def now(self) -> CoordinatorTime:
        return CoordinatorTime(self.now_ms, WALL_MS + self.now_ms)

    def call(self, decide: Decide) -> RequestId:
        """Ask; the answer may come now, later, or as an exception at once."""
        ticket = next(self._tickets)
        before = snapshot(self.machine)
        decision = decide(self.machine, ticket, self.now)
        assert snapshot(self.machine) == before, "deciding changes nothing"
        self.waiting.add(ticket)
        self.carry_out(decision)
        return ticket

    def reply(self, decide: Decide) -> Any:
        """Ask what is answered at once."""
        ticket = self.call(decide)
        (reply,) = [reply for answered, reply in self.answers if answered == ticket]
        if isinstance(reply, Exception):
            raise reply
        return reply

    def carry_out(self, decision: Decision[Any]) -> None:
        for fact in decision.facts:
            record = self.machine.encode(fact)
            self.machine.apply(fact, len(self.log))
            if record is not None:
                self.log.append((record, decision.producer))
            if getattr(fact, "cause", ""):
                self.causes.append(fact.cause)
        for name, due_ms in decision.timers:
            self.timers.pop(name, None)
            if due_ms is not None:
                self.timers[name] = due_ms
        for ticket, reply in decision.answers:
            assert ticket in self.waiting, "nobody is answered twice"
            self.waiting.discard(ticket)
            self.answers.append((ticket, reply))

    def pass_time(self, duration_ms: int) -> None:
        until_ms = self.now_ms + duration_ms
        while self.timers:
            due_ms, name = heapq.nsmallest(1, ((due, name) for name, due in self.timers.items()))[0]
            if due_ms > until_ms:
                break
            self.now_ms = max(self.now_ms, due_ms)
            del self.timers[name]
            self.carry_out(self.machine.expire(name, self.now))
        self.now_ms = until_ms

    def rebuilt(self) -> GroupCoordinatorShard:
        machine = self.new_machine()
        for offset, (record, producer) in enumerate(self.log):
            if producer is None:
                machine.replay(record, offset)
            else:
                machine.replay_in_transaction(record, offset, producer)
        return machine

    def crash(self) -> None:
        """The coordinator dies; another one reads the log. Whoever waited never hears of it."""
        self.machine = self.rebuilt()
        self.timers.clear()
        self.waiting.clear()
        self.carry_out(self.machine.loaded(self.now))

    def check_log(self) -> None:
        """What is written down is what a new coordinator would know."""
        rebuilt = self.rebuilt()
        assert offsets_of(rebuilt) == offsets_of(self.machine)
        for group_id, group in groups_of(self.machine).items():
            known = rebuilt.classic.get(group_id)
            if group.state is GroupState.STABLE or (group.state is GroupState.EMPTY and group.generation):
                assert known == as_written(group)
            if known is not None:
                assert known.generation <= group.generation
        assert set(groups_of(rebuilt)) <= set(groups_of(self.machine))


def groups_of(machine: GroupCoordinatorShard) -> dict[str, ClassicGroup]:
    found = (machine.classic.get(listing.group_id) for listing in machine.classic.listings())
    return {group.group_id: group for group in found if group is not None}


def timers_of(group: ClassicGroup | None) -> set[str]:
    """Those that a classic group must have: one for everything that waits, so that it has an end."""
    if group is None:
        return set()
    group_id, wanted = group.group_id, set()
    for member in group.members.values():
        if not member.is_parked or member.is_new:
            wanted.add(timer_name("classic", SESSION, group_id, member.member_id))
    wanted |= {timer_name("classic", PENDING, group_id, member_id) for member_id in group.pending}
    if group.state is GroupState.PREPARING:
        wanted.add(timer_name("classic", JOIN, group_id))
    if group.unsynced:
        wanted.add(timer_name("classic", SYNC, group_id))
    return wanted


def offsets_of(machine: GroupCoordinatorShard) -> dict[str, dict[Any, Any]]:
    return {group_id: dict(machine.offsets.of_group(group_id)) for group_id in machine.offsets.groups()}


def snapshot(machine: GroupCoordinatorShard) -> object:
    return groups_of(machine), offsets_of(machine)


def as_written(group: ClassicGroup) -> ClassicGroup:
    """A settled group without what only its coordinator knows."""
    members = {
        name: replace(
            member,
            joining=None,
            syncing=None,
            is_new=False,
            protocols=(Protocol(group.protocol or "", member.metadata_for(group.protocol)),),
        )
        for name, member in group.members.items()
    }
    return replace(group, members=members, pending=frozenset(), unsynced=frozenset(), initial=None)
