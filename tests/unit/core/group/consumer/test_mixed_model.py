"""Random lives of one group with members of both protocols: it changes its protocol and back while they commit.

Static members come back or do not, expressions find topics that appear, coordinators die, time passes.
"""

from importlib.util import find_spec

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.core.group.classic.rebalance import NEW_MEMBER_JOIN_MS
from headrace.core.group.consumer.assignment import overlap, pairs
from headrace.core.group.consumer.model import (
    LEAVE_GROUP_STATIC_MEMBER_EPOCH,
    ConsumerGroupConfig,
    CurrentAssignment,
    MemberState,
    rebalance_timer,
    session_timer,
)
from headrace.core.group.coordinator_shard import NewOffset
from headrace.core.group.group_manager import Committer
from headrace.core.group.model import GroupState
from headrace.model.errors import RequestError
from headrace.model.ids import TopicPartition
from tests.unit.core.group.consumer.mixed_kit import GROUP, REBALANCE_MS, SESSION_MS, Classic, MixedStage, Modern
from tests.unit.core.group.stage import timers_of

PLACE = TopicPartition("t", 0)
MODERN_NAMES, CLASSIC_NAMES = ["a", "b", "static"], ["x", "fixed"]
MODERN, CLASSIC = st.sampled_from(MODERN_NAMES), st.sampled_from(CLASSIC_NAMES)
ANYBODY = MODERN | CLASSIC
STATIC = ("static", "fixed")
TIMEOUTS_MS = {("consumer", "session"): SESSION_MS, ("consumer", "rebalance"): REBALANCE_MS}
WISHES: list[dict[str, object]] = [{"topics": ("t",)}, {"topics": ("t", "u")}]
if find_spec("re2") is not None:  # expressions are matched by google-re2
    WISHES += [{"topics": (), "regex": "t|n.*"}, {"topics": ("u",), "regex": "[tn]"}]


