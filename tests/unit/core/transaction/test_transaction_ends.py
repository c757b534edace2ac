"""How transactions begin and end, in both dialects, by their producer or by time."""

from dataclasses import replace

import pytest

from headrace.core.transaction.errors import (
    ConcurrentTransactions,
    PartitionNotInTransaction,
    ProducerFenced,
    UnknownTransactionalProducer,
    WrongTransactionState,
)
from headrace.core.transaction.metadata import CLIENT_EPOCH_MAX, EPOCH_MAX, NEXT, TransactionState
from tests.unit.core.transaction.stage import CONFIG, T0, T1, Stage

BUMPING = 2
COMPLETE = {True: TransactionState.COMPLETE_COMMIT, False: TransactionState.COMPLETE_ABORT}
PREPARE = {True: TransactionState.PREPARE_COMMIT, False: TransactionState.PREPARE_ABORT}


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_every_state_has_its_moves() -> None:
    assert set(NEXT) == set(TransactionState)
    assert {state.label for state in TransactionState} >= {"Empty", "Ongoing", "PrepareCommit", "CompleteAbort"}


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_is_prepared_then_completed(stage: Stage, commit: bool) -> None:
    owner = stage.init()
    stage.add(owner, T0)
    stage.add(owner, T0, T1)
    assert stage["x"].partitions == {T0, T1}
    assert stage.end(owner, commit=commit) == owner, "an older client keeps its epoch"
    assert stage["x"].state is PREPARE[commit]
    assert stage["x"].partitions == {T0, T1}
    done = stage.markers()
    assert (done.state, done.partitions) == (COMPLETE[commit], frozenset())


def test_adding_what_is_there_already_writes_nothing(stage: Stage) -> None:
    owner = stage.init()
    stage.add(owner, T0, T1)
    written = len(stage.log)
    stage.add(owner, T1)
    assert len(stage.log) == written


def test_rule_14_while_the_markers_are_on_their_way_everything_has_to_wait(stage: Stage) -> None:
    owner = stage.init()
    stage.add(owner, T0)
    stage.end(owner, commit=True)
    for again in (
        lambda: stage.add(owner, T1),
        lambda: stage.end(owner, commit=True),
        lambda: stage.end(owner, commit=False),
        lambda: stage.init(),
        lambda: stage.machine.check_partition("x", owner, T0),
    ):
        with pytest.raises(ConcurrentTransactions):
            again()


def test_a_repeated_end_is_answered_as_the_first(stage: Stage) -> None:
    owner = stage.init()
    stage.add(owner, T0)
    stage.end(owner, commit=True)
    stage.markers()
    assert stage.end(owner, commit=True) == owner
    with pytest.raises(WrongTransactionState):
        stage.end(owner, commit=False)


@pytest.mark.parametrize("commit", [True, False])
def test_without_a_transaction_an_older_client_has_nothing_to_end(stage: Stage, commit: bool) -> None:
    owner = stage.init()
    with pytest.raises(WrongTransactionState):
        stage.end(owner, commit=commit)


def test_writes_are_let_through_only_where_the_transaction_knows_of_them(stage: Stage) -> None:
    owner = stage.init()
    stage.add(owner, T0)
    stage.machine.check_partition("x", owner, T0)
    with pytest.raises(PartitionNotInTransaction):
        stage.machine.check_partition("x", owner, T1)
    stage.end(owner, commit=True)
    stage.markers()
    with pytest.raises(PartitionNotInTransaction):
        stage.machine.check_partition("x", owner, T0)


# With transaction.version 2


def test_rule_13_every_end_bumps_the_epoch(stage: Stage) -> None:
    owner = stage.init()
    stage.add(owner, T0, version=BUMPING)
    after = stage.end(owner, commit=True, version=BUMPING)
    assert after == (owner.producer_id, owner.epoch + 1)
    assert stage["x"].epoch == after.epoch, "the markers have the new epoch"
    assert stage["x"].uses_tv2
    stage.markers()
    with pytest.raises(ProducerFenced):
        stage.add(owner, T0, version=BUMPING)
    stage.add(after, T0, version=BUMPING)


@pytest.mark.parametrize("commit", [True, False])
def test_a_repeated_end_is_told_by_its_epoch_even_after_a_restart(stage: Stage, commit: bool) -> None:
    owner = stage.init()
    stage.add(owner, T0, version=BUMPING)
    after = stage.end(owner, commit=commit, version=BUMPING)
    with pytest.raises(ConcurrentTransactions):
        stage.end(owner, commit=commit, version=BUMPING)
    stage.restart()
    stage.markers()
    assert stage.end(owner, commit=commit, version=BUMPING) == after
    with pytest.raises(WrongTransactionState):
        stage.end(owner, commit=not commit, version=BUMPING)


def test_d10_a_late_end_does_not_touch_the_next_transaction(stage: Stage) -> None:
    owner = stage.init()
    stage.add(owner, T0, version=BUMPING)
    after = stage.end(owner, commit=True, version=BUMPING)
    stage.markers()
    stage.add(after, T0, version=BUMPING)
    for commit in (True, False):
        with pytest.raises(ProducerFenced):
            stage.end(owner, commit=commit, version=BUMPING)
    assert stage["x"].state is TransactionState.ONGOING


