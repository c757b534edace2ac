"""Committed offsets of a topic that was deleted and created again under the same name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.coordinator import Producer
from headrace.core.group.coordinator_shard import NewOffset, Outcomes
from headrace.core.group.group_manager import Committer
from headrace.core.group.model import GroupCoordinatorConfig
from headrace.core.group.records import NO_TOPIC_ID, OffsetKey, offset_record
from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicPartition
from tests.unit.core.group.stage import Stage, offsets_of

OLD, NEW = b"o" * 16, b"n" * 16
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
PRODUCER = Producer(7, 0)


@pytest.fixture
def stage() -> Stage:
    return Stage(GroupCoordinatorConfig(initial_delay_ms=0), {"t": OLD, "u": OLD})


def commit(stage: Stage, *wanted: tuple[TopicPartition, int, bytes], producer: Producer | None = None) -> Outcomes:
    new = [NewOffset(place, offset, topic_id=topic_id) for place, offset, topic_id in wanted]
    committer = Committer(transactional=producer is not None)
    outcomes: Outcomes = stage.reply(
        lambda machine, ticket, now: machine.commit("g", committer, new, ticket, now, producer)
    )
    return outcomes


def found(stage: Stage) -> dict[TopicPartition, int]:
    """What OffsetFetch returns."""
    fetched = stage.machine.fetch("g", Committer(), require_stable=False)
    known = {place: fetched.of(place, stage.topic_ids.get(place.topic, NO_TOPIC_ID)) for place in fetched.offsets}
    return {place: committed.offset for place, committed in known.items() if committed is not None}


def unstable(stage: Stage) -> frozenset[TopicPartition]:
    return stage.machine.fetch("g", Committer(), require_stable=True).unstable


def all_offsets(stage: Stage) -> dict[TopicPartition, int]:
    assert offsets_of(stage.rebuilt()) == offsets_of(stage.machine)
    return {place: committed.offset for place, committed in stage.machine.offsets.of_group("g").items()}


def remove_outdated(stage: Stage) -> None:
    stage.carry_out(stage.machine.remove_outdated())


def test_offset_of_recreated_topic_is_absent(stage: Stage) -> None:
    commit(stage, (T0, 7, OLD), (U0, 5, OLD))
    stage.topic_ids["t"] = NEW
    assert found(stage) == {U0: 5}
    stage.crash()
    assert found(stage) == {U0: 5}


def test_new_coordinator_removes_offsets_of_recreated_topic(stage: Stage) -> None:
    commit(stage, (T0, 7, OLD), (T1, 7, OLD), (U0, 5, OLD))
    stage.topic_ids["t"] = NEW
    stage.crash()
    commit(stage, (T1, 1, NEW))
    remove_outdated(stage)
    assert all_offsets(stage) == {T1: 1, U0: 5}
    records = len(stage.log)
    remove_outdated(stage)
    assert len(stage.log) == records, "there is nothing left to remove"


def test_creation_of_topic_removes_offsets_of_its_predecessor(stage: Stage) -> None:
    commit(stage, (T0, 7, OLD), (U0, 5, OLD))
    del stage.topic_ids["t"]
    remove_outdated(stage)
    assert all_offsets(stage) == {T0: 7, U0: 5}, "a topic that is absent is not known to be another one"
    stage.topic_ids["t"] = NEW
    stage.carry_out(stage.machine.topic_created("t"))
    assert all_offsets(stage) == {U0: 5}


def test_deletion_that_is_seen_late_keeps_offsets_of_new_topic(stage: Stage) -> None:
    commit(stage, (T0, 7, OLD), (T1, 7, OLD))
    stage.topic_ids["t"] = NEW
    commit(stage, (T1, 1, NEW))
    stage.carry_out(stage.machine.topic_deleted("t"))
    assert all_offsets(stage) == {T1: 1}


def test_offset_without_topic_id_is_kept_for_every_topic(stage: Stage) -> None:
    commit(stage, (T0, 7, NO_TOPIC_ID))
    stage.topic_ids["t"] = NEW
    stage.crash()
    remove_outdated(stage)
    stage.carry_out(stage.machine.topic_created("t"))
    assert found(stage) == all_offsets(stage) == {T0: 7}
    stage.carry_out(stage.machine.topic_deleted("t", stage.now.wall_ms - 1))
    assert found(stage) == {T0: 7}, "committed after the deletion"
    stage.carry_out(stage.machine.topic_deleted("t", stage.now.wall_ms))
    assert found(stage) == {}


def test_pending_offset_of_recreated_topic_never_counts(stage: Stage) -> None:
    commit(stage, (T0, 7, OLD), (U0, 5, OLD), producer=PRODUCER)
    stage.topic_ids["t"] = NEW
    assert unstable(stage) == {U0}
    stage.crash()
    assert unstable(stage) == {U0}
    remove_outdated(stage)
    for machine in (stage.rebuilt(), stage.machine):
        machine.transaction_ended(PRODUCER.producer_id, committed=True)
        assert {place: known.offset for place, known in machine.offsets.of_group("g").items()} == {U0: 5}


def test_committed_offset_of_new_topic_survives_outdated_pending_one(stage: Stage) -> None:
    commit(stage, (T0, 7, OLD), producer=PRODUCER)
    stage.topic_ids["t"] = NEW
    commit(stage, (T0, 1, NEW))
    remove_outdated(stage)
    stage.carry_out(stage.machine.topic_deleted("t"))
    for machine in (stage.rebuilt(), stage.machine):
        machine.transaction_ended(PRODUCER.producer_id, committed=True)
        assert {place: known.offset for place, known in machine.offsets.of_group("g").items()} == {T0: 1}


def test_transactional_commit_for_replaced_topic_is_rejected(stage: Stage) -> None:
    """The topic was resolved before the transaction's coordinator responded, and re-created in between."""
    commit(stage, (T0, 7, OLD))
    stage.topic_ids["t"] = NEW
    outcomes = commit(stage, (T0, 8, OLD), (U0, 5, OLD), producer=PRODUCER)
    assert outcomes[U0] is None
    rejected = outcomes[T0]
    assert rejected is not None
    assert rejected.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert unstable(stage) == {U0}


