"""Random lives of a group: joins, heartbeats, lost answers, leaving, silence, growing topics, a new coordinator."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.core.coordinator import CoordinatorTime
from headrace.core.group.consumer.assignment import overlap, pairs
from headrace.core.group.consumer.model import HeartbeatReply, MemberState, Partitions, rebalance_timer, session_timer
from headrace.model.errors import RequestError
from tests.unit.core.group.consumer.consumer_kit import Cluster, same_groups

MEMBERS = st.sampled_from("abcd")
TOPICS = st.sampled_from([("t",), ("u",), ("t", "u")])


class Client:
    """A consumer as the protocol wants it: it uses what it was told it may, and lets go when told to."""

    def __init__(self) -> None:
        self.epoch = 0
        self.assigned: Partitions = {}
        self.said: Partitions | None = None

    def heard(self, reply: HeartbeatReply) -> None:
        self.epoch = reply.epoch
        if reply.assigned is not None:
            self.assigned = reply.assigned

    def owned(self) -> Partitions | None:
        """Said only when it has changed."""
        if self.said == self.assigned:
            return None
        self.said = self.assigned
        return self.assigned


class GroupLife(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.sizes = {"t": 3, "u": 2}
        self.cluster = Cluster(**self.sizes)
        self.clients: dict[str, Client] = {}

    @rule(name=MEMBERS, topics=TOPICS)
    def join(self, name: str, topics: tuple[str, ...]) -> None:
        client = self.clients[name] = Client()
        client.heard(self.cluster.join(name, *topics))

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), answer_is_lost=st.booleans())
    def beat(self, data: st.DataObject, answer_is_lost: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.clients)))
        client = self.clients[name]
        try:
            reply = self.cluster.heartbeat(name, client.epoch, owned=client.owned())
        except RequestError:
            self.clients.pop(name)
            return
        if answer_is_lost:
            # The client says everything again, as the protocol wants it after a failure.
            try:
                reply = self.cluster.heartbeat(
                    name, client.epoch, owned=client.assigned, topics=self._topics_of(name), rebalance_timeout_ms=60_000
                )
            except RequestError:
                self.clients.pop(name)
                return
        client.heard(reply)

    def _topics_of(self, name: str) -> tuple[str, ...]:
        return self.cluster.groups.get("g").subscriptions[name].topics

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.clients)))
        del self.clients[name]
        if name in self.cluster.groups.get("g").subscriptions:
            self.cluster.heartbeat(name, -1)

    @rule(seconds=st.sampled_from([1, 20, 50]))
    def wait(self, seconds: int) -> None:
        self.cluster.pass_time(seconds * 1000)

    @rule(topic=st.sampled_from("tu"))
    def grow(self, topic: str) -> None:
        if self.sizes[topic] < 6:
            self.sizes[topic] += 1
            self.cluster.image.set_topics(**self.sizes)

    @rule()
    def lose_leadership(self) -> None:
        self.cluster.groups = self.cluster.rebuilt()
        self.cluster.timers.clear()
        self.cluster.carry_out(self.cluster.groups.loaded(CoordinatorTime(self.cluster.now_ms, self.cluster.now_ms)))

    @invariant()
    def nobody_shares_a_partition(self) -> None:
        members = [self.clients[name] for name in self._members() if name in self.clients]
        for at, one in enumerate(members):
            for other in members[at + 1 :]:
                assert not overlap(one.assigned, other.assigned)

    @invariant()
    def the_log_says_the_same(self) -> None:
        assert same_groups(self.cluster.rebuilt(), self.cluster.groups)

    @invariant()
    def everything_that_waits_has_an_end(self) -> None:
        """Every member's session; and the patience with whoever has to give something up."""
        group = self.cluster.groups.groups.get("g")
        wanted = {session_timer("g", name) for name in self._members()}
        if group is not None:
            held_back = [name for name in self._members() if group.holding(name).state is MemberState.UNREVOKED]
            wanted |= {rebalance_timer("g", name) for name in held_back}
        assert set(self.cluster.timers) == wanted

    def teardown(self) -> None:
        """Left alone with willing members, every group settles, and every partition has an owner."""
        for _ in range(8):
            for name in self._members():
                client = self.clients.get(name)
                if client is not None:
                    try:
                        client.heard(self.cluster.heartbeat(name, client.epoch, owned=client.assigned))
                        continue
                    except RequestError:
                        pass
                self.cluster.heartbeat(name, -1)
        if not self._members():
            return
        group = self.cluster.groups.get("g")
        assert group.state == "Stable"
        held = sorted(partition for one in group.holdings.values() for partition in pairs(one.assigned))
        topics = group.subscribed_topics()
        assert len(held) == len(set(held)) == sum(self.sizes[topic] for topic in topics)

    def _members(self) -> list[str]:
        group = self.cluster.groups.groups.get("g")
        return [] if group is None else sorted(group.subscriptions)


GroupLife.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestGroupLife = GroupLife.TestCase
