"""Consumers of both protocols in one group: each as its protocol wants it, with a machine that writes its log down."""

from typing import Any

from headrace.core.coordinator import RequestId
from headrace.core.group.consumer.assignment import union
from headrace.core.group.consumer.consumer_group import ConsumerGroup
from headrace.core.group.consumer.consumer_protocol import read_assignment, write_assignment
from headrace.core.group.consumer.manager import ConsumerGroups, consumer_groups
from headrace.core.group.consumer.model import ConsumerGroupConfig, Heartbeat, HeartbeatReply, Partitions
from headrace.core.group.consumer.topic_metadata import Topics
from headrace.core.group.consumer.upgrade import report
from headrace.core.group.coordinator_shard import GroupCoordinatorShard
from headrace.core.group.errors import MemberIdRequired
from headrace.core.group.model import (
    ClassicGroup,
    GroupCoordinatorConfig,
    JoinReply,
    JoinRequest,
    MemberIdentity,
    Protocol,
    SyncReply,
    SyncRequest,
)
from headrace.core.group.rebalance_history import History
from headrace.model.errors import HeadraceError, RequestError
from headrace.protocol.primitives import INT16, INT32, string
from tests.unit.core.group.consumer.consumer_kit import FakeImage, same_groups
from tests.unit.core.group.stage import Stage

GROUP = "g"
SESSION_MS = 10_000
REBALANCE_MS = 20_000


class MixedStage(Stage):
    """A machine that knows both protocols."""

    def __init__(self, rules: ConsumerGroupConfig, **partitions: int) -> None:
        self.image = FakeImage()
        self.image.set_topics(**partitions)
        self.topics = Topics(self.image)
        self._rules = rules
        super().__init__(GroupCoordinatorConfig(initial_delay_ms=0))

    def new_machine(self) -> GroupCoordinatorShard:
        history = History()
        groups = ConsumerGroups(self.topics, lambda group_id: self._rules, history)
        return GroupCoordinatorShard(self.limits, groups, history)

    @property
    def consumer_group(self) -> ConsumerGroup | None:
        return consumer_groups(self.machine).groups.get(GROUP)

    @property
    def classic_group(self) -> ClassicGroup | None:
        return self.machine.classic.get(GROUP)

    def epoch_of(self, member_id: str) -> int | None:
        """What the coordinator takes for the member's epoch or generation; None if it is no member."""
        group, classic = self.consumer_group, self.classic_group
        if group is not None and member_id in group.subscriptions:
            return group.holding(member_id).epoch
        return classic.generation if classic is not None and member_id in classic.members else None

    def check_log(self) -> None:
        super().check_log()
        assert same_groups(consumer_groups(self.rebuilt()), consumer_groups(self.machine))


class Modern:
    """A consumer of the newer protocol: it uses what it was told it may, and lets go when told to."""

    def __init__(self, stage: MixedStage, name: str, *, static: bool) -> None:
        self._stage = stage
        self.name = name
        self.instance_id = name if static else None
        self.starts = 0
        self.is_away = False
        self._wish: dict[str, Any] = {}
        self._forget()

    def _forget(self) -> None:
        self.epoch = 0
        self.is_member = False
        self.assigned: Partitions = {}
        self.uses: Partitions = {}  # more than that until it has let go of what it is to give up
        self._said: Partitions | None = None

    @property
    def member_id(self) -> str:
        return f"{self.name}-{self.starts}"

    def start(self, **wish: Any) -> None:
        """The process starts, or starts again: by another id, with nothing in its hands."""
        self.starts += 1
        self._wish = wish
        self._forget()
        self.report_all()

    def report_all(self) -> None:
        self.uses = self.assigned
        self._report(self.epoch, owned=self.assigned, rebalance_timeout_ms=REBALANCE_MS, **self._wish)

    def beat(self, *, answer_is_lost: bool = False) -> None:
        self.uses = self.assigned
        owned = None if self._said == self.assigned else self.assigned
        before = (self.epoch, self.assigned)
        self._report(self.epoch, owned=owned)
        if answer_is_lost and self.is_member:
            # It says everything again, as the protocol wants it after a failure.
            self.epoch, self.assigned = before
            self.report_all()

    def beat_and_let_nothing_go(self) -> None:
        """It is busy with what it has: it is alive, and no more than that."""
        self._report(self.epoch)

    def leave(self, *, for_a_while: bool = False) -> None:
        self._report(-2 if for_a_while else -1)
        self._forget()
        self.is_away = for_a_while

    def _report(self, epoch: int, **said: Any) -> None:
        request = Heartbeat(GROUP, self.member_id, epoch, self.instance_id, **said)
        self._said = self._said if request.owned is None else request.owned
        try:
            reply = self._stage.reply(lambda machine, ticket, now: report(machine, request, any_topic, ticket, now))
        except RequestError:
            self._forget()  # fenced, or unknown: it gives up what it has and starts over
            return
        assert isinstance(reply, HeartbeatReply)
        self.is_member, self.is_away, self.epoch = True, False, reply.epoch
        if reply.assigned is not None:
            self.assigned = reply.assigned
        self.uses = union(self.uses, self.assigned)