def test_offsets_keep_no_ids_of_deleted_topics(stage: Stage) -> None:
    for number in range(10):
        stage.topic_ids["t"] = topic_id = bytes([number + 1]) * 16
        commit(stage, (T0, number, topic_id))
        del stage.topic_ids["t"]
        stage.carry_out(stage.machine.topic_deleted("t"))
    assert stage.machine.offsets.topics_with_ids() == {}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.sampled_from([T0, T1, U0]), st.integers(0, 99), st.booleans()),
        st.tuples(st.just("transaction"), st.sampled_from([T0, T1, U0]), st.integers(0, 99), st.booleans()),
        st.tuples(st.just("end"), st.booleans()),
        st.tuples(st.just("recreate"), st.sampled_from(["t", "u"]), st.booleans()),
        st.tuples(st.just("remove")),
    ),
    max_size=25,
)


class Model:
    """Offsets of one group, each with the topic that it was committed for."""

    def __init__(self) -> None:
        self.stage = Stage(GroupCoordinatorConfig(initial_delay_ms=0), {"t": bytes(15) + b"\1", "u": bytes(15) + b"\2"})
        self.committed: dict[TopicPartition, int] = {}
        self.pending: dict[TopicPartition, int] = {}
        self._ids = 2

    def commit(self, place: TopicPartition, offset: int) -> None:
        commit(self.stage, (place, offset, self.stage.topic_ids[place.topic]))
        self.committed[place] = offset
        self.pending.pop(place, None)  # the later record counts

    def transaction(self, place: TopicPartition, offset: int) -> None:
        commit(self.stage, (place, offset, self.stage.topic_ids[place.topic]), producer=PRODUCER)
        self.pending[place] = offset

    def end(self, *, commits: bool) -> None:
        self.stage.machine.transaction_ended(PRODUCER.producer_id, committed=commits)
        if commits:
            self.committed.update(self.pending)
        self.pending = {}

    def recreate(self, topic: str, *, is_seen: bool) -> None:
        self._ids += 1
        self.stage.topic_ids[topic] = bytes(15) + bytes([self._ids])
        for offsets in (self.committed, self.pending):
            for place in [one for one in offsets if one.topic == topic]:
                del offsets[place]
        if is_seen:
            self.stage.carry_out(self.stage.machine.topic_deleted(topic))
            self.stage.carry_out(self.stage.machine.topic_created(topic))


@given(STEPS)
def test_only_offsets_of_present_topics_are_returned(steps: list[tuple[object, ...]]) -> None:
    model = Model()
    for step in steps:
        match step:
            case ("commit", TopicPartition() as place, int(offset), _):
                model.commit(place, offset)
            case ("transaction", TopicPartition() as place, int(offset), _):
                model.transaction(place, offset)
            case ("end", bool(commits)):
                model.end(commits=commits)
            case ("recreate", str(topic), bool(is_seen)):
                model.recreate(topic, is_seen=is_seen)
            case _:  # what a coordinator does after loading
                remove_outdated(model.stage)
        assert found(model.stage) == model.committed
        assert unstable(model.stage) >= set(model.pending)


def test_offset_with_expiration_time_names_no_topic(stage: Stage) -> None:
    new = [NewOffset(T0, 7, retention_ms=1_000, topic_id=OLD)]
    stage.reply(lambda machine, ticket, now: machine.commit("g", Committer(), new, ticket, now))
    stage.topic_ids["t"] = NEW
    stage.crash()
    remove_outdated(stage)
    assert found(stage) == {T0: 7}, "as in Kafka, version 1 of the record has no topic id"
    record = offset_record(OffsetKey("g", T0), stage.machine.offsets.of_group("g")[T0])
    assert record.value is not None
    assert record.value[:2] == b"\x00\x01"
