"""Why did we rebalance? What is noted, and how it is written down."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.coordinator import CoordinatorRecord, CoordinatorTime
from headrace.core.group.consumer.consumer_protocol import read_assignment, read_subscription
from headrace.core.group.consumer.topic_metadata import Topics
from headrace.core.group.model import ClassicGroup, GroupState, Member, Protocol
from headrace.core.group.rebalance_history import (
    HISTORY_KIND,
    KEPT,
    History,
    Rebalanced,
    RebalanceForgotten,
    decode,
    encode,
)
from headrace.model.errors import CorruptLog, ProtocolError
from tests.unit.core.group.consumer.consumer_kit import Cluster, FakeImage


def at(wall_ms: int) -> CoordinatorTime:
    return CoordinatorTime(1, wall_ms)


def group(state: GroupState, generation: int, *members: str) -> ClassicGroup:
    made = {
        name: Member(
            member_id=name,
            client_id="c",
            client_host="/h",
            session_timeout_ms=1,
            rebalance_timeout_ms=1,
            protocols=(Protocol("range", b""),),
        )
        for name in members
    }
    return ClassicGroup(group_id="g", state=state, generation=generation, members=made)


def note(history: History, rows: object) -> None:
    for row in rows:  # type: ignore[attr-defined]
        history.apply(row, 0)


def test_a_classic_rebalance_has_a_beginning_an_end_and_a_pause_for_all_who_stayed() -> None:
    history = History()
    stable, preparing = group(GroupState.STABLE, 3, "a", "b"), group(GroupState.PREPARING, 3, "a", "b")
    note(history, history.of_classic(stable, preparing, "c joins", at(1_000)))
    begun = history.under_way("g")
    assert begun == Rebalanced("g", 4, "c joins", 1_000, -1, ("a", "b"), ("a", "b"))
    after = group(GroupState.STABLE, 4, "a", "c")
    note(history, history.of_classic(group(GroupState.COMPLETING, 4, "a", "c"), after, "", at(1_700)))
    (row,) = history.of_group("g")
    assert (row.ended_ms, row.members_after, row.pauses_ms) == (1_700, ("a", "c"), {"a": 700})
    assert history.under_way("g") is None


def test_a_rebalance_that_is_overtaken_by_the_next_is_over() -> None:
    history = History()
    note(history, history.of_classic(None, group(GroupState.PREPARING, 0, "a"), "a joins", at(1_000)))
    completing = group(GroupState.COMPLETING, 1, "a")
    note(history, history.of_classic(completing, group(GroupState.PREPARING, 1, "a"), "b joins", at(1_500)))
    assert [(row.cause, row.ended_ms) for row in history.of_group("g")] == [("a joins", 1_500), ("b joins", -1)]


def test_in_a_consumer_group_only_those_stand_still_whose_partitions_move() -> None:
    cluster = Cluster(t=2, u=1)
    cluster.groups = type(cluster.groups)(cluster.groups.topics, lambda group_id: cluster.rules, history := History())
    noted: list[Rebalanced] = []
    apply = cluster.groups.apply

    def apply_or_note(fact: object, offset: int) -> None:
        if isinstance(fact, Rebalanced):
            noted.append(fact)
            history.apply(fact, offset)
        else:
            apply(fact, offset)  # type: ignore[arg-type]

    cluster.groups.apply = apply_or_note  # type: ignore[method-assign,assignment]
    encode_modern = cluster.groups.encode
    cluster.groups.encode = (  # type: ignore[method-assign]
        lambda fact: history.encode(fact) if isinstance(fact, Rebalanced) else encode_modern(fact)  # type: ignore[assignment]
    )
    cluster.join("a", "t")
    cluster.join("idle", "u")
    cluster.heartbeat("a", 1)
    cluster.now_ms += 100
    cluster.join("b", "t")
    kept = None
    for member, epoch in (("idle", 2), ("a", 2), ("a", 2), ("b", 3)):
        cluster.now_ms += 100
        kept = cluster.heartbeat(member, epoch, owned=kept if member == "a" else None).assigned
    last = history.of_group("g")[-1]
    assert last.cause == "member b joined"
    assert last.is_over
    assert (last.members_before, last.members_after) == (("a", "idle"), ("a", "b", "idle"))
    assert "idle" not in last.pauses_ms
    assert last.pauses_ms == {"a": 300, "b": 400}, "a until it had given up, b until it had got"


def test_slots_are_used_again_so_that_compaction_forgets() -> None:
    rows = [Rebalanced("g", number, "x", number) for number in range(KEPT + 5)]
    assert len({encode(row).key for row in rows}) == KEPT
    history = History()
    for row in rows:
        history.apply(row, 0)
    assert [row.number for row in history.of_group("g")] == list(range(5, KEPT + 5))


def test_a_rebalance_is_read_as_it_was_written() -> None:
    row = Rebalanced("g\N{SNOWMAN}", 7, "a left", 5, 9, ("a", "b"), ("b",), {"b": 4})
    record = encode(row)
    assert record.key.startswith(HISTORY_KIND.to_bytes(2, "big"))
    assert decode(record) == row
    assert decode(CoordinatorRecord(record.key, None)) == RebalanceForgotten(row.group_id, 7)


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_bytes_of_others_are_refused_or_read_and_nothing_else(key: bytes, value: bytes) -> None:
    for record in (CoordinatorRecord(key, value), CoordinatorRecord(encode(Rebalanced("g", 1, "", 0)).key, value)):
        with suppress(CorruptLog):
            decode(record)


@given(st.binary(max_size=60))
def test_what_a_stranger_calls_a_subscription_is_refused_or_read(data: bytes) -> None:
    with suppress(ProtocolError):
        read_subscription(data)
    assert isinstance(read_assignment(data, Topics(FakeImage())), dict)


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xff\xff\xff\xff\xff"])
def test_an_assignment_of_nothing_is_empty(data: bytes) -> None:
    assert read_assignment(data, Topics(FakeImage())) == {}