class MixedGroupLife(RuleBasedStateMachine):
    @initialize(interval_ms=st.sampled_from([0, 0, 3_000]))
    def begin(self, interval_ms: int) -> None:
        self.sizes = {"t": 3, "u": 2}
        rules = ConsumerGroupConfig(session_timeout_ms=SESSION_MS, assignment_interval_ms=interval_ms)
        self.stage = MixedStage(rules, **self.sizes)
        self.modern = {name: Modern(self.stage, name, static=name in STATIC) for name in MODERN_NAMES}
        self.classic = {name: Classic(self.stage, name, static=name in STATIC) for name in CLASSIC_NAMES}
        self.committed = -1
        self.unrevoked_since: dict[str, tuple[CurrentAssignment, int]] = {}

    # What members of the newer protocol do

    @rule(name=MODERN, wish=st.sampled_from(WISHES))
    def start(self, name: str, wish: dict[str, object]) -> None:
        client, is_held = self.modern[name], self.is_held(name)
        client.start(**wish)
        assert not (is_held and client.is_member), "who has not left and is not silent is not replaced"
        self.hear()

    def is_held(self, instance_id: str) -> bool:
        """Whether the instance is a member of the newer protocol that has not said that it will come back."""
        group = self.stage.consumer_group
        member_id = None if group is None else group.instances.get(instance_id)
        if group is None or member_id is None:
            return False
        return (
            group.subscriptions[member_id].classic is None
            and group.holding(member_id).epoch != LEAVE_GROUP_STATIC_MEMBER_EPOCH
        )

    @rule(name=MODERN, answer_is_lost=st.booleans())
    def report(self, name: str, answer_is_lost: bool) -> None:
        if self.modern[name].is_member:
            self.modern[name].beat(answer_is_lost=answer_is_lost)
            self.hear()

    @rule(name=MODERN, seconds=st.sampled_from([1, 25]))
    def let_nothing_go(self, name: str, seconds: int) -> None:
        """It reports all the time, and keeps what it is asked to give up; the others go on."""
        for _ in range(seconds):
            if self.modern[name].is_member:
                self.modern[name].beat_and_let_nothing_go()
                self.hear()
            self.all_go_on(but=name)

    @rule(name=MODERN, for_a_while=st.booleans())
    def say_goodbye(self, name: str, for_a_while: bool) -> None:
        client = self.modern[name]
        if client.is_member:
            client.leave(for_a_while=for_a_while and client.instance_id is not None)
            self.hear()

    # What members of the classic protocol do

    @rule(name=CLASSIC, forgets=st.booleans())
    def join(self, name: str, forgets: bool) -> None:
        client = self.classic[name]
        if client.waits_for is None:
            if forgets:
                client.start()
            else:
                client.join()
            self.hear()

    @rule(name=CLASSIC, steps=st.integers(1, 4))
    def go_on(self, name: str, steps: int) -> None:
        for _ in range(steps):
            self.live_on(self.classic[name])

    @rule(name=CLASSIC)
    def leave(self, name: str) -> None:
        client = self.classic[name]
        if client.member_id and client.waits_for is None:
            client.leave()
            self.hear()

    def live_on(self, client: Classic) -> None:
        """The next thing that a consumer does of itself."""
        if client.waits_for is not None:
            return
        if client.has_to_sync:
            client.sync()
        elif client.is_member:
            client.beat()
        else:
            client.join()
        self.hear()

    # Offsets

    @rule(name=ANYBODY)
    def commit(self, name: str) -> None:
        client = self.modern.get(name) or self.classic[name]
        if client.is_member and self.is_committed(client, client.epoch, self.committed + 1):
            self.committed += 1

    @rule(name=ANYBODY, behind=st.integers(1, 3))
    def commit_late(self, name: str, behind: int) -> None:
        """A request that was on its way for too long, from when the member was at another epoch."""
        client = self.modern.get(name) or self.classic[name]
        epoch = client.epoch - behind
        if client.is_member and epoch >= 0 and self.stage.epoch_of(client.member_id) != epoch:
            assert not self.is_committed(client, epoch, 0)

    @rule()
    def reset(self) -> None:
        """An administrator asks for an earlier offset: granted while the group is empty."""
        group, classic = self.stage.consumer_group, self.stage.classic_group
        is_empty = not (group and group.subscriptions) and (classic is None or classic.state is GroupState.EMPTY)
        assert self.is_committed(None, -1, 0) == is_empty
        if is_empty:
            self.committed = 0

    def is_committed(self, client: Modern | Classic | None, epoch: int, offset: int) -> bool:
        committer = Committer() if client is None else Committer(client.member_id, client.instance_id, epoch, 9)
        wanted = [NewOffset(PLACE, offset)]
        try:
            outcome = self.stage.reply(
                lambda machine, ticket, now: machine.commit(GROUP, committer, wanted, ticket, now)
            )
        except RequestError:
            return False
        finally:
            self.stage.answers.clear()
        return outcome == {PLACE: None}

    # What the world does

    @rule(rounds=st.integers(1, 4))
    def everybody_goes_on(self, rounds: int) -> None:
        for _ in range(rounds):
            self.all_go_on()

    def all_go_on(self, but: str | None = None) -> None:
        """Whoever is in the group does its next step; a second passes."""
        for modern in self.modern.values():
            if modern.is_member and modern.name != but:
                modern.beat()
                self.hear()
        for classic in self.classic.values():
            if classic.member_id:
                self.live_on(classic)
        self.stage.pass_time(1_000)
        self.hear()
        self.watch_who_has_to_let_go()

    @rule(seconds=st.sampled_from([1, 4, 9, 21]))
    def wait(self, seconds: int) -> None:
        self.stage.pass_time(seconds * 1000)
        self.hear()

    @rule(topic=st.sampled_from("tun"))
    def grow(self, topic: str) -> None:
        # Members of a classic group look for that themselves, and join again: nothing that a coordinator does.
        if self.sizes.get(topic, 0) < 5 and self.stage.classic_group is None:
            self.sizes[topic] = self.sizes.get(topic, 0) + 1
            self.stage.image.set_topics(**self.sizes)

    @rule()
    def coordinator_changes(self) -> None:
        self.stage.crash()
        self.unrevoked_since.clear()  # everybody gets the whole time again
        for client in self.classic.values():
            client.coordinator_died()
        self.hear()

    def hear(self) -> None:
        for ticket, reply in self.stage.answers:
            for client in self.classic.values():
                if client.waits_for == ticket:
                    client.heard(reply)
        self.stage.answers.clear()

    # What must hold

    @invariant()
    def nobody_shares_a_partition(self) -> None:
        group = self.stage.consumer_group
        if group is None:
            return  # leaders share out there: test_classic_model.py
        clients: list[Modern | Classic] = [*self.modern.values(), *self.classic.values()]
        members = [one for one in clients if one.member_id in group.subscriptions]
        for at, one in enumerate(members):
            for other in members[at + 1 :]:
                assert not overlap(one.uses, other.uses), f"{one.name} and {other.name}"

    @invariant()
    def a_new_coordinator_would_know_everything(self) -> None:
        self.stage.check_log()

    @invariant()
    def the_committed_offset_is_the_last_that_was_asked_for(self) -> None:
        """It never goes back by itself: not with a crash, not with a change of the protocol, not by a late request."""
        found = self.stage.machine.fetch(GROUP, Committer(), require_stable=True).offsets.get(PLACE)
        assert (-1 if found is None else found.offset) == self.committed

    @invariant()
    def a_group_is_of_one_kind(self) -> None:
        assert self.stage.consumer_group is None or self.stage.classic_group is None

    @invariant()
    def everything_that_waits_has_an_end(self) -> None:
        wanted, group = timers_of(self.stage.classic_group), self.stage.consumer_group
        if group is not None:
            wanted |= {session_timer(GROUP, member_id) for member_id in group.subscriptions}
            wanted |= {rebalance_timer(GROUP, member_id) for member_id in self.unrevoked()}
        assert set(self.stage.timers) == wanted
        for name, due_ms in self.stage.timers.items():
            family, kind, _ = name.split(" ", 2)
            assert due_ms <= self.stage.now_ms + TIMEOUTS_MS.get((family, kind), NEW_MEMBER_JOIN_MS), name

    @invariant()
    def nobody_keeps_what_it_has_to_give_up_for_longer_than_its_timeout(self) -> None:
        """However often it reports meanwhile."""
        self.watch_who_has_to_let_go()

    def watch_who_has_to_let_go(self) -> None:
        holdings = self.unrevoked()
        for member_id in self.unrevoked_since.keys() - holdings.keys():
            del self.unrevoked_since[member_id]
        for member_id, holding in holdings.items():
            known = self.unrevoked_since.get(member_id)
            if known is None or known[0] != holding:
                self.unrevoked_since[member_id] = holding, self.stage.now_ms
            else:
                assert self.stage.now_ms - known[1] < REBALANCE_MS, f"{member_id} is still a member"

    def unrevoked(self) -> dict[str, CurrentAssignment]:
        group = self.stage.consumer_group
        members = [] if group is None else list(group.subscriptions)
        holdings = {member_id: group.holding(member_id) for member_id in members} if group is not None else {}
        return {
            member_id: one
            for member_id, one in holdings.items()
            if one.state is MemberState.UNREVOKED and one.epoch != LEAVE_GROUP_STATIC_MEMBER_EPOCH
        }

    def teardown(self) -> None:
        """Left alone with willing members, a group settles: who is not there any more is gone, all is dealt out."""
        if not hasattr(self, "stage"):
            return
        for _ in range(60):
            self.all_go_on()
        self.check_settled()

    def check_settled(self) -> None:
        group, classic = self.stage.consumer_group, self.stage.classic_group
        clients: list[Modern | Classic] = [*self.modern.values(), *self.classic.values()]
        members = {one.member_id: one for one in clients if one.is_member}
        if group is not None and group.subscriptions:
            assert group.state == "Stable"
            assert members.keys() == group.subscriptions.keys()
            wanted = group.subscribed_topics()
        elif classic is not None and classic.members:
            assert classic.state is GroupState.STABLE
            assert members.keys() == classic.members.keys()
            wanted = frozenset({"t"})
        else:
            assert not members
            return
        held = [place for one in members.values() for place in pairs(one.assigned)]
        assert len(held) == len(set(held)) == sum(self.sizes.get(topic, 0) for topic in wanted)


MixedGroupLife.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestMixedGroupLife = MixedGroupLife.TestCase
