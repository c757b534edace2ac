"""Random joins, leaves, commits, crashes and time, against what must always hold for a classic group."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.core.group.classic.rebalance import NEW_MEMBER_JOIN_MS
from headrace.core.group.coordinator_shard import NewOffset
from headrace.core.group.errors import MemberIdRequired
from headrace.core.group.group_manager import Committer
from headrace.core.group.model import (
    ClassicGroup,
    GroupCoordinatorConfig,
    GroupState,
    JoinReply,
    JoinRequest,
    MemberIdentity,
    Protocol,
    SyncReply,
    SyncRequest,
)
from headrace.model.errors import RequestError
from headrace.model.ids import TopicPartition
from tests.unit.core.group.stage import Stage, timers_of

GROUP = "g"
PLACE = TopicPartition("t", 0)
SESSION_MS = 10_000
REBALANCE_MS = 20_000
NAMES = st.sampled_from(["a", "b", "c", "static"])


class Client:
    def __init__(self, name: str) -> None:
        self.name = name
        self.instance_id = name if name == "static" else None
        self.member_id = ""
        self.generation = -1
        self.leads: list[str] = []


class ClassicGroupModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage(GroupCoordinatorConfig(initial_delay_ms=3_000, members_max=3))
        self.clients = {name: Client(name) for name in ("a", "b", "c", "static")}
        self.asked: dict[int, tuple[Client, str]] = {}
        self.shares: dict[tuple[int, bytes], str] = {}  # who was given what, in each generation
        self.committed = -1
        self.ids = 0

    # What clients do

    @rule(name=NAMES, forgets=st.booleans(), old=st.booleans(), protocol=st.sampled_from(["x", "x,y"]))
    def join(self, name: str, forgets: bool, old: bool, protocol: str) -> None:
        client = self.clients[name]
        if forgets:
            client.member_id = ""
        request = JoinRequest(
            group_id=GROUP,
            member_id=client.member_id,
            instance_id=client.instance_id,
            client_id=name,
            client_host="/::1",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            protocol_type="consumer",
            protocols=tuple(Protocol(one, b"") for one in protocol.split(",")),
            needs_known_id=not old,
            can_skip_assignment=not old,
        )
        self.ids += 1
        new_id = f"{name}-{self.ids}"
        self.ask(client, "join", lambda machine, ticket, now: machine.join(request, new_id, ticket, now))

    @rule(name=NAMES)
    def sync(self, name: str) -> None:
        client = self.clients[name]
        request = SyncRequest(
            group_id=GROUP,
            member_id=client.member_id,
            generation=client.generation,
            instance_id=client.instance_id,
            assignments={member_id: b"%d" % number for number, member_id in enumerate(client.leads)},
        )
        self.ask(client, "sync", lambda machine, ticket, now: machine.sync(request, ticket, now))

    @rule(name=NAMES)
    def beat(self, name: str) -> None:
        client = self.clients[name]
        self.ask(
            client,
            "beat",
            lambda machine, ticket, now: machine.heartbeat(
                GROUP, client.member_id, client.instance_id, client.generation, ticket, now
            ),
        )

    @rule(name=NAMES)
    def leave(self, name: str) -> None:
        client = self.clients[name]
        leaving = [MemberIdentity(client.member_id, client.instance_id)]
        self.ask(client, "leave", lambda machine, ticket, now: machine.leave(GROUP, leaving, ticket, now))

    @rule(name=NAMES)
    def commit(self, name: str) -> None:
        client = self.clients[name]
        committer = Committer(client.member_id, client.instance_id, client.generation)
        wanted = [NewOffset(PLACE, self.committed + 1)]
        if self.ask(
            client, "commit", lambda machine, ticket, now: machine.commit(GROUP, committer, wanted, ticket, now)
        ):
            self.committed += 1

    # What the world does

    @rule(duration_ms=st.sampled_from([500, 3_000, 9_999, 10_000, 20_000]))
    def time_passes(self, duration_ms: int) -> None:
        self.stage.pass_time(duration_ms)
        self.hear()

    @rule()
    def coordinator_changes(self) -> None:
        self.stage.crash()
        self.asked.clear()
        # Generations that were not written down are given out again, to whoever is there then.
        group = self.group
        last = -1 if group is None else group.generation
        self.shares = {key: name for key, name in self.shares.items() if key[0] <= last}
        self.hear()

    def ask(self, client: Client, verb: str, decide: object) -> bool:
        try:
            ticket = self.stage.call(decide)  # type: ignore[arg-type]
        except RequestError:
            return False
        self.asked[ticket] = client, verb
        self.hear()
        return True

    def hear(self) -> None:
        for ticket, reply in self.stage.answers:
            client, _ = self.asked.pop(ticket)
            if isinstance(reply, MemberIdRequired):
                client.member_id = reply.member_id
            elif isinstance(reply, JoinReply):
                client.member_id, client.generation = reply.member_id, reply.generation
                client.leads = [member.member_id for member in reply.members]
            elif isinstance(reply, SyncReply) and reply.assignment:
                owner = self.shares.setdefault((client.generation, reply.assignment), client.name)
                assert owner == client.name, "a partition has one owner in a generation"
        self.stage.answers.clear()

    # What must hold

    @property
    def group(self) -> ClassicGroup | None:
        return self.stage.machine.classic.get(GROUP)

    @invariant()
    def a_new_coordinator_would_know_what_is_settled(self) -> None:
        self.stage.check_log()

    @invariant()
    def the_committed_offset_is_the_last_one_committed(self) -> None:
        found = self.stage.machine.fetch(GROUP, Committer(), require_stable=True).offsets.get(PLACE)
        assert (-1 if found is None else found.offset) == self.committed

    @invariant()
    def whoever_waits_is_waited_for(self) -> None:
        group = self.group
        members = [] if group is None else list(group.members.values())
        parked = {one.joining for one in members} | {one.syncing for one in members}
        assert parked - {None} == self.stage.waiting

    @invariant()
    def everything_that_waits_has_an_end(self) -> None:
        assert set(self.stage.timers) == timers_of(self.group)

    @invariant()
    def the_leader_is_a_member(self) -> None:
        group = self.group
        if group is not None and group.members:
            assert group.leader in group.members
        if group is not None and group.state in (GroupState.EMPTY,):
            assert not group.members

    def teardown(self) -> None:
        """No pending state outlives its timeout."""
        self.stage.pass_time(NEW_MEMBER_JOIN_MS + 10 * REBALANCE_MS)
        self.hear()
        group = self.group
        assert not self.stage.waiting
        assert group is None or (group.state is GroupState.EMPTY and not group.pending)
        assert not self.stage.timers


ClassicGroupModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_classic_groups_keep_their_promises = ClassicGroupModel.TestCase