def any_topic(name: str) -> bool:
    return True


class Classic:
    """An eager consumer of the classic protocol: it gives everything up before it joins, and reads topic t."""

    def __init__(self, stage: MixedStage, name: str, *, static: bool) -> None:
        self._stage = stage
        self.name = name
        self.instance_id = name if static else None
        self.starts = 0
        self._forget()

    def _forget(self) -> None:
        self.member_id = ""
        self.epoch = -1
        self.waits_for: RequestId | None = None
        self.has_to_sync = False
        self.assigned: Partitions = {}
        self._leads: list[str] = []

    @property
    def uses(self) -> Partitions:
        return self.assigned

    @property
    def is_member(self) -> bool:
        return bool(self.member_id) and self.epoch >= 0

    def start(self) -> None:
        self._forget()
        self.join()

    def join(self) -> None:
        self.assigned, self.has_to_sync = {}, False
        self.starts += 1
        request = JoinRequest(
            group_id=GROUP,
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.name,
            client_host="/::1",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            protocol_type="consumer",
            protocols=(Protocol("range", subscription_to_t()),),
        )
        new_id = f"{self.name}-{self.starts}"
        self._ask(lambda machine, ticket, now: machine.join(request, new_id, ticket, now))

    def sync(self) -> None:
        self.has_to_sync = False
        shares = self._dealt_out()
        request = SyncRequest(
            group_id=GROUP,
            member_id=self.member_id,
            generation=self.epoch,
            instance_id=self.instance_id,
            assignments={name: write_assignment(share, self._stage.topics) for name, share in shares.items()},
        )
        self._ask(lambda machine, ticket, now: machine.sync(request, ticket, now))

    def _dealt_out(self) -> dict[str, Partitions]:
        view = self._stage.topics.get("t")
        assert view is not None, "the topic is always there"
        count = len(self._leads)
        indexes = {name: frozenset(range(at, view.partitions, count)) for at, name in enumerate(self._leads)}
        return {name: {view.topic_id: share} if share else {} for name, share in indexes.items()}

    def beat(self) -> None:
        member_id, instance_id, epoch = self.member_id, self.instance_id, self.epoch
        self._ask(lambda machine, ticket, now: machine.heartbeat(GROUP, member_id, instance_id, epoch, ticket, now))

    def leave(self) -> None:
        leaving = [MemberIdentity(self.member_id, self.instance_id)]
        self._ask(lambda machine, ticket, now: machine.leave(GROUP, leaving, ticket, now))
        self._forget()

    def _ask(self, decide: Any) -> None:
        try:
            self.waits_for = self._stage.call(decide)
        except RequestError as error:
            self.heard(error)

    def coordinator_died(self) -> None:
        """Whoever waited to be let in, or for its share, never hears of it and has to join again."""
        if self.waits_for is not None:
            self.waits_for, self.epoch = None, -1

    def heard(self, reply: object) -> None:
        self.waits_for = None
        match reply:
            case MemberIdRequired():
                self.member_id = reply.member_id
            case JoinReply():
                self.member_id, self.epoch, self.has_to_sync = reply.member_id, reply.generation, True
                self._leads = [member.member_id for member in reply.members]
            case SyncReply():
                self.assigned = read_assignment(reply.assignment, self._stage.topics)
            case HeadraceError() if reply.code.name in ("UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID"):
                self._forget()
            case HeadraceError():
                self.epoch = -1  # it has to join again; what it has it keeps until it does


def subscription_to_t() -> bytes:
    """Version 1, without user data, owning nothing."""
    return INT16.pack(1) + INT32.pack(1) + string("t", False) + INT32.pack(-1) + INT32.pack(0)
