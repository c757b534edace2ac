"""A classic group that becomes a consumer group, in one machine, live and rebuilt from the log."""

from typing import Any

import pytest

from headrace.core.coordinator import CoordinatorRecord, CoordinatorTime, Decision
from headrace.core.group.consumer.consumer_protocol import read_assignment, write_assignment
from headrace.core.group.consumer.manager import ConsumerGroups, consumer_groups
from headrace.core.group.consumer.model import ConsumerGroupConfig, Heartbeat, Partitions
from headrace.core.group.consumer.topic_metadata import Topics
from headrace.core.group.consumer.upgrade import report
from headrace.core.group.coordinator_shard import GroupCoordinatorShard
from headrace.core.group.errors import GroupNotFound, IllegalGeneration, MemberIdRequired, RebalanceInProgress
from headrace.core.group.model import (
    GroupCoordinatorConfig,
    JoinRequest,
    MemberIdentity,
    Protocol,
    SyncReply,
    SyncRequest,
)
from headrace.core.group.rebalance_history import History
from headrace.protocol.primitives import INT16, INT32, string
from tests.unit.core.group.consumer.consumer_kit import FakeImage, parts, same_groups

NOW = CoordinatorTime(1_000, 1_700_000_000_000)
RULES = ConsumerGroupConfig()


class Shell:
    """Carries out decisions as the broker does: the log, then the machine, then the answers."""

    def __init__(self, rules: ConsumerGroupConfig = RULES) -> None:
        self.image = FakeImage()
        self.image.set_topics(t=2)
        self.topics = Topics(self.image)
        self._rules = rules
        self.machine = self._new_machine()
        self.log: list[CoordinatorRecord] = []
        self.answers: dict[int, Any] = {}

    def _new_machine(self) -> GroupCoordinatorShard:
        history = History()
        return GroupCoordinatorShard(
            GroupCoordinatorConfig(initial_delay_ms=0),
            ConsumerGroups(self.topics, lambda group_id: self._rules, history),
            history,
        )

    def carry_out(self, decision: Decision[Any]) -> None:
        for fact in decision.facts:
            record = self.machine.encode(fact)
            if record is not None:
                self.log.append(record)
            self.machine.apply(fact, len(self.log))
        self.answers.update(dict(decision.answers))

    def rebuilt(self) -> GroupCoordinatorShard:
        machine = self._new_machine()
        for offset, record in enumerate(self.log):
            machine.replay(record, offset)
        return machine

    def join(self, member_id: str, owned: Partitions | None = None, ticket: int = 1) -> Any:
        request = JoinRequest(
            group_id="g",
            member_id=member_id,
            client_id="c",
            client_host="/h",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=(Protocol("range", self._subscription(owned or {})),),
            needs_known_id=False,
        )
        self.carry_out(self.machine.join(request, "old", ticket, NOW))
        return self.answers.get(ticket)

    def _subscription(self, owned: Partitions) -> bytes:
        rows = write_assignment(owned, self.topics)[INT16.size : -INT32.size]
        return INT16.pack(1) + INT32.pack(1) + string("t", False) + INT32.pack(-1) + rows

    def sync(self, member_id: str, generation: int, *given: tuple[str, Partitions]) -> Partitions:
        assignments = {name: write_assignment(partitions, self.topics) for name, partitions in given}
        request = SyncRequest(group_id="g", member_id=member_id, generation=generation, assignments=assignments)
        self.carry_out(self.machine.sync(request, 2, NOW))
        assert isinstance(self.answers[2], SyncReply)
        return read_assignment(self.answers[2].assignment, self.topics)

    def beat(self, member_id: str, generation: int) -> Any:
        self.carry_out(self.machine.heartbeat("g", member_id, None, generation, 3, NOW))
        return self.answers[3]

    def report(self, member_id: str, epoch: int, **said: Any) -> Any:
        if epoch == 0:
            said = {"topics": ("t",), "rebalance_timeout_ms": 60_000, "owned": {}, **said}
        self.carry_out(report(self.machine, Heartbeat("g", member_id, epoch, **said), lambda name: True, 4, NOW))
        return self.answers[4]

    @property
    def kind(self) -> str:
        family = self.machine.family_of("g")
        assert family is not None
        assert same_groups(consumer_groups(self.rebuilt()), consumer_groups(self.machine))
        assert [one.name for one in self.rebuilt().families if one.holds("g")] == [family.name]
        return family.name


@pytest.fixture
def shell() -> Shell:
    """A stable classic group, whose member `old` has both partitions."""
    shell = Shell()
    joined = shell.join("")
    assert shell.sync("old", joined.generation, ("old", parts(t={0, 1}))) == parts(t={0, 1})
    assert shell.kind == "classic"
    return shell