def test_an_abort_without_a_transaction_bumps_the_epoch_all_the_same(stage: Stage) -> None:
    owner = stage.init()
    after = stage.end(owner, commit=False, version=BUMPING)
    assert after.epoch == owner.epoch + 1
    assert stage.markers().state is TransactionState.COMPLETE_ABORT
    with pytest.raises(WrongTransactionState):
        stage.end(after, commit=True, version=BUMPING)


def test_when_the_epochs_are_used_up_the_end_brings_a_new_producer_id(stage: Stage) -> None:
    owner = stage.init()
    aged = replace(stage["x"], epoch=CLIENT_EPOCH_MAX)
    stage.log.append(stage.machine.encode(aged))
    stage.machine.apply(aged, 0)
    last = owner._replace(epoch=CLIENT_EPOCH_MAX)
    stage.add(last, T0, version=BUMPING)
    after = stage.end(last, commit=True, version=BUMPING)
    assert (stage["x"].producer_id, stage["x"].epoch) == (last.producer_id, EPOCH_MAX), "for the markers"
    assert after.producer_id != last.producer_id
    assert after.epoch == 0
    assert stage.markers().owner == after
    assert stage.end(last, commit=True, version=BUMPING) == after, "the same request again"
    with pytest.raises(UnknownTransactionalProducer):
        stage.end(last._replace(epoch=3), commit=True, version=BUMPING)


def test_a_client_may_change_its_dialect_between_transactions(stage: Stage) -> None:
    owner = stage.init()
    stage.add(owner, T0)
    stage.end(owner, commit=True)
    stage.markers()
    stage.add(owner, T0, version=BUMPING)
    after = stage.end(owner, commit=False, version=BUMPING)
    stage.markers()
    stage.add(after, T0)
    assert stage.end(after, commit=True) == after
    assert not stage["x"].uses_tv2


# Time


@pytest.mark.parametrize("version", [0, BUMPING])
def test_rule_14_a_transaction_past_its_timeout_is_aborted_and_its_producer_fenced(stage: Stage, version: int) -> None:
    owner = stage.init(timeout_ms=5_000)
    stage.add(owner, T0, version=version)
    stage.advance(4_999)
    stage.add(owner, T1, version=version)
    assert stage["x"].state is TransactionState.ONGOING, "adding partitions does not prolong it"
    stage.advance(1)
    assert stage["x"].state is TransactionState.PREPARE_ABORT
    assert stage["x"].epoch == owner.epoch + 1
    stage.markers()
    for commit in (True, False):
        with pytest.raises(ProducerFenced):
            stage.end(owner, commit=commit, version=version)


def test_the_timeout_counts_on_over_a_restart(stage: Stage) -> None:
    owner = stage.init(timeout_ms=5_000)
    stage.add(owner, T0)
    stage.now_ms += 60_000
    stage.restart()
    stage.advance(0)
    assert stage["x"].state is TransactionState.PREPARE_ABORT


def test_a_coordinator_whose_clock_is_an_hour_behind_keeps_the_timeout_all_the_same(stage: Stage) -> None:
    owner = stage.init(timeout_ms=5_000)
    stage.add(owner, T0)
    stage.now_ms -= 3_600_000
    stage.restart()
    stage.advance(4_999)
    assert stage["x"].state is TransactionState.ONGOING
    stage.advance(1)
    assert stage["x"].state is TransactionState.PREPARE_ABORT


def test_a_transaction_that_ended_in_time_is_left_alone(stage: Stage) -> None:
    owner = stage.init(timeout_ms=5_000)
    stage.add(owner, T0)
    stage.end(owner, commit=True)
    stage.markers()
    stage.advance(10_000)
    assert stage["x"].state is TransactionState.COMPLETE_COMMIT


def test_what_was_prepared_before_a_restart_is_known_after_it(stage: Stage) -> None:
    owner = stage.init()
    stage.add(owner, T0)
    stage.end(owner, commit=True)
    stage.restart()
    (prepared,) = stage.machine.prepared()
    assert prepared.partitions == {T0}
    assert stage.markers().state is TransactionState.COMPLETE_COMMIT


def test_markers_that_come_twice_or_late_change_nothing(stage: Stage) -> None:
    owner = stage.init()
    stage.add(owner, T0)
    stage.end(owner, commit=True)
    prepared = stage["x"]
    stage.markers()
    stage.add(owner, T1)
    assert not stage.machine.markers_written(prepared, stage.now).facts


def test_an_id_that_nobody_uses_is_forgotten_but_never_with_a_transaction_open(stage: Stage) -> None:
    stage.init("idle")
    busy = stage.init("busy", timeout_ms=900_000)
    stage.add(busy, T0, name="busy")
    stage.timers = {name: due for name, due in stage.timers.items() if not name.startswith("timeout")}
    stage.advance(CONFIG.id_expiration_ms + CONFIG.id_expiration_check_ms)
    assert set(stage.machine.transactions) == {"busy"}
    assert stage.init("idle").epoch == 0
