"""Who owns a transactional id: fencing, epochs, and producers that go on after an error."""

from dataclasses import replace

import pytest

from headrace.core.transaction.errors import (
    ConcurrentTransactions,
    InvalidTransactionTimeout,
    ProducerFenced,
    UnknownTransactionalProducer,
)
from headrace.core.transaction.metadata import CLIENT_EPOCH_MAX, EPOCH_MAX, ProducerIdentity, TransactionState
from headrace.model.errors import RequestError
from tests.unit.core.transaction.stage import T0, T1, Stage


@pytest.fixture
def stage() -> Stage:
    return Stage()


def set_epoch(stage: Stage, epoch: int) -> ProducerIdentity:
    """As after tens of thousands of producers."""
    owner = stage.init()
    aged = replace(stage["x"], epoch=epoch)
    stage.log.append(stage.machine.encode(aged))
    stage.machine.apply(aged, 0)
    return owner._replace(epoch=epoch)


def test_a_new_producer_gets_the_next_epoch_and_fences_the_one_before(stage: Stage) -> None:
    old, new = stage.init(), stage.init()
    assert new == (old.producer_id, old.epoch + 1)
    with pytest.raises(ProducerFenced):
        stage.add(old, T0)
    stage.add(new, T0)


def test_ids_have_producer_ids_of_their_own(stage: Stage) -> None:
    assert stage.init("x").producer_id != stage.init("y").producer_id


def test_rule_10_a_new_producer_aborts_what_the_one_before_left_open(stage: Stage) -> None:
    old = stage.init()
    stage.add(old, T0)
    with pytest.raises(ConcurrentTransactions):
        stage.init()
    assert stage["x"].state is TransactionState.PREPARE_ABORT
    assert stage["x"].epoch == old.epoch + 1, "the markers fence the old producer in every partition"
    with pytest.raises(ConcurrentTransactions):
        stage.init()
    stage.markers()
    new = stage.init()
    assert new.epoch == old.epoch + 2
    with pytest.raises(ProducerFenced):
        stage.end(old, commit=True)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_rule_14_the_timeout_has_bounds(stage: Stage, timeout_ms: int) -> None:
    with pytest.raises(InvalidTransactionTimeout):
        stage.init(timeout_ms=timeout_ms)
    assert not stage.log


def test_a_transactional_id_has_a_name(stage: Stage) -> None:
    with pytest.raises(RequestError):
        stage.init("")


def test_rule_13_a_producer_that_names_itself_gets_the_next_epoch(stage: Stage) -> None:
    owner = stage.init()
    bumped = stage.init(expected=owner)
    assert bumped == (owner.producer_id, owner.epoch + 1)


def test_rule_13_the_same_request_again_gets_the_same_answer_even_after_a_restart(stage: Stage) -> None:
    owner = stage.init()
    bumped = stage.init(expected=owner)
    stage.restart()
    assert stage.init(expected=owner) == bumped


def test_rule_13_a_producer_that_was_replaced_cannot_come_back_by_naming_itself(stage: Stage) -> None:
    old = stage.init()
    stage.init()
    with pytest.raises(ProducerFenced):
        stage.init(expected=old)
    with pytest.raises(ProducerFenced):
        stage.init(expected=ProducerIdentity(old.producer_id + 50, 0))


def test_rule_13_a_producer_with_an_open_transaction_of_its_own_comes_through_on_the_second_try(
    stage: Stage,
) -> None:
    owner = stage.init()
    stage.add(owner, T0)
    with pytest.raises(ConcurrentTransactions):
        stage.init(expected=owner)
    stage.markers()
    assert stage.init(expected=owner) == (owner.producer_id, owner.epoch + 1)


def test_a_request_that_was_held_up_does_not_abort_what_came_after_it(stage: Stage) -> None:
    owner = stage.init()
    bumped = stage.init(expected=owner)
    stage.add(bumped, T0)
    with pytest.raises(ProducerFenced):
        stage.init(expected=owner)
    assert stage["x"].state is TransactionState.ONGOING


def test_a_forgotten_id_starts_again_whoever_its_producer_says_it_was(stage: Stage) -> None:
    assert stage.init(expected=ProducerIdentity(5, 17)).epoch == 0


def test_when_the_epochs_are_used_up_a_new_producer_id_takes_over(stage: Stage) -> None:
    last = set_epoch(stage, CLIENT_EPOCH_MAX)
    fresh = stage.init(expected=last)
    assert fresh.producer_id != last.producer_id
    assert fresh.epoch == 0
    assert stage["x"].previous_producer_id == last.producer_id
    assert stage.init(expected=last) == fresh, "the same request again"


def test_the_last_epoch_is_kept_back_for_the_fence(stage: Stage) -> None:
    last = set_epoch(stage, CLIENT_EPOCH_MAX)
    stage.add(last, T0)
    with pytest.raises(ConcurrentTransactions):
        stage.init(expected=last)
    assert stage["x"].epoch == EPOCH_MAX
    stage.markers()
    fresh = stage.init(expected=last)
    assert fresh.producer_id != last.producer_id
    assert fresh.epoch == 0


def test_strangers_change_nothing(stage: Stage) -> None:
    owner = stage.init()
    stage.add(owner, T0)
    written = len(stage.log)
    for stranger in (ProducerIdentity(9, 0), owner._replace(epoch=7)):
        with pytest.raises(RequestError):
            stage.add(stranger, T1)
        with pytest.raises(RequestError):
            stage.end(stranger, commit=False)
    with pytest.raises(UnknownTransactionalProducer):
        stage.add(owner, T0, name="never heard of")
    assert len(stage.log) == written