def test_members_keep_what_they_have_when_the_group_changes_its_protocol(shell: Shell) -> None:
    reply = shell.report("new", 0)
    assert (reply.epoch, reply.assigned) == (2, {})
    assert shell.kind == "consumer"
    group = consumer_groups(shell.machine).get("g")
    assert group.holding("old").assigned == parts(t={0, 1})


def test_a_classic_member_gives_up_its_share_by_joining_again(shell: Shell) -> None:
    shell.report("new", 0)
    assert isinstance(shell.beat("old", 1), RebalanceInProgress)
    joined = shell.join("old", parts(t={0, 1}))
    kept = shell.sync("old", joined.generation)
    assert len(kept) == 1
    assert joined.generation == 1, "it has not given anything up yet"
    assert isinstance(shell.beat("old", 1), RebalanceInProgress)
    joined = shell.join("old", kept)
    assert joined.generation == 2
    assert shell.sync("old", 2) == kept
    assert shell.beat("old", 2) is None
    given = shell.report("new", 2).assigned
    assert sorted(index for share in (kept, given) for indexes in share.values() for index in indexes) == [0, 1]
    with pytest.raises(IllegalGeneration):
        shell.beat("old", 1)


def test_whoever_waits_for_the_others_is_told_to_join_again(shell: Shell) -> None:
    shell.join("old", ticket=8)  # the leader wants a new generation, and others
    shell.answers.pop(8, None)
    other = JoinRequest(
        group_id="g",
        client_id="c",
        client_host="/h",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=(Protocol("range", shell._subscription({})),),
        needs_known_id=False,
    )
    shell.carry_out(shell.machine.join(other, "other", 9, NOW))
    assert 9 not in shell.answers
    shell.report("new", 0)
    assert isinstance(shell.answers[9], RebalanceInProgress)
    assert shell.kind == "consumer"


def test_a_classic_member_joins_a_consumer_group_and_leaves_it() -> None:
    shell = Shell()
    shell.report("new", 0)
    assert shell.join("").generation == 2
    assert shell.sync("old", 2) == {}
    shell.carry_out(shell.machine.leave("g", [MemberIdentity("old"), MemberIdentity("stranger")], 5, NOW))
    assert [None if one is None else one.code.name for one in shell.answers[5]] == [None, "UNKNOWN_MEMBER_ID"]
    assert shell.kind == "consumer"


def test_an_empty_group_takes_on_the_kind_of_whoever_comes_next(shell: Shell) -> None:
    shell.carry_out(shell.machine.leave("g", [MemberIdentity("old")], 5, NOW))
    shell.report("new", 0)
    assert shell.kind == "consumer"
    shell.report("new", -1)
    joined = shell.join("")
    shell.sync("old", joined.generation, ("old", parts(t={0, 1})))
    assert shell.kind == "classic"


def test_a_group_keeps_its_protocol_where_the_configuration_says_so() -> None:
    shell = Shell(ConsumerGroupConfig(may_upgrade=False))
    joined = shell.join("")
    shell.sync("old", joined.generation, ("old", parts(t={0, 1})))
    with pytest.raises(GroupNotFound):
        shell.report("new", 0)
    assert shell.kind == "classic"


def test_a_classic_newcomer_comes_back_with_the_id_it_was_given() -> None:
    shell = Shell()
    shell.report("new", 0)
    request = JoinRequest(
        group_id="g",
        client_id="c",
        client_host="/h",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=(Protocol("range", shell._subscription({})),),
    )
    with pytest.raises(MemberIdRequired):
        shell.machine.join(request, "old", 1, NOW)
    assert shell.join("old").member_id == "old"


def test_a_group_changes_back_when_its_last_member_of_the_new_protocol_has_gone(shell: Shell) -> None:
    shell.report("new", 0)
    shell.report("new", -1)
    assert shell.kind == "classic"
    assert isinstance(shell.beat("old", 2 + 1), RebalanceInProgress), "everybody joins again"
    joined = shell.join("old")
    assert [one.member_id for one in joined.members] == ["old"], "and one of them leads"
    assert shell.sync("old", joined.generation, ("old", parts(t={0, 1}))) == parts(t={0, 1})
    assert shell.kind == "classic"


def test_a_group_does_not_change_back_where_the_configuration_says_so() -> None:
    shell = Shell(ConsumerGroupConfig(may_downgrade=False))
    shell.report("new", 0)
    shell.join("")
    shell.report("new", -1)
    assert shell.kind == "consumer"
