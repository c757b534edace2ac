"""Offsets: transactions, expiry, deletion, and what a new coordinator knows of them."""

import pytest

from headrace.core.coordinator import Producer
from headrace.core.group.coordinator_shard import NewOffset
from headrace.core.group.errors import GroupNotFound, NonEmptyGroup
from headrace.core.group.group_manager import Committer
from headrace.core.group.model import GroupCoordinatorConfig
from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicPartition
from tests.unit.core.group.stage import Stage, offsets_of

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
PRODUCER = Producer(7, 0)
ANYBODY = Committer()
IN_TRANSACTION = Committer(transactional=True)


@pytest.fixture
def stage() -> Stage:
    return Stage(GroupCoordinatorConfig(offsets_retention_ms=60_000, initial_delay_ms=0))


def commit(
    stage: Stage, *wanted: tuple[TopicPartition, int], producer: Producer | None = None, retention_ms: int = -1
) -> None:
    new = [NewOffset(place, offset, retention_ms=retention_ms) for place, offset in wanted]
    committer = ANYBODY if producer is None else IN_TRANSACTION
    stage.reply(lambda machine, ticket, now: machine.commit("g", committer, new, ticket, now, producer))


def found(stage: Stage) -> dict[TopicPartition, int]:
    offsets = stage.machine.fetch("g", ANYBODY, require_stable=False).offsets
    return {place: known.offset for place, known in offsets.items()}


def test_offsets_of_a_transaction_count_when_it_is_committed(stage: Stage) -> None:
    commit(stage, (T0, 1))
    commit(stage, (T0, 2), (T1, 3), producer=PRODUCER)
    assert found(stage) == {T0: 1}
    assert stage.machine.fetch("g", ANYBODY, require_stable=True).unstable == {T0, T1}
    for machine in (stage.rebuilt(), stage.machine):
        machine.transaction_ended(PRODUCER.producer_id, committed=True)
        assert {place: known.offset for place, known in machine.offsets.of_group("g").items()} == {T0: 2, T1: 3}
    assert stage.machine.fetch("g", ANYBODY, require_stable=True).unstable == frozenset()


def test_offsets_of_an_aborted_transaction_never_counted(stage: Stage) -> None:
    commit(stage, (T0, 2), producer=PRODUCER)
    stage.machine.transaction_ended(PRODUCER.producer_id, committed=False)
    assert (found(stage), stage.machine.offsets.unstable("g")) == ({}, frozenset())


def test_a_later_commit_outside_the_transaction_wins(stage: Stage) -> None:
    commit(stage, (T0, 2), producer=PRODUCER)
    commit(stage, (T0, 9))
    stage.machine.transaction_ended(PRODUCER.producer_id, committed=True)
    assert found(stage) == {T0: 9}


def test_a_group_whose_offsets_are_in_a_transaction_is_not_deleted(stage: Stage) -> None:
    commit(stage, (T0, 1))
    commit(stage, (T0, 2), producer=PRODUCER)
    with pytest.raises(NonEmptyGroup):
        stage.call(lambda machine, ticket, now: machine.delete("g", ticket))
    outcomes = stage.reply(lambda machine, ticket, now: machine.forget_offsets("g", [T0, T1], ticket))
    assert outcomes[T0].code is ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert outcomes[T1] is None
    stage.pass_time(61_000)
    stage.carry_out(stage.machine.expire_offsets(stage.now))
    assert found(stage) == {T0: 1}


def test_an_end_of_its_own_is_kept_to(stage: Stage) -> None:
    commit(stage, (T0, 1), retention_ms=1_000)
    commit(stage, (T1, 1), retention_ms=100_000)
    stage.pass_time(1_000)
    stage.carry_out(stage.machine.expire_offsets(stage.now))
    assert found(stage) == {T1: 1}
    stage.crash()
    stage.pass_time(98_999)
    stage.carry_out(stage.machine.expire_offsets(stage.now))
    assert found(stage) == {T1: 1}
    stage.pass_time(1)
    stage.carry_out(stage.machine.expire_offsets(stage.now))
    assert found(stage) == {}


def test_offsets_of_a_deleted_topic_go(stage: Stage) -> None:
    commit(stage, (T0, 1), (T1, 1), (U0, 1))
    stage.carry_out(stage.machine.topic_deleted("t"))
    assert found(stage) == {U0: 1}
    assert offsets_of(stage.rebuilt()) == offsets_of(stage.machine)


@pytest.mark.parametrize("has_offset_before", [True, False])
def test_pending_offset_of_deleted_topic_never_counts(stage: Stage, has_offset_before: bool) -> None:
    if has_offset_before:
        commit(stage, (T0, 1))
    commit(stage, (T0, 2), (U0, 5), producer=PRODUCER)
    stage.carry_out(stage.machine.topic_deleted("t"))
    assert stage.machine.offsets.unstable("g") == {U0}
    for machine in (stage.rebuilt(), stage.machine):
        machine.transaction_ended(PRODUCER.producer_id, committed=True)
        assert {place: known.offset for place, known in machine.offsets.of_group("g").items()} == {U0: 5}


def test_pending_offsets_are_removed_for_every_producer_of_the_group(stage: Stage) -> None:
    other = Producer(8, 0)
    commit(stage, (T0, 2), producer=PRODUCER)
    commit(stage, (T0, 3), (T1, 3), producer=other)
    stage.carry_out(stage.machine.topic_deleted("t"))
    for machine in (stage.rebuilt(), stage.machine):
        assert not machine.offsets.has_pending("g")
        for producer in (PRODUCER, other):
            machine.transaction_ended(producer.producer_id, committed=True)
        assert not machine.offsets.holds("g")


def test_transaction_commits_offset_of_recreated_topic(stage: Stage) -> None:
    commit(stage, (T0, 2), producer=PRODUCER)
    stage.carry_out(stage.machine.topic_deleted("t"))
    commit(stage, (T0, 4), producer=PRODUCER)
    for machine in (stage.rebuilt(), stage.machine):
        machine.transaction_ended(PRODUCER.producer_id, committed=True)
        assert {place: known.offset for place, known in machine.offsets.of_group("g").items()} == {T0: 4}


def test_what_was_never_there_is_not_deleted(stage: Stage) -> None:
    with pytest.raises(GroupNotFound):
        stage.call(lambda machine, ticket, now: machine.delete("g", ticket))
    with pytest.raises(GroupNotFound):
        stage.call(lambda machine, ticket, now: machine.forget_offsets("g", [T0], ticket))


def test_deleting_leaves_nothing_for_a_new_coordinator(stage: Stage) -> None:
    commit(stage, (T0, 1), (U0, 1))
    stage.reply(lambda machine, ticket, now: machine.delete("g", ticket))
    assert list(stage.rebuilt().listings()) == []
